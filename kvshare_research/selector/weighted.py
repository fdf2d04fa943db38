"""The quoted time with a weight on each of its parts, and a price for joining others."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import final

import numpy as np

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import least


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Weighted(Selector):
    """The least weighted sum of route, queue, fetch, prefill and requests under way, among all ways; changes nothing.

    Our own. With all weights 1 and `request_ms` 0 it minimises the quoted TTFT, as `cheapest` does. A `prefill_weight`
    above 1 charges a request for the time that it keeps others waiting, and `request_ms` for slowing those that decode
    beside it, which its own TTFT does not tell. What overlaps counts once, at the smaller weight of queue and fetch.
    """

    route_weight: float = 1.0
    queue_weight: float = 1.0
    fetch_weight: float = 1.0
    prefill_weight: float = 1.5
    request_ms: float = 10.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise ConfigError(f"`{field.name}` is {getattr(self, field.name)}, expected >= 0")

    def select(self, table: QuoteTable) -> int:
        """The row with the least sum; ties go to the fewest bytes, then action, executor and source."""
        score = (
            self.route_weight * table.route_us
            + self.queue_weight * table.queue_us
            + self.fetch_weight * table.fetch_us
            + self.prefill_weight * table.prefill_us
            - min(self.queue_weight, self.fetch_weight) * table.overlap_us
            + table.merge_us
            + self.request_ms * 1_000 * table.queued_requests
        )
        rows = np.arange(len(table))
        return least(rows, score, table.transfer_bytes, table.action, table.executor, table.source, table.front_blocks)
