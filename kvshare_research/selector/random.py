"""Any node, by chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import executors_of, mixed, stay


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Random(Selector):
    """Serves on a node drawn uniformly, with what it holds; changes nothing.

    Chance comes from the request id, so that equal requests give equal choices.
    """

    def select(self, table: QuoteTable) -> int:
        """The row of the drawn node."""
        nodes = executors_of(table)
        return stay(table, nodes[mixed(table.draw) % len(nodes)])
