"""AIBrix's prefix router: the best match among nodes that are not overloaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import least, stays


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AibrixPrefix(Selector):
    """The best match among nodes with at most mean + `deviations` * sigma requests; changes nothing.

    AIBrix `prefix-cache`: if the requests under way differ by more than `imbalance_abs`, the node with the fewest; else
    the longest match among the others; without any match the node with the fewest.
    """

    imbalance_abs: int = 8
    deviations: float = 1.0

    def select(self, table: QuoteTable) -> int:
        """The row of that node."""
        rows = stays(table)
        requests = table.queued_requests[rows]
        if int(requests.max() - requests.min()) > self.imbalance_abs:
            return least(rows, table.queued_requests, table.executor)
        bound = float(np.mean(requests)) + self.deviations * float(np.std(requests))
        return least(rows[requests <= bound], table.uncached_tokens, table.queued_requests, table.executor)
