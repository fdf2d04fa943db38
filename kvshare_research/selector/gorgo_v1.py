"""GORGO's first version: stay, or go once to a peer priced without its queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import least, stays

US_PER_MS = 1_000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GorgoV1(Selector):
    """Serves at the ingress unless a peer is cheaper, where a peer's queue is not priced; changes nothing.

    GORGO v1 (arXiv 2602.11688 v1; repository gotoni), in tokens: local = q * t_p * running + t_p * queued + t_p *
    unmatched, peer = RTT + t_p * unmatched; the ingress keeps the request if local <= the least peer. Of the requests
    under way `running_max` count as running, the others as queued. t_p = .094 ms per token was fitted on 87 prompts.
    """

    prefill_ms_per_token: float = 0.094
    running_weight: float = 0.5
    running_max: int = 10

    def select(self, table: QuoteTable) -> int:
        """The ingress row, or the cheapest peer's."""
        rows = stays(table)
        t_p_us = self.prefill_ms_per_token * US_PER_MS
        peer = table.rtt_us + t_p_us * table.uncached_tokens
        away = rows[table.executor[rows] != table.ingress]
        home = rows[table.executor[rows] == table.ingress]
        if len(home) == 0 or len(away) == 0:
            return least(rows, peer, table.executor)
        running = min(1.0, self.running_max / max(1, int(table.queued_requests[home[0]])))
        tokens = int(table.queued_tokens[home[0]])
        local = t_p_us * (self.running_weight * running * tokens + (1 - running) * tokens)
        local += t_p_us * int(table.uncached_tokens[home[0]])
        best = least(away, peer, table.executor)
        return int(home[0]) if local <= peer[best] else best
