"""Belady's oracle: the block that is asked for last goes first. For comparison in the simulator only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from kvshare_research.core.ports import FUTURE, QUEUE, BlockView, Retention

_WANTED = 1e16  # beyond any time in us


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BeladyRetention(Retention):
    """Keeps by time of next use, soonest longest; what a waiting request wants is needed now (Belady, IBM Systems
    Journal 5(2), 1966). It knows all arrivals beforehand, which only a simulation can.

    Optimal for single blocks of equal cost on one node. Requests take several at once and nodes are chosen by load, so
    on a fleet it is a strong bound in practice and no proof of one.
    """

    ages: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({QUEUE, FUTURE})

    def score(self, block: BlockView, now_us: int) -> float:
        if block.wanted:
            return _WANTED
        return float("-inf") if block.next_use_us is None else -float(block.next_use_us)
