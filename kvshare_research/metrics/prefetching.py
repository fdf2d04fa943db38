"""Whether prefetches were right, from what was issued, what came of it, and what requests then asked for.

A prefetch is *useful* if its prefix is asked for at its node within the horizon, and *on time* if the first request
that asks finds its last block there. Accuracy is useful over issued, timeliness on time over useful, and destination,
of those whose tenant asked for the prefix at all within the horizon, the share whose tenant did so at the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from kvshare_research.core import messages as m
from kvshare_research.core.nouns import Chain, Outcome

Served = Sequence[tuple[Outcome, Chain]]  # each request, with the chain it was served by


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A prefetch that the router sent. `name` is the hash of its last block, `depth_blocks` how deep that lies."""

    prefetch_id: int
    node: int
    tenant_id: int
    name: bytes
    depth_blocks: int
    at_us: int
    horizon_us: int

    @classmethod
    def of(cls, effect: m.SendPrefetch, now_us: int) -> Issued:
        """What the effect asks for."""
        asked = effect.asked
        count = asked.chain.block_count
        return cls(
            prefetch_id=asked.request.request_id, node=effect.node, tenant_id=asked.request.tenant_id,
            name=asked.chain.block_hash(count - 1), depth_blocks=count, at_us=now_us, horizon_us=asked.deadline_us,
        )  # fmt: skip


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Counts of prefetches."""

    issued: int
    useful: int
    on_time: int
    named: int  # their tenant asked for the prefix within the horizon
    placed: int  # and at the node

    @property
    def accuracy(self) -> float:
        """Of the issued, the share that was asked for at the node."""
        return self.useful / self.issued if self.issued else 0.0

    @property
    def timeliness(self) -> float:
        """Of the useful, the share that was there in time."""
        return self.on_time / self.useful if self.useful else 0.0

    @property
    def destination(self) -> float:
        """Of those whose prefix was foreseen rightly for their tenant, the share whose place was too."""
        return self.placed / self.named if self.named else 0.0


def score(issued: Iterable[Issued], landed: frozenset[int], served: Served, block_tokens: int) -> Score:
    """How right the prefetches were. `landed` are those of which blocks arrived; times are of the router's clock."""
    asking: dict[bytes, list[tuple[int, Outcome]]] = {}
    for outcome, chain in sorted(served, key=lambda row: row[0].arrival_us):
        for depth, name in enumerate(chain.block_hashes(0, chain.block_count), 1):
            asking.setdefault(name, []).append((depth, outcome))
    count = useful = on_time = named = placed = 0
    for one in issued:
        count += 1
        within = [outcome for depth, outcome in asking.get(one.name, ()) if depth == one.depth_blocks]
        within = [
            o for o in within if o.arrival_us + o.ttft_us > one.at_us and o.arrival_us <= one.at_us + one.horizon_us
        ]
        here = next((o for o in within if o.executor == one.node), None)
        own = [o for o in within if o.tenant_id == one.tenant_id]
        named += bool(own)
        placed += any(o.executor == one.node for o in own)
        if here is not None:
            useful += 1
            there = here.resident_tokens + here.routed_tokens >= one.depth_blocks * block_tokens
            on_time += there and one.prefetch_id in landed
    return Score(issued=count, useful=useful, on_time=on_time, named=named, placed=placed)
