"""llm-d's default profile: weighted scores of prefix, queue and KV use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.nouns import Column, QuoteTable
from kvshare_research.core.ports import Selector

from .rows import Rows, drawn, least, stays


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LlmdProfile(Selector):
    """The largest weighted sum of three scores in [0, 1]; changes nothing.

    llm-d's inference scheduler with its precise-prefix guide's weights 2, 1, 1: matched share of the prompt; queue,
    (most - own) / (most - least) requests; KV use, here the tokens under way relative to the most of any node, since
    engines' own reports lag. Ties are broken by chance.
    """

    prefix_weight: float = 2.0
    queue_weight: float = 1.0
    kv_weight: float = 1.0

    def select(self, table: QuoteTable) -> int:
        """The row with the largest sum."""
        rows = stays(table)
        prefix = 1 - table.uncached_tokens / max(1, table.token_count)
        score = (
            self.prefix_weight * prefix
            + self.queue_weight * _rest(table.queued_requests, rows)
            + self.kv_weight * (1 - table.queued_tokens / max(1, int(table.queued_tokens[rows].max())))
        )
        return least(rows, -score, drawn(table))


def _rest(values: Column, rows: Rows) -> NDArray[np.float64]:
    """(most - own) / (most - least) over `rows`; 1 where all are alike."""
    low, high = int(values[rows].min()), int(values[rows].max())
    share: NDArray[np.float64] = (high - values) / (high - low) if high > low else np.ones(len(values))
    return share
