"""First in, first out: the block stored longest ago goes first, used or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from kvshare_research.core.ports import BlockView, Retention


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FifoRetention(Retention):
    """Keeps by time of storing; the baseline that ignores use."""

    ages: ClassVar[bool] = False

    def score(self, block: BlockView, now_us: int) -> float:
        return block.stored_us - block.depth * 1e-6
