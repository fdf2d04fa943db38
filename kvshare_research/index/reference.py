"""The executable specification of an index: dictionaries and a loop. Every other index is compared with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import Chain, Match, Run
from kvshare_research.core.ports import Index, IndexStore


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceIndex(Index):
    """An index that remembers everything it is told, exactly; cost of a lookup is nodes x tiers x blocks."""

    def new_store(self, node_count: int) -> ReferenceStore:
        return ReferenceStore(node_count)


@final
class ReferenceStore(IndexStore):
    """Copies per (node, tier, hash). A block's parent is what its first live announcement said.

    The hash of a block commits to its whole prefix, so its parent is a function of it: announcements that
    contradict each other are a publisher's bug, and the later one's parent is ignored.
    """

    def __init__(self, node_count: int) -> None:
        self.node_count = node_count
        self._copies: dict[tuple[int, int], dict[bytes, int]] = {}
        self._parents: dict[bytes, bytes | None] = {}
        self._holders: dict[bytes, int] = {}  # (node, tier) pairs holding a hash: when none is left, forget its parent

    def store(self, node: int, tier: int, parent: bytes | None, hashes: Sequence[bytes]) -> None:
        """One more copy of each hash is on (node, tier); raises IndexError if there is no such node."""
        self._check(node)
        held = self._copies.setdefault((node, tier), {})
        for block in hashes:
            self._parents.setdefault(block, parent)
            if block not in held:
                self._holders[block] = self._holders.get(block, 0) + 1
            held[block] = held.get(block, 0) + 1
            parent = block

    def remove(self, node: int, tier: int, hashes: Sequence[bytes]) -> int:
        """One copy fewer of each; returns how many were unknown there."""
        self._check(node)
        held = self._copies.get((node, tier), {})
        unknown = 0
        for block in hashes:
            if block not in held:
                unknown += 1
            elif held[block] > 1:
                held[block] -= 1
            else:
                self._drop(held, block)
        return unknown

    def clear(self, node: int, tier: int | None) -> None:
        """Nothing is left on the node (in the tier, or anywhere)."""
        self._check(node)
        for (n, t), held in self._copies.items():
            if n == node and tier in (None, t):
                for block in tuple(held):
                    self._drop(held, block)

    def match(self, chain: Chain) -> Match:
        """Longest run without a hole from the first block, per (node, tier), sorted; changes nothing."""
        blocks = chain.block_hashes(0, chain.block_count)
        runs = []
        for (node, tier), held in sorted(self._copies.items()):
            depth = 0
            while depth < len(blocks) and blocks[depth] in held:
                depth += 1
            if depth:
                runs.append(Run(node=node, tier=tier, block_count=depth))
        return Match(runs=tuple(runs))

    def rows(self, node: int) -> tuple[tuple[int, bytes, bytes | None, int], ...]:
        """(tier, hash, parent, copies) of a node, sorted by tier and hash."""
        self._check(node)
        return tuple(
            (tier, block, self._parents[block], copies)
            for (n, tier), held in sorted(self._copies.items())
            if n == node
            for block, copies in sorted(held.items())
        )

    def entry_count(self) -> int:
        """Distinct (hash, node, tier) entries."""
        return sum(len(held) for held in self._copies.values())

    def _check(self, node: int) -> None:
        if not 0 <= node < self.node_count:
            raise IndexError(f"node {node} of an index of {self.node_count} nodes")

    def _drop(self, held: dict[bytes, int], block: bytes) -> None:
        del held[block]
        self._holders[block] -= 1
        if not self._holders[block]:
            del self._holders[block], self._parents[block]
