"""Look-ahead LRU: what waiting requests will need is kept, the rest by last use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from kvshare_research.core.ports import QUEUE, BlockView, Retention

_FIRST = 1e15  # more than any time in us


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LookAheadRetention(Retention):
    """Blocks in the prompts of waiting requests stay longest, among them those of more requests; then LRU.

    PCR (arXiv 2603.23049): the queue tells the near future exactly. It reads the node's waiting requests only; those
    that were admitted have pinned what they use.
    """

    ages: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({QUEUE})

    def score(self, block: BlockView, now_us: int) -> float:
        return block.wanted * _FIRST + block.used_us
