"""What a disclosure can widen, and how: the tenant-scoped front of a prompt moves to the scope just before it.

A prefix is voted for under its *wider* name, the hash it would have once released; nothing stored is ever re-keyed.
Once a name is in the released set and every node keeps its blocks (`core/promotion.py`), requests that begin with that
prefix get chains whose front has the wider scope, and lookups walk the wider chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvshare_research.core.directory import Directory
from kvshare_research.core.foresight import front
from kvshare_research.core.nouns import Chain, Segment
from kvshare_research.core.rights import EVERYBODY, GROUP, TENANT

from .keys import KeyRing
from .namespace import ModelSpace, chain


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Prefixes of one prompt that could be shared as widely as `wider_id`: names, depths in blocks, shallow first.
    `chain` is the deepest one's, as it would be once released."""

    wider_id: int
    names: tuple[bytes, ...]
    blocks: tuple[int, ...]
    chain: Chain

    def prefix(self, name: bytes) -> Chain:
        """The chain that the prefix of this name has once released."""
        return front(self.chain, self.blocks[self.names.index(name)])

    def released_blocks(self, released: frozenset[bytes]) -> int:
        """Depth of the deepest released prefix; releasing one releases what it begins with. 0: none."""
        return max((b for n, b in zip(self.names, self.blocks, strict=True) if n in released), default=0)


def offer(
    tokens: NDArray[np.uint32],
    segments: Sequence[Segment],
    scope_ids: Sequence[int],
    *,
    directory: Directory,
    ring: KeyRing,
    space: ModelSpace,
) -> Offer | None:
    """The prompt's tenant-scoped front at the ends of its segments and at doubling depths, or None without one.

    The last segment's end is no template boundary, and at least one token stays private. User and session scopes are
    never offered. `segments` have the scopes asked for: text that the catalogue gives to a group is not offered, even
    if its tenant has left the group and has it in its own scope; nor is what follows it.
    """
    run = [i for i, s in enumerate(scope_ids) if directory.scopes[s].level == TENANT]
    groups = [i for i in run if directory.scopes[segments[i].scope_id].level == GROUP]
    run = [i for i in run if not groups or i < groups[0]]
    if not run:
        return None
    ends = np.cumsum([s.token_count for s in segments]).tolist()
    start = ends[run[0] - 1] if run[0] else 0
    size = space.block_tokens
    last = min(ends[run[-1]], len(tokens) - 1) // size
    depths = {ends[i] // size for i in run if i + 1 < len(segments)}
    depths |= {start // size + (1 << k) for k in range(max(0, last - start // size).bit_length())}
    blocks = tuple(sorted(d for d in depths if start < d * size <= last * size))
    if not blocks:
        return None
    wider = scope_ids[run[0] - 1] if run[0] else directory.scope_id(EVERYBODY)
    moved, ids = widened(segments, scope_ids, wider, blocks[-1] * size, directory)
    count = blocks[-1] * size
    inside = _cut(moved, count)
    hashed = chain(tokens[:count], inside, ids[: len(inside)], directory=directory, ring=ring, space=space)
    names = tuple(hashed.block_hash(b - 1) for b in blocks)
    return Offer(wider_id=wider, names=names, blocks=blocks, chain=hashed)


def widened(
    segments: Sequence[Segment], scope_ids: Sequence[int], wider_id: int, token_count: int, directory: Directory
) -> tuple[tuple[Segment, ...], tuple[int, ...]]:
    """Segments and scopes with the tenant-scoped part of the first `token_count` tokens moved to `wider_id`."""
    out: list[Segment] = []
    at = 0
    for segment, scope_id in zip(segments, scope_ids, strict=True):
        here = replace(segment, scope_id=scope_id)
        moved = moved_tokens(directory.scopes[scope_id].level, segment.token_count, token_count - at)
        at += segment.token_count
        if moved is None:
            out.append(here)
            continue
        out.append(replace(here, scope_id=wider_id, token_count=moved))
        if moved < segment.token_count:
            out.append(replace(here, token_count=segment.token_count - moved))
    return tuple(out), tuple(s.scope_id for s in out)


def moved_tokens(level: int, token_count: int, left: int) -> int | None:
    """How much of a segment moves, from its first token on, where `left` tokens of the front have not been passed;
    None: it stays as it is. So a prompt of any length is widened by induction (theorem PROMOTE-N in proofs/)."""
    if level != TENANT or left <= 0:
        return None
    return min(left, token_count)  # of an empty segment too: what follows it may move


def _cut(segments: Sequence[Segment], token_count: int) -> tuple[Segment, ...]:
    """The segments of the first `token_count` tokens."""
    out, left = [], token_count
    for segment in segments:
        if left <= 0:
            break
        out.append(replace(segment, token_count=min(left, segment.token_count)))
        left -= segment.token_count
    return tuple(out)
