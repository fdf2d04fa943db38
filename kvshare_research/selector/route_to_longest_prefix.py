"""Go where the longest prefix is, whatever the distance and the queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import Action, QuoteTable
from kvshare_research.core.ports import Selector

from .rows import least, least_loaded_executor, rows_of, stay


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RouteToLongestPrefix(Selector):
    """Serves on the node with the longest usable run; changes nothing.

    Equal runs go to the fewest waiting prompt tokens, then requests, then nearest to the client, then the lowest node.
    When nobody holds anything, or RESIDENT and ROUTE are not allowed, the least loaded node computes. This is the
    prefix-cache-aware routing of SGLang's router and AIBrix without their imbalance guard, the `prefix-cache` baseline
    of GORGO (arXiv 2602.11688, evaluation); never moves bytes.
    """

    def select(self, table: QuoteTable) -> int:
        """The RESIDENT or ROUTE row with the most resident blocks, else what the least loaded executor has."""
        rows = rows_of(table, Action.RESIDENT, Action.ROUTE)
        if len(rows) == 0:
            return stay(table, least_loaded_executor(table))
        return least(
            rows, -table.resident_blocks, table.queued_tokens, table.queued_requests, table.rtt_us, table.executor
        )
