"""The better of two nodes drawn by chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import executors_of, mixed, stay


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PowerOfTwo(Selector):
    """Draws two different nodes and serves on the one with fewer requests under way; changes nothing.

    Mitzenmacher, "The power of two choices in randomized load balancing" (TPDS 2001). On a tie the first drawn.
    """

    def select(self, table: QuoteTable) -> int:
        """The row of the less busy of the two."""
        nodes = executors_of(table)
        first = mixed(table.draw) % len(nodes)
        second = (first + 1 + mixed(table.draw, 1) % max(1, len(nodes) - 1)) % len(nodes)
        rows = [stay(table, nodes[first]), stay(table, nodes[second])]
        return min(rows, key=lambda row: int(table.queued_requests[row]))
