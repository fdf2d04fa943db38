"""Balance load and reuse only what happens to be there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import least_loaded_executor, stay


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLoaded(Selector):
    """Serves on the least loaded node with the prefix this node holds, if any; changes nothing.

    Least loaded is fewest waiting prompt tokens, then requests, then nearest to the client, then the lowest node: the
    least-load baseline of GORGO (arXiv 2602.11688, evaluation) over engines with a local prefix cache. Where neither
    RESIDENT nor ROUTE is allowed it computes.
    """

    def select(self, table: QuoteTable) -> int:
        """The RESIDENT or ROUTE row of the least loaded executor, else its RECOMPUTE row."""
        return stay(table, least_loaded_executor(table))
