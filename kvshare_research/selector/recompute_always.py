"""Reuse nothing: the baseline that every saving is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import Action, QuoteTable
from kvshare_research.core.ports import Selector

from .rows import least, least_loaded_executor, rows_of


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeAlways(Selector):
    """Computes the whole prompt on the least loaded node; changes nothing.

    Least loaded is fewest waiting prompt tokens, then requests, then nearest to the client, then the lowest node. This
    is an engine without prefix caching behind a least-load balancer.
    """

    def select(self, table: QuoteTable) -> int:
        """The RECOMPUTE row of the least loaded executor."""
        return least(rows_of(table, Action.RECOMPUTE, executor=least_loaded_executor(table)))
