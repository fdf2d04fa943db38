"""A ring of nodes, entered at the session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import QuoteTable
from kvshare_research.core.ports import Selector

from .rows import executors_of, mixed, stay

_SESSION, _NODE = 1, 2  # so that a session and a node of one number are not at one place


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistentHash(Selector):
    """Serves a session on the node that follows it on a hash ring; changes nothing.

    SkyWalker-CH (arXiv 2505.24095) and the production stack's session router: `points` places per node, so that a lost
    node's sessions spread over all others and no other session moves.
    """

    points: int = 64

    def __post_init__(self) -> None:
        if self.points < 1:
            raise ConfigError(f"`points` is {self.points}, expected >= 1")

    def select(self, table: QuoteTable) -> int:
        """The row of the session's node."""
        at = mixed(table.session, _SESSION)
        ring = ((mixed(node, point, _NODE), node) for node in executors_of(table) for point in range(self.points))
        _, node = min(((place - at) % (1 << 64), node) for place, node in ring)
        return stay(table, node)
