"""The coarse index: what `inner` knows, told in whole segments of a prompt, as a template-level cache would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from kvshare_research.core.nouns import Chain, Match, Run
from kvshare_research.core.ports import Index, IndexStore, Reads

from .units import floored


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentIndex(Index):
    """The runs of `inner`, cut back to ends of segments (system prompt, examples, documents), which count whole."""

    reads: ClassVar[Reads] = "segments"

    inner: Index

    def new_store(self, node_count: int) -> UnitStore:
        return UnitStore(self.inner.new_store(node_count))


@final
class UnitStore(IndexStore):
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
        """The inner answer, each run cut back to the last whole unit; runs cut to nothing are left out."""
        cut = ((run, floored(chain, run.block_count)) for run in self.inner.match(chain).runs)
        return Match(runs=tuple(Run(run.node, run.tier, whole) for run, whole in cut if whole))

    def rows(self, node: int) -> tuple[tuple[int, bytes, bytes | None, int], ...]:
        """As the inner store."""
        return self.inner.rows(node)

    def entry_count(self) -> int:
        """As the inner store."""
        return self.inner.entry_count()
