"""Heavy hitters: the blocks that attention looks at most stay, beside a window of recent ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from kvshare_research.core.ports import ATTENTION, BlockView, Retention

_RECENT = 1e15  # more than any mass
_PER_US = 1e-13  # times stay below 10^13 us, so that they only break ties


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class H2oRetention(Retention):
    """Keeps what was used within `recent_us`, then by accumulated attention mass, then by last use.

    H2O (arXiv 2306.14048, Algorithm 1) drops single keys of one request by their accumulated attention, and then
    attends to fewer: lossy. Here the same score decides which whole blocks stay cached; attention still sees all of
    every prompt, so answers do not change. The engine reports the mass (`engine.attention_rows`), per block, averaged
    over layers and heads, of the last rows of each prefilled stretch; what a block had on another node stays there.
    """

    recent_us: int

    ages: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({ATTENTION})

    def score(self, block: BlockView, now_us: int) -> float:
        recent = _RECENT if now_us - block.used_us < self.recent_us else 0.0
        return recent + block.attention + block.used_us * _PER_US
