"""Least recently used: the block nobody has touched for longest goes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from kvshare_research.core.ports import BlockView, Retention


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LruRetention(Retention):
    """Keeps by time of last use; of equal times the deeper block goes first, as vLLM frees tails before roots."""

    ages: ClassVar[bool] = False

    def score(self, block: BlockView, now_us: int) -> float:
        return block.used_us - block.depth * 1e-6
