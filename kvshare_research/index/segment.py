"""The coarse index: what `inner` knows, told in whole segments of a prompt, as a template-level cache would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from kvshare_research.core.nouns import Chain, Match, Run
from kvshare_research.core.ports import Index, Reads

from .over import StoreOver
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
class UnitStore(StoreOver):
    """Holds what the inner store holds; only its answers are coarser."""

    def match(self, chain: Chain) -> Match:
        """The inner answer, each run cut back to the last whole unit; runs cut to nothing are left out."""
        cut = ((run, floored(chain, run.block_count)) for run in self.inner.match(chain).runs)
        return Match(runs=tuple(Run(run.node, run.tier, whole) for run, whole in cut if whole))
