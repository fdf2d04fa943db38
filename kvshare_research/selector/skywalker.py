"""SkyWalker: at home while home has no queue, else to a node without one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import least, stays


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Skywalker(Selector):
    """Serves at the ingress if nothing waits there, else on a free node by prefix; changes nothing.

    SkyWalker (arXiv 2505.24095), selective pushing with prefix tries: a node is available if nothing is pending on it;
    a region forwards only when its own nodes are not, to the available one with the longest match, the nearest of
    equals. Where none is, its balancer would hold the request; here it waits at the ingress.
    """

    def select(self, table: QuoteTable) -> int:
        """The ingress row, or that of a free node."""
        rows = stays(table)
        home = rows[table.executor[rows] == table.ingress]
        free = rows[table.queue_us[rows] == 0]
        if len(free) and table.ingress not in table.executor[free]:
            return least(free, table.uncached_tokens, table.rtt_us, table.executor)
        return int(home[0]) if len(home) else least(rows, table.queue_us, table.executor)
