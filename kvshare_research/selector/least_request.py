"""The node with the fewest requests under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import drawn, least, stays


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LeastRequest(Selector):
    """Serves on the node with the fewest requests dispatched and not completed; changes nothing.

    GORGO's and AIBrix's least-request baseline. It counts requests, whatever their length; ties are broken by chance.
    """

    def select(self, table: QuoteTable) -> int:
        """The row of the node with the fewest requests."""
        return least(stays(table), table.queued_requests, drawn(table))
