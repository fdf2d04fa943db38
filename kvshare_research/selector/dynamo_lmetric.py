"""Dynamo's alternative metric: blocks to prefill times blocks under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import drawn, least, stays


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoLmetric(Selector):
    """The least product of uncached blocks and one plus the blocks under way; changes nothing.

    Dynamo's `lmetric` (also in SMG): adjusted prefill * (decode blocks + 1). A full hit costs nothing anywhere, however
    long the queue. Ties are drawn from the request.
    """

    def select(self, table: QuoteTable) -> int:
        """The row with the least product."""
        product = table.uncached_tokens * (table.queued_tokens + table.block_tokens)
        return least(stays(table), product, drawn(table))
