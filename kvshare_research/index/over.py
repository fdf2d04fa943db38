"""A store over another one: knows what the inner store knows, and says more, or less, of it."""

from __future__ import annotations

from collections.abc import Sequence

from kvshare_research.core.nouns import Chain, Match
from kvshare_research.core.ports import IndexStore


class StoreOver(IndexStore):
    """Holds and answers what the inner store does; what differs is for those that extend it."""

    def __init__(self, inner: IndexStore) -> None:
        self.inner = inner

    @property
    def forgets(self) -> bool:
        """As the inner store."""
        return self.inner.forgets

    def store(self, node: int, tier: int, parent: bytes | None, hashes: Sequence[bytes]) -> None:
        """As the inner store."""
        self.inner.store(node, tier, parent, hashes)

    def remove(self, node: int, tier: int, hashes: Sequence[bytes]) -> int:
        """As the inner store."""
        return self.inner.remove(node, tier, hashes)

    def clear(self, node: int, tier: int | None) -> None:
        """As the inner store."""
        self.inner.clear(node, tier)

    def match(self, chain: Chain) -> Match:
        """As the inner store."""
        return self.inner.match(chain)

    def rows(self, node: int) -> tuple[tuple[int, bytes, bytes | None, int], ...]:
        """As the inner store."""
        return self.inner.rows(node)

    def entry_count(self) -> int:
        """As the inner store."""
        return self.inner.entry_count()
