"""The fast index: a global hash table in flat arrays (`kernels.py`), or dictionaries (`plain.py`) without Numba."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Chain, Match
from kvshare_research.core.ports import Index, IndexStore
from kvshare_research.core.runs import RunTable

if TYPE_CHECKING:
    from .plain import PlainStore

Keys = NDArray[np.uint64]  # one row of two words per block hash
GROWTH = 1.25  # of the rows of blocks: little room is wasted, and a large array grows without being copied


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FlatIndex(Index):
    """An exact index whose lookup cost grows with the logarithm of the prompt, not with its length.

    `blocks_max` bounds its memory: when it is full, a new block displaces a block at the end of some chain, on all
    nodes; roots stay, and a block for which no tail can go is refused. A forgotten block costs a hit, nothing else.
    `compiled` None compiles if Numba is installed. Closure is our addition to galloping over holder masks.
    """

    blocks_max: int | None = None
    compiled: bool | None = None

    def __post_init__(self) -> None:
        if self.blocks_max is not None and self.blocks_max < 2:
            raise ConfigError(f"index.blocks_max is `{self.blocks_max}`, expected null or at least 2")
        if self.compiled and importlib.util.find_spec("numba") is None:
            raise ConfigError("index.compiled is `true`, but Numba is not installed; expected null or false")

    def new_store(self, node_count: int) -> FlatStore | PlainStore:
        compiled = importlib.util.find_spec("numba") is not None if self.compiled is None else self.compiled
        if compiled:
            return FlatStore(node_count, self.blocks_max)
        from .plain import PlainStore

        return PlainStore(node_count, self.blocks_max)


@final
class FlatStore(IndexStore):
    """Who holds what, in arrays. The `_keys` methods take and give arrays and are what a hot path should call.

    Any number of nodes; tiers appear as they are named. The hash of a block is taken to determine its parent:
    an announcement that contradicts an earlier one is counted, and the first parent kept.
    """

    def __init__(self, node_count: int, blocks_max: int | None = None) -> None:
        from . import kernels, table

        self._k, self._t = kernels, table
        self.node_count = node_count
        self.tier_count = 1
        self._tier_words = (node_count + 63) // 64
        self._blocks_max = blocks_max or 0
        self._tables = table.Tables(
            slots=np.zeros(64, np.uint64),
            rows=np.zeros((64, table.KEY_WORDS + 2 * self._tier_words), np.uint64),
            links=np.zeros((64, 4), np.int32),
            meta=np.zeros(table.META_SIZE, np.int64),
            unrooted=np.zeros(self.column_count, np.int64),
            extra=np.zeros((16, 2), np.uint64),
        )
        self._tables.rows[0, table.KEY_WORDS :] = ~np.uint64(0)  # what is before the first block is held by all
        self._tables.meta[table.NEXT_ID] = 1

    @property
    def column_count(self) -> int:
        """Length of an answer: column (tier * words + node // 64) * 64 + node % 64 is one (tier, node)."""
        return self.tier_count * self._tier_words * 64

    @property
    def forgets(self) -> bool:
        """Whether it is bounded."""
        return self._blocks_max > 0

    @property
    def size_bytes(self) -> int:
        """Memory of all tables."""
        return sum(table.nbytes for table in self._tables)

    @property
    def counters(self) -> dict[str, int]:
        """Blocks known, dropped for want of room, refused for want of a tail to drop, and contradictory parents."""
        t, meta = self._t, self._tables.meta
        names = {"blocks": t.LIVE, "dropped": t.DROPPED, "refused": t.REFUSED, "contradictions": t.CONTRADICTIONS}
        return {name: int(meta[at]) for name, at in names.items()}

    # ------------------------------------------------------------- the contract
    def store(self, node: int, tier: int, parent: bytes | None, hashes: Sequence[bytes]) -> None:
        """One more copy of each hash is on (node, tier); raises IndexError if there is no such node or tier."""
        given = hashes if parent is None else (parent, *hashes)
        self.store_keys(node, tier, parent is not None, keys_of(b"".join(given)))

    def remove(self, node: int, tier: int, hashes: Sequence[bytes]) -> int:
        """One copy fewer of each; returns how many were unknown there."""
        return self.remove_keys(node, tier, keys_of(b"".join(hashes)))

    def clear(self, node: int, tier: int | None) -> None:
        """Nothing is left on the node (in the tier, or anywhere)."""
        for t in range(self.tier_count) if tier is None else (tier,):
            column = self._column(node, t)
            self._k.clear(self._tables, column)

    def match(self, chain: Chain) -> Match:
        """Longest run from the first block, per (node, tier), sorted; changes nothing."""
        depths = np.empty(self.column_count, np.int32)
        runs = np.empty((self.column_count, 3), np.int64)
        slots, rows = self._tables[:2]
        count, longest = self._k.match_runs(slots, rows, keys_of(chain.hashes), depths, self.tier_count, runs)
        return Match(runs=RunTable(runs[:count], longest))

    def rows(self, node: int) -> tuple[tuple[int, bytes, bytes | None, int], ...]:
        """(tier, hash, parent, copies) of a node, sorted by tier and hash."""
        found, tables, at = [], self._tables, self._t
        extra = {int(key): int(count) for key, count in tables.extra if key} if tables.meta[at.EXTRAS] else {}
        for tier in range(self.tier_count):
            column = self._column(node, tier)
            word = at.KEY_WORDS + self.tier_count * self._tier_words + (column >> 6)
            held = (tables.rows[: tables.meta[at.NEXT_ID], word] >> np.uint64(column & 63)) & np.uint64(1)
            for block in (np.flatnonzero(held[1:]) + 1).tolist():
                above = int(tables.links[block, at.PARENT])
                parent = tables.rows[above, :2].tobytes() if above > 0 else None
                copies = 1 + extra.get(block << 20 | column, 0)
                found.append((tier, tables.rows[block, :2].tobytes(), parent, copies))
        return tuple(sorted(found))

    def entry_count(self) -> int:
        """Distinct (hash, node, tier) entries."""
        return int(self._tables.meta[self._t.ENTRIES])

    # ------------------------------------------------------------- the same on arrays
    def store_keys(self, node: int, tier: int, has_parent: bool, keys: Keys) -> None:
        """As `store`; `keys[0]` is the parent if `has_parent`, and is not stored itself."""
        column = self._column(node, tier)
        if len(keys) == has_parent:
            return
        self._reserve(len(keys))
        done = 0
        while done < len(keys):
            done = self._k.store(self._tables, self._blocks_max, column, has_parent, keys, done)
            if done < len(keys):  # `extra` is full
                more = np.zeros((2 * len(self._tables.extra), 2), np.uint64)
                self._t.rehash_extra(self._tables.extra, more)
                self._tables = self._tables._replace(extra=more)

    def remove_keys(self, node: int, tier: int, keys: Keys) -> int:
        """As `remove`."""
        return int(self._k.remove(self._tables, self._column(node, tier), keys))

    def match_keys(self, keys: Keys, depths: NDArray[np.int32] | None = None) -> NDArray[np.int32]:
        """Run length per column, 0 where there is none; in `depths` if given. Changes nothing else."""
        if depths is None:
            depths = np.empty(self.column_count, np.int32)
        self._k.match(self._tables.slots, self._tables.rows, keys, depths)
        return depths

    def match_many_keys(
        self, keys: Keys, offsets: NDArray[np.int64], depths: NDArray[np.int32] | None = None
    ) -> NDArray[np.int32]:
        """Row i: the answer for `keys[offsets[i]:offsets[i + 1]]`."""
        if depths is None:
            depths = np.empty((len(offsets) - 1, self.column_count), np.int32)
        self._k.match_many(self._tables.slots, self._tables.rows, keys, offsets, depths)
        return depths

    # ------------------------------------------------------------- room
    def _column(self, node: int, tier: int) -> int:
        if not 0 <= node < self.node_count or not 0 <= tier < 64:
            raise IndexError(f"node {node}, tier {tier} of an index of {self.node_count} nodes")
        while tier >= self.tier_count:
            self._add_tier()
        return (tier * self._tier_words + (node >> 6)) * 64 + (node & 63)

    def _add_tier(self) -> None:
        """Masks get room for one more tier, after the words of the tiers so far."""
        old, more, first = self._tables.rows, self._tier_words, self._t.KEY_WORDS
        words = self.tier_count * more
        closed, raw = first + words, first + 2 * words
        rows = np.zeros((len(old), raw + 2 * more), np.uint64)
        rows[:, :closed] = old[:, :closed]
        rows[:, closed + more : raw + more] = old[:, closed:raw]
        rows[0, first:] = ~np.uint64(0)
        self.tier_count += 1
        unrooted = np.concatenate([self._tables.unrooted, np.zeros(more * 64, np.int64)])
        self._tables = self._tables._replace(rows=rows, unrooted=unrooted)

    def _reserve(self, block_count: int) -> None:
        """There is room for so many more blocks."""
        slots, rows, links, meta = self._tables[:4]
        live = int(meta[self._t.LIVE]) + block_count
        if live * 10 > len(slots) * 7:
            more = np.zeros(1 << (live * 10 // 7).bit_length(), np.uint64)
            self._t.rehash(slots, more)
            self._tables = self._tables._replace(slots=more)
        need = int(meta[self._t.NEXT_ID]) + block_count
        if need > len(rows):
            size = max(need, int(len(rows) * GROWTH))
            if size > 1 << 31:
                raise MemoryError("an index of more than 2^31 blocks")
            rows.resize((size, rows.shape[1]), refcheck=False)  # in place: no second copy while it grows
            links.resize((size, 4), refcheck=False)


def keys_of(hashes: bytes) -> Keys:
    """Block hashes, 16 bytes each, as rows of two words; shares their memory."""
    keys: Any = np.frombuffer(hashes, np.uint64)
    return keys.reshape(-1, 2)  # type: ignore[no-any-return]
