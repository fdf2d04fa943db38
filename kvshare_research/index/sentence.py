"""An index of sentences: coarser than blocks, finer than segments, as caches that compare text by meaning cut it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from kvshare_research.core.ports import Index, Reads

from .segment import UnitStore


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceIndex(Index):
    """The runs of `inner`, cut back to ends of sentences; where a prompt's text is not known, to those of segments."""

    reads: ClassVar[Reads] = "sentences"

    inner: Index

    def new_store(self, node_count: int) -> UnitStore:
        return UnitStore(self.inner.new_store(node_count))
