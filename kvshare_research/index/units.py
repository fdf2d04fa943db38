"""Ways to cut a prompt into the units that a cache shares, and hash chains over units of any length."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.nouns import HASH_BYTES, Chain

Tokens = NDArray[np.uint32]
UNIT_ROOT = bytes(HASH_BYTES)  # the parent of a first unit


def floored(chain: Chain, block_count: int) -> int:
    """The longest run of whole units within so many blocks; a chain that tells no units has its runs of one scope."""
    ends = chain.unit_ends or tuple(end for _, end in chain.scope_ends)
    at = bisect_right(ends, block_count)
    return ends[at - 1] if at else 0


def block_ends(token_count: int, unit_tokens: int) -> list[int]:
    """Ends of full blocks; a partial last block is no unit."""
    return list(range(unit_tokens, token_count + 1, unit_tokens))


def segment_ends(segment_tokens: Sequence[int]) -> list[int]:
    """Ends of the prompt's segments."""
    return list(accumulate(n for n in segment_tokens if n))


def sentence_ends(tokens: Tokens, enders: NDArray[np.uint32]) -> list[int]:
    """Ends of sentences: after a token of `enders` (stop, question and exclamation marks, line breaks) that no other
    such token follows, and at the end of the prompt."""
    is_end = np.isin(tokens, enders)
    last = is_end & ~np.append(is_end[1:], False)
    ends = (np.flatnonzero(last) + 1).tolist()
    return ends if not len(tokens) or (ends and ends[-1] == len(tokens)) else [*ends, len(tokens)]


def unit_hashes(key: bytes, tokens: Tokens, ends: Sequence[int], parent: bytes = UNIT_ROOT) -> list[bytes]:
    """One keyed BLAKE2b-128 per unit, chained: equal at i means equal tokens and cuts up to there, but for collisions.

    From the last hash it goes on at any unit.
    """
    start, hashes = 0, []
    for end in ends:
        unit = tokens[start:end].astype("<u4").tobytes()
        parent = hashlib.blake2b(parent + unit, key=key, digest_size=HASH_BYTES).digest()
        hashes.append(parent)
        start = end
    return hashes
