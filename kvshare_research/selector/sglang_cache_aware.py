"""SGLang's router: the holder of the prefix, unless loads differ too much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import least, stays


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SglangCacheAware(Selector):
    """Balances when loads differ too much, else follows the cache; changes nothing.

    SGLang's `cache_aware` (SMG defaults): if max - min > `balance_abs` and max > `balance_rel` * min of the requests
    under way, the node with the fewest; else, if more than `cache_threshold` of the prompt is matched somewhere, the
    node with the longest match; else the node with the fewest requests. Its radix tree is approximate, our index exact.
    """

    cache_threshold: float = 0.5
    balance_abs: int = 32
    balance_rel: float = 1.1

    def select(self, table: QuoteTable) -> int:
        """The row of that node."""
        rows = stays(table)
        requests = table.queued_requests[rows]
        low, high = int(requests.min()), int(requests.max())
        balanced = high - low <= self.balance_abs or high <= self.balance_rel * low
        matched = table.token_count - int(table.uncached_tokens[rows].min())
        if balanced and matched > self.cache_threshold * table.token_count:
            return least(rows, table.uncached_tokens, table.queued_requests, table.executor)
        return least(rows, table.queued_requests, table.executor)
