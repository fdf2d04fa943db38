"""NVIDIA Dynamo's KV router: blocks to prefill plus blocks under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import drawn, least, stays


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoKv(Selector):
    """The least of uncached blocks of this prompt plus blocks of requests under way; changes nothing.

    Dynamo's default cost: `prefill_scale` * (prefill blocks - overlap credit) + decode blocks. The blocks under way are
    those of prompts dispatched and not completed, which is what Dynamo's router tracks; its ties are random, here drawn
    from the request. One tier, temperature 0.
    """

    prefill_scale: float = 1.0

    def select(self, table: QuoteTable) -> int:
        """The row with the least sum."""
        blocks = table.uncached_tokens / table.block_tokens
        cost = self.prefill_scale * blocks + table.queued_tokens / table.block_tokens
        return least(stays(table), cost, drawn(table))
