"""Pull if moving is quicker than computing the same tokens: the threshold rule as it is usually written down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import deepest_pull, least_loaded_executor, stay


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NoteThreshold(Selector):
    """On the least loaded node: pull from the best holder iff KV bytes / bandwidth + RTT < prefill of the same tokens.

    The best holder is that of the longest run, the quickest of equals. The prefill of the same tokens is what the
    quoted prefill shrinks by when they are pulled. Strictly less: a tie computes. Without a PULL row (nobody holds
    more, or PULL is not allowed) it serves with what the node has. Changes nothing.
    """

    def select(self, table: QuoteTable) -> int:
        """The PULL row of the least loaded executor if it pays, else its RESIDENT, ROUTE or RECOMPUTE row."""
        executor = least_loaded_executor(table)
        staying = stay(table, executor)
        pull = deepest_pull(table, executor)
        if pull is None:
            return staying
        saved_us = table.prefill_us[staying] - table.prefill_us[pull]
        return pull if table.fetch_us[pull] < saved_us else staying
