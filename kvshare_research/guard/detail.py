"""What some indexes read of a prompt beside its block hashes: where its units end, or keyed names of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.ports import Reads
from kvshare_research.index.units import segment_ends, sentence_ends

Tokens = NDArray[np.uint32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """How much a chain tells, and the tokens that end a sentence (none: only segments do)."""

    reads: Reads = "blocks"
    enders: Tokens = field(default_factory=lambda: np.empty(0, np.uint32))

    def unit_ends(self, tokens: Tokens, segment_tokens: Sequence[int], block_tokens: int) -> tuple[int, ...]:
        """`Chain.unit_ends`: the ends of segments, and of sentences where they are read, in whole blocks."""
        if self.reads not in ("segments", "sentences"):
            return ()
        ends = set(segment_ends(segment_tokens))
        if self.reads == "sentences":
            ends |= set(sentence_ends(tokens, self.enders))
        return tuple(sorted({end // block_tokens for end in ends} - {0}))
