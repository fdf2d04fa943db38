"""The production stack's load-aware router: the cached share of the prompt, less the load above the mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import least, stays


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProdstackLoadaware(Selector):
    """The largest matched / prompt - `beta` * (load - mean load) / max(1, mean load); changes nothing.

    vLLM production stack, `loadaware` (pull request 1035); load is the requests under way, the mean that of all nodes.
    Ties go to the lowest node.
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        if self.beta < 0:
            raise ConfigError(f"`beta` is {self.beta}, expected >= 0")

    def select(self, table: QuoteTable) -> int:
        """The row of that node."""
        rows = stays(table)
        mean = float(table.queued_requests[rows].mean())
        matched = 1 - table.uncached_tokens / max(1, table.token_count)
        score = matched - self.beta * (table.queued_requests - mean) / max(1.0, mean)
        return least(rows, -score, table.executor)
