"""Whatever is quoted to answer first, among all ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import cheapest


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cheapest(Selector):
    """The row of least quoted TTFT: route, pull from one or many, split or compute, in one comparison; changes nothing.

    Ties go to the fewest bytes moved, then action, executor and source (`core.costing.better`), so computing wins its
    ties and the order of rows does not matter. This is the project's own selector; `actions` restricts what is quoted.
    """

    def select(self, table: QuoteTable) -> int:
        """The best row under `core.costing.better`."""
        return cheapest(table)
