"""The whole decision of one request on 64 nodes (hash, lookup, judge, quote, select), beside NVIDIA Dynamo's two.

    python -m benchmarks.decision blocks=200000 nodes=64

Ours starts from the tokens as an array and uses the package's own functions in the router's order, loads and links
included; `from a list` starts from a list of ints, as the peers' bindings want it. The peers also keep load and queues.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from kvshare_research.build import build
from kvshare_research.core.directory import Directory
from kvshare_research.core.judging import judge
from kvshare_research.core.loads import Loads, Service
from kvshare_research.core.nouns import Action, Request, Segment
from kvshare_research.core.ports import Cost, QuoteInput, Selector
from kvshare_research.cost.links import LinkModel, LinkTable
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.namespace import ModelSpace, chain

from . import index_state, settings
from .index import spent_s, summary
from .index_contenders import DynamoSelection
from .kvrouter import KvRouterPeer

FROM_LIST = "ours, from a list"
STAGES = ("hash", "lookup", "judge", "quote", "select")
ACTIONS = frozenset(Action)
NOW_US = 1_000  # since the nodes got work and the links were measured
CONF = Path(__file__).parents[1] / "conf"


@dataclass
class Settings:
    blocks: int = 200_000
    nodes: int = 64
    lengths: list[int] = field(default_factory=lambda: [16, 128, 1024, 8192])
    queries: int = 100
    rounds: int = 5
    seed: int = 1
    peer: bool = True
    out: str = "outputs/benchmarks/decision"


def component(group: str, stem: str) -> Any:
    return build(yaml.safe_load((CONF / group / f"{stem}.yaml").read_text()), group)


class Decision:
    """All that a router holds, and its steps one by one."""

    def __init__(self, state: index_state.State) -> None:
        self.directory, self.ring = Directory(tenants=("t",), groups=()), KeyRing(RootSecret.from_seed(0))
        self.space = ModelSpace(model="m", dtype="float32", block_tokens=index_state.BLOCK_TOKENS)
        self.index = component("index", "flat").new_store(state.node_count)
        self.cost: Cost = component("cost", "ttft")
        self.selector: Selector = component("selector", "cheapest")
        self.links, self.loads = LinkTable.start(state.node_count, LinkModel()), Loads(state.node_count)
        for node in range(state.node_count):
            ahead = Request(
                request_id=node, tenant_id=1, segments=(Segment(scope_id=0, token_count=1000),), output_tokens_max=1,
                ingress=0, arrival_us=0,
            )  # fmt: skip
            work = Service(
                node=node, first_us=node * 1000, rest_us=0, merge_us=0, model_prefill_us=node * 1000, model_decode_us=0,
                is_held_up=True,
            )  # fmt: skip
            self.loads.sent(ahead, work, 0)
            for other in range(state.node_count):  # measured links: their age counts in every price
                self.links = self.links.measured(node, other, 0, 1000 + 10 * (node ^ other), 0)
        for e in state.stored:
            hashes = self._chain(index_state.tokens_of(state.prompts[e.prompt][: e.end]))
            parent = hashes.block_hash(e.start - 1) if e.start else None
            self.index.store(e.node, 0, parent, hashes.block_hashes(e.start, e.end))

    def _chain(self, tokens: Any) -> Any:
        segments = (Segment(scope_id=0, token_count=len(tokens)),)
        return chain(tokens, segments, (0,), directory=self.directory, ring=self.ring, space=self.space)

    def stages_us(self, tokens: Any) -> list[float]:
        """Time of each stage; the sum is the decision."""
        clock, marks = time.perf_counter_ns, []
        request = Request(
            request_id=1, tenant_id=1, segments=(Segment(scope_id=0, token_count=len(tokens)),), output_tokens_max=16,
            ingress=0, arrival_us=0,
        )  # fmt: skip
        reader = self.directory.reader(1)
        marks.append(clock())
        hashes = self._chain(tokens)
        marks.append(clock())
        match = self.index.match(hashes)
        marks.append(clock())
        verdict = judge(match, hashes, reader, self.directory, 0)
        marks.append(clock())
        table = self.cost.quote(
            QuoteInput(
                request=request,
                chain=hashes,
                verdict=verdict,
                loads=self.loads.at(NOW_US, None),
                links=self.links.matrix(NOW_US),
                actions=ACTIONS,
                block_bytes=1 << 20,
                draw=1,
            )
        )
        marks.append(clock())
        self.selector.select(table)
        marks.append(clock())
        return [(b - a) / 1000 for a, b in pairwise(marks)]


@contextmanager
def peers_of(state: index_state.State, wanted: bool) -> Iterator[list[Any]]:
    """Those that can be imported, filled, and ended afterwards."""
    found: list[Any] = []
    try:
        if wanted:
            selection = DynamoSelection(state)
            spent_s(selection, selection.store, selection.events(state, state.stored, False))
            found.append(selection)
            router = KvRouterPeer(state)
            found.append(router)
            router.fill(state)
        yield found
    except ImportError as missing:
        print(f"peers left out: {missing}", file=sys.stderr)
        yield found
    finally:
        for peer in found:
            if isinstance(peer, KvRouterPeer):
                peer.close()


def measured(given: Settings) -> dict[str, Any]:
    state = index_state.made(given.blocks, given.nodes, list(given.lengths), given.queries, given.seed)
    ours = Decision(state)
    with peers_of(state, given.peer) as peers:
        rows: dict[str, dict[int, Any]] = {name: {} for name in ("ours", FROM_LIST, *(p.name for p in peers))}
        parts: dict[int, Any] = {}
        for length, queries in state.queries.items():
            tokens = [q.tokens for q in queries]
            lists = [q.tokens.tolist() for q in queries]
            asked = {peer.name: [peer.query(q) for q in queries] for peer in peers}
            stages: list[list[list[float]]] = []
            others: dict[str, list[list[float]]] = {name: [] for name in rows if name != "ours"}
            for _ in range(given.rounds + 1):  # the first warms everybody
                stages.append([ours.stages_us(t) for t in tokens])
                others[FROM_LIST].append([timed(lambda t: ours.stages_us(np.array(t, np.uint32)), t) for t in lists])
                for peer in peers:
                    others[peer.name].append([timed(peer.lookup, a) for a in asked[peer.name]])
            rows["ours"][length] = summary([[sum(q) for q in r] for r in stages[1:]])
            parts[length] = dict(zip(STAGES, np.median(np.array(stages[1:]), axis=(0, 1)).tolist(), strict=True))
            for name, rounds in others.items():
                rows[name][length] = summary(rounds[1:])
    return {"settings": asdict(given), "us": rows, "stages": parts}


def timed(call: Callable[[Any], Any], given: Any) -> float:
    start = time.perf_counter_ns()
    call(given)
    return (time.perf_counter_ns() - start) / 1000


def main() -> None:
    given = settings.given(Settings)
    result = measured(given)
    us, stages = result["us"], result["stages"]
    print(f"{'decision us, p50 (min..max of rounds) / p99':<44}" + "".join(f"{n:>34}" for n in given.lengths))
    for name, row in us.items():
        form = "{p50_us:.1f} ({p50_us_min:.1f}..{p50_us_max:.1f}) / {p99_us:.1f}"
        print(f"{name:<44}" + "".join(f"{form.format(**c):>34}" for c in row.values()))
    for name in [n for n in us if n not in ("ours", FROM_LIST)]:
        ratios = (us[name][n]["p50_us"] / us["ours"][n]["p50_us"] for n in given.lengths)
        print(f"{'  ' + name + ' / ours':<44}" + "".join(f"{f'{ratio:.1f}x':>34}" for ratio in ratios))
    for stage in STAGES:
        print(f"{'  ' + stage:<44}" + "".join(f"{stages[n][stage]:>34.1f}" for n in given.lengths))
    out = Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{given.blocks}_blocks_{given.nodes}_nodes.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
