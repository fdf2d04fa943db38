"""Preble's E2: exploit a long match, else explore where the work ends first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import least, stays


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PrebleE2(Selector):
    """Exploits when more of the prompt is cached somewhere than not, else explores; changes nothing.

    Preble (arXiv 2407.00023): if cached > missed tokens, the least loaded of the nodes with the longest match; else the
    least of load L plus this prompt's prefill P, both predicted. Its eviction cost M and rebalancing are left out: a
    router does not know a node's next victims.
    """

    def select(self, table: QuoteTable) -> int:
        """The row of that node."""
        rows = stays(table)
        missed = int(table.uncached_tokens[rows].min())
        if table.token_count - missed > missed:
            rows = rows[table.uncached_tokens[rows] == missed]
            return least(rows, table.queue_us, table.executor)
        return least(rows, table.queue_us + table.prefill_us, table.executor)
