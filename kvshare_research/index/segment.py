"""The coarse index: what `inner` knows, told in whole stretches of one scope, as a template-level cache would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from kvshare_research.core.nouns import Chain, Match, Run
from kvshare_research.core.ports import Index, IndexStore


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentIndex(Index):
    """The runs of `inner`, floored to the ends of the prompt's scope stretches: these count whole or not."""

    inner: Index

    def new_store(self, node_count: int) -> SegmentStore:
        return SegmentStore(self.inner.new_store(node_count))

    def floor(self, chain: Chain, block_count: int) -> int:
        """The longest run of whole stretches within so many blocks."""
        return max((end for _, end in chain.scope_ends if end <= block_count), default=0)


@final
class SegmentStore(IndexStore):
    """Holds what the inner store holds; only its answers are coarser."""

    def __init__(self, inner: IndexStore) -> None:
        self.inner = inner

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
        """The inner answer, each run cut back to the last whole stretch; runs cut to nothing are left out."""
        ends = [end for _, end in chain.scope_ends]
        runs = []
        for run in self.inner.match(chain).runs:
            whole = max((end for end in ends if end <= run.block_count), default=0)
            if whole:
                runs.append(Run(run.node, run.tier, whole))
        return Match(runs=tuple(runs))

    def rows(self, node: int) -> tuple[tuple[int, bytes, bytes | None, int], ...]:
        """As the inner store."""
        return self.inner.rows(node)

    def entry_count(self) -> int:
        """As the inner store."""
        return self.inner.entry_count()
