"""Greedy dual: a block is worth its recency plus what computing it again would cost, times its uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from kvshare_research.core.ports import BlockView, Retention


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GdsfRetention(Retention):
    """Keeps by last use plus uses times recompute time, in us of recency per us of compute (`worth`).

    GreedyDual-Size-Frequency (Cherkasova, HP Labs 1998-69) inflates a counter at each eviction; the clock stands in for
    it, which needs no state. All blocks have one size; a deeper one costs more to compute, by `depth_ratio` per block
    before it, since it attends to all of them.
    """

    worth: float
    depth_ratio: float

    ages: ClassVar[bool] = False

    def score(self, block: BlockView, now_us: int) -> float:
        cost_us = block.recompute_us * (1 + self.depth_ratio * block.depth)
        return block.used_us + self.worth * block.use_count * cost_us
