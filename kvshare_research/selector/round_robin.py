"""One node after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import executors_of, stay

COUNTER_MASK = 0xFFFFFFFF  # a request id is (router incarnation << 32) + counter


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRobin(Selector):
    """Serves on the nodes in turn, with what they hold; changes nothing.

    The turn is the counter in the request id: with all nodes alive each gets every n-th request.
    """

    def select(self, table: QuoteTable) -> int:
        """The row of the node whose turn it is."""
        nodes = executors_of(table)
        return stay(table, nodes[(table.draw & COUNTER_MASK) % len(nodes)])
