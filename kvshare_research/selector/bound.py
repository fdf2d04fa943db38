"""What no policy can beat: for comparison only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import cheapest


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Bound(Selector):
    """Stands for a relaxed fleet: no queue, no distance, every block that somebody has asked for at hand.

    In virtual time requests are served by `driver/relaxed.py` and this decides nothing; on a table it takes the row of
    least quoted TTFT. Changes nothing.
    """

    @property
    def least_at_permille(self) -> int:
        return 0

    def select(self, table: QuoteTable) -> int:
        """The row of least quoted TTFT."""
        return cheapest(table)
