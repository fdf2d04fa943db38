"""What late metadata costs: reused blocks against the time until an event is visible, with and without guesses.

    python -m benchmarks.metadata requests=3000 rate_per_s=200

A fleet of `nodes` in virtual time: a request goes to the node on which the router's replica believes most of it, or to
the least used one; the node has the missing blocks `serve_ms` later and says so; the router sees it `lag` later. With
guesses the router expects them at once, as a register-before-visible index does. The truth is what the nodes hold, so
a belief that is too old costs recomputed blocks, and one that is too early sends a request where the blocks are not
yet.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvshare_research.core.journal import Journal
from kvshare_research.core.messages import BlocksRemoved, BlocksStored, PoolMessage
from kvshare_research.core.nouns import Chain
from kvshare_research.core.replica import Replica
from kvshare_research.index.flat import FlatIndex

from . import settings

BLOCK = 16


@dataclass
class Settings:
    """`pool_blocks` is the capacity of a node, first in first out; prompts share an opening of `shared_blocks`."""

    requests: int = 3000
    nodes: int = 16
    rate_per_s: float = 200.0
    serve_ms: float = 50.0
    pool_blocks: int = 4000
    families: int = 200
    shared_blocks: int = 64
    own_blocks: int = 16
    lags_ms: list[float] = field(default_factory=lambda: [0.0, 1.0, 10.0, 100.0, 1000.0])
    seed: int = 1
    out: str = "outputs/benchmarks/metadata.json"


class Node:
    """Blocks in the order of their arrival; the oldest go when the pool is full, the end of a prompt first."""

    def __init__(self, node: int, pool_blocks: int) -> None:
        self.journal, self.pool_blocks = Journal(node, 1), pool_blocks
        self.blocks: dict[bytes, None] = {}

    def run(self, hashes: tuple[bytes, ...]) -> int:
        """How many blocks from the first are here."""
        return next((i for i, h in enumerate(hashes) if h not in self.blocks), len(hashes))

    def take(self, hashes: tuple[bytes, ...]) -> list[PoolMessage]:
        """All blocks are here; what is published about it."""
        start = self.run(hashes)
        fresh = tuple(h for h in hashes[start:] if h not in self.blocks)
        self.blocks.update(dict.fromkeys(reversed(fresh)))
        said = []
        for i, h in enumerate(hashes):
            if h in fresh and (i == 0 or hashes[i - 1] not in fresh):
                run = tuple(x for x in hashes[i:] if x in fresh)
                said.append(self.journal.write(BlocksStored(tier=0, parent=hashes[i - 1] if i else None, hashes=run)))
                break
        gone = tuple(list(self.blocks)[: max(0, len(self.blocks) - self.pool_blocks)])
        for h in gone:
            del self.blocks[h]
        if gone:
            said.append(self.journal.write(BlocksRemoved(tier=0, hashes=gone)))
        return said


def prompts_of(given: Settings, rng: np.random.Generator) -> list[tuple[bytes, ...]]:
    weights = 1 / np.arange(1, given.families + 1) ** 0.9
    chosen = rng.choice(given.families, size=given.requests, p=weights / weights.sum())
    opening = [[rng.bytes(16) for _ in range(given.shared_blocks)] for _ in range(given.families)]
    return [(*opening[f], *(rng.bytes(16) for _ in range(given.own_blocks))) for f in chosen]


def chosen_node(replica: Replica, hashes: tuple[bytes, ...], sent: Counter[int], node_count: int) -> int:
    chain = Chain(hashes=b"".join(hashes), scope_ends=((0, len(hashes)),), block_tokens=BLOCK)
    depths = {r.node: r.block_count for r in replica.match(chain).runs}
    return min(range(node_count), key=lambda n: (-depths.get(n, 0), sent[n], n))


def served(given: Settings, lag_us: int, guesses: bool) -> dict[str, float]:
    """One run of the fleet."""
    rng = np.random.default_rng(given.seed)
    prompts, nodes = prompts_of(given, rng), [Node(n, given.pool_blocks) for n in range(given.nodes)]
    arrivals = np.cumsum(rng.exponential(1e6 / given.rate_per_s, given.requests)).astype(int).tolist()
    replica = Replica(FlatIndex().new_store(given.nodes), given.nodes)
    done: list[tuple[int, int, int]] = []  # (time, request, node)
    wire: list[tuple[int, int, PoolMessage]] = []
    counts: Counter[str] = Counter()
    sent: Counter[int] = Counter()

    def until(now_us: int) -> None:
        while done or wire:
            if not wire or (done and done[0][0] <= wire[0][0]):
                if done[0][0] > now_us:
                    return
                at, request, node = heapq.heappop(done)
                for message in nodes[node].take(prompts[request]):
                    counts["messages"] += 1
                    counts["bytes"] += len(msgspec.msgpack.encode(message))
                    heapq.heappush(wire, (at + lag_us, counts["messages"], message))
            elif wire[0][0] > now_us:
                return
            else:
                at, _, message = heapq.heappop(wire)
                replica.receive(message, at)

    for request, now_us in enumerate(arrivals):
        until(now_us)
        replica.expire(now_us)
        hashes = prompts[request]
        node = chosen_node(replica, hashes, sent, given.nodes)
        sent[node] += 1
        counts["reused"] += nodes[node].run(hashes)
        counts["best"] += max(n.run(hashes) for n in nodes)
        if guesses:
            replica.guess(node, 0, None, hashes, now_us + 2_000_000)
        heapq.heappush(done, (now_us + int(given.serve_ms * 1000), request, node))
    stored = sum(len(p) for p in prompts) - counts["reused"]
    return {
        "reused_ratio": counts["reused"] / sum(len(p) for p in prompts),
        "reused_of_best_ratio": counts["reused"] / counts["best"],
        "messages_per_block": counts["messages"] / stored,
        "bytes_per_block": counts["bytes"] / stored,
    }


def main() -> None:
    given = settings.given(Settings)
    rows: dict[str, Any] = {}
    print(f"{'lag':<22}{'reused':>9}{'of what stood somewhere':>26}{'messages/block':>16}{'bytes/block':>13}")
    for guesses in (False, True):
        for lag_ms in given.lags_ms:
            r = served(given, int(lag_ms * 1000), guesses)
            name = f"{lag_ms:g} ms{', guessed' if guesses else ''}"
            rows[name] = r
            print(
                f"{name:<22}{r['reused_ratio']:>9.1%}{r['reused_of_best_ratio']:>26.1%}"
                f"{r['messages_per_block']:>16.3f}{r['bytes_per_block']:>13.1f}"
            )
    out = Path(given.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"settings": asdict(given), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
