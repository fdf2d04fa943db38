"""Route by round trip, uncached tokens and queue, with learned weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import STAYING, least, rows_of

US_PER_MS = 1_000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Gorgo(Selector):
    """argmin over nodes of rtt_weight * RTT_ms + uncached tokens + queue_weight * queued tokens; changes nothing.

    GORGO v3 (arXiv 2602.11688; repository atoniolo76/GORGO, gorgo/policies). RTT is the mean, from ingress to executor;
    queued tokens are prompt tokens dispatched and not completed, not discounted by hits. The weights are in tokens per
    ms and per token. Published: learned .276 and .5 (the default), start .5 and .1, searched in [.05, 2] x [.05, .5].
    It moves requests only; where ROUTE is not allowed a remote prefix counts as uncached. Ties go to the lowest node.
    """

    rtt_weight: float = 0.276
    queue_weight: float = 0.5

    def __post_init__(self) -> None:
        if self.rtt_weight < 0 or self.queue_weight < 0:
            raise ConfigError(f"gorgo weights are {self.rtt_weight} and {self.queue_weight}, expected >= 0")

    def select(self, table: QuoteTable) -> int:
        """The RESIDENT, ROUTE or RECOMPUTE row with the least score."""
        score = (
            self.rtt_weight * table.rtt_us / US_PER_MS + table.uncached_tokens + self.queue_weight * table.queued_tokens
        )
        return least(rows_of(table, *STAYING), score, table.executor, -table.resident_blocks, table.action)
