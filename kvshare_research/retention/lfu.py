"""Least frequently used: the block reused least often goes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from kvshare_research.core.ports import BlockView, Retention


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LfuRetention(Retention):
    """Keeps by number of uses; of equals the least recent goes first. An old favourite stays for ever."""

    ages: ClassVar[bool] = False

    def score(self, block: BlockView, now_us: int) -> float:
        return block.use_count + block.used_us * 1e-13  # times stay below 10^13 us, so they only break ties
