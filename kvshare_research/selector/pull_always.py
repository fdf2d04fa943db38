"""Pull whatever is held elsewhere, at any price: what a fetch costs is measured with it, never saved by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import deepest_pull, least_loaded_executor, stay


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PullAlways(Selector):
    """On the least loaded node: pull from the holder of the longest run, else serve with what the node has.

    Blind to network and queue, as connectors without a cost model are (vLLM's KV connectors fetch on every hit).
    Probes use it on a pinned executor. Changes nothing.
    """

    def select(self, table: QuoteTable) -> int:
        """The deepest PULL row of the least loaded executor, else its RESIDENT, ROUTE or RECOMPUTE row."""
        executor = least_loaded_executor(table)
        pull = deepest_pull(table, executor)
        return stay(table, executor) if pull is None else pull
