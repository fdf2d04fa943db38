"""The flat index without compilation: the same masks closed under ancestors, as Python integers in one dictionary."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import final

import numpy as np

from kvshare_research.core.nouns import Chain, Match
from kvshare_research.core.ports import IndexStore
from kvshare_research.core.runs import RunTable


class _Block:
    """Who holds a block (`raw`), who holds it and all its ancestors (`closed`), and where it hangs."""

    __slots__ = ("children", "closed", "key", "parent", "raw", "rooted")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.raw = self.closed = 0
        self.parent: _Block | None = None
        self.rooted = False  # whether it is known to be a first block
        self.children: dict[bytes, _Block] = {}

    @property
    def above(self) -> int:
        """Who holds all its ancestors."""
        return -1 if self.rooted else self.parent.closed if self.parent else 0


@final
class PlainStore(IndexStore):
    """Answers as `FlatStore` does; when full, which tail goes first may differ. Bit tier * nodes + node is a column."""

    def __init__(self, node_count: int, blocks_max: int | None = None) -> None:
        self.node_count = node_count
        self._blocks_max = blocks_max or 0
        self._blocks: OrderedDict[bytes, _Block] = OrderedDict()  # in the order in which tails are looked for
        self._extra: dict[tuple[bytes, int], int] = {}  # copies beyond the first
        self._tier_count = 1
        self.counters = {"dropped": 0, "refused": 0, "contradictions": 0}

    @property
    def forgets(self) -> bool:
        """Whether it is bounded."""
        return self._blocks_max > 0

    def store(self, node: int, tier: int, parent: bytes | None, hashes: Sequence[bytes]) -> None:
        """One more copy of each hash is on (node, tier); raises IndexError if there is no such node or tier."""
        column = self._column(node, tier)
        self._tier_count = max(self._tier_count, tier + 1)
        above = self._block(parent, None) if parent is not None else None
        if parent is not None and above is None:
            self.counters["refused"] += len(hashes)
            return
        for at, key in enumerate(hashes):
            block = self._block(key, above)
            if block is None:
                self.counters["refused"] += len(hashes) - at
                return
            self._hang(block, above)
            bit = 1 << column
            if block.raw & bit:
                self._extra[key, column] = self._extra.get((key, column), 0) + 1
            else:
                block.raw |= bit
                self._settle(block)
            above = block

    def remove(self, node: int, tier: int, hashes: Sequence[bytes]) -> int:
        """One copy fewer of each; returns how many were unknown there."""
        column = self._column(node, tier)
        unknown = 0
        for key in hashes:
            block, extra = self._blocks.get(key), self._extra.get((key, column), 0)
            if block is None or not block.raw >> column & 1:
                unknown += 1
            elif extra > 1:
                self._extra[key, column] = extra - 1
            elif extra:
                del self._extra[key, column]
            else:
                self._lose(block, 1 << column)
                self._reap(block, None)
        return unknown

    def clear(self, node: int, tier: int | None) -> None:
        """Nothing is left on the node (in the tier, or anywhere)."""
        lost = 0
        for t in range(self._tier_count) if tier is None else (tier,):
            lost |= 1 << self._column(node, t)
        self._extra = {k: c for k, c in self._extra.items() if not lost >> k[1] & 1}
        for block in tuple(self._blocks.values()):
            block.raw &= ~lost
            block.closed &= ~lost
        for block in tuple(self._blocks.values()):
            self._reap(block, None)

    def match(self, chain: Chain) -> Match:
        """Longest run from the first block, per (node, tier), sorted; changes nothing."""
        depths = np.zeros(self._tier_count * self.node_count, np.int64)
        for mask, depth in self._ends(chain):
            held = np.frombuffer(mask.to_bytes((len(depths) + 7) // 8, "little"), np.uint8)
            depths[np.unpackbits(held, count=len(depths), bitorder="little") == 1] = depth
        by_node = depths.reshape(self._tier_count, self.node_count).T
        nodes, tiers = np.nonzero(by_node)
        runs = np.stack([nodes, tiers, by_node[nodes, tiers]], axis=1).astype(np.int64)
        return Match(runs=RunTable(runs, int(runs[:, 2].max(initial=0))))

    def rows(self, node: int) -> tuple[tuple[int, bytes, bytes | None, int], ...]:
        """(tier, hash, parent, copies) of a node, sorted by tier and hash."""
        found = []
        for tier in range(self._tier_count):
            column = self._column(node, tier)
            for key, block in self._blocks.items():
                if block.raw >> column & 1:
                    parent = block.parent.key if block.parent else None
                    found.append((tier, key, parent, 1 + self._extra.get((key, column), 0)))
        return tuple(sorted(found))

    def entry_count(self) -> int:
        """Distinct (hash, node, tier) entries."""
        return sum(block.raw.bit_count() for block in self._blocks.values())

    # ------------------------------------------------------------- lookup
    def _closed(self, key: bytes) -> int:
        block = self._blocks.get(key)
        return block.closed if block else 0

    def _ends(self, chain: Chain) -> Iterator[tuple[int, int]]:
        """(columns, run length) for every length at which runs end: gallop, then bisect, as the compiled form."""
        at, step, last = 0, 1, chain.block_count - 1
        have = self._closed(chain.block_hash(0)) if last >= 0 else 0
        while have:
            if at == last:
                yield have, last + 1
                return
            end = min(at + step, last)
            kept = self._closed(chain.block_hash(end)) & have
            todo = [(at, end, have, kept)] if kept != have else []
            while todo:
                low, high, held_low, held_high = todo.pop()
                if high - low == 1:
                    yield held_low & ~held_high, high
                    continue
                middle = (low + high) // 2
                held = self._closed(chain.block_hash(middle)) & held_low | held_high
                if held != held_high:
                    todo.append((middle, high, held, held_high))
                if held != held_low:
                    todo.append((low, middle, held_low, held))
            have = kept
            at, step = end, 2 * step

    # ------------------------------------------------------------- the forest of blocks
    def _column(self, node: int, tier: int) -> int:
        if not 0 <= node < self.node_count or not 0 <= tier < 64:
            raise IndexError(f"node {node}, tier {tier} of an index of {self.node_count} nodes")
        return tier * self.node_count + node

    def _block(self, key: bytes, keep: _Block | None) -> _Block | None:
        """The block of that name, new if need be; None if there is no room and no tail to drop but `keep`."""
        block = self._blocks.get(key)
        if block is None:
            if self._blocks_max and len(self._blocks) >= self._blocks_max and not self._drop_tail(keep):
                return None
            block = self._blocks[key] = _Block(key)
        return block

    def _hang(self, block: _Block, above: _Block | None) -> None:
        """`block` hangs from `above` unless it hangs elsewhere already, or `above` hangs from it."""
        if block.rooted or block.parent:
            self.counters["contradictions"] += block.parent is not above
            return
        if above is None:
            block.rooted = True
        else:
            walk: _Block | None = above
            while walk and block.children:
                if walk is block:
                    self.counters["contradictions"] += 1
                    return
                walk = walk.parent
            block.parent = above
            above.children[block.key] = block
        self._settle(block)

    def _settle(self, block: _Block) -> None:
        """closed = raw & closed of the parent, from `block` downwards."""
        todo = [block]
        while todo:
            block = todo.pop()
            closed = block.raw & block.above
            if closed != block.closed:
                block.closed = closed
                todo.extend(block.children.values())

    def _lose(self, block: _Block, columns: int) -> None:
        block.raw &= ~columns
        self._settle(block)

    def _reap(self, block: _Block | None, keep: _Block | None) -> None:
        """Blocks that nobody holds and nothing hangs from are gone, from `block` upwards, but never `keep`."""
        while block and block is not keep and not block.raw and not block.children:
            self._blocks.pop(block.key, None)
            if block.parent:
                block.parent.children.pop(block.key, None)
            block = block.parent

    def _drop_tail(self, keep: _Block | None) -> bool:
        for _ in range(len(self._blocks)):
            key, block = next(iter(self._blocks.items()))
            self._blocks.move_to_end(key)
            if not block.children and not block.rooted and block is not keep:
                for column in _bits(block.raw):
                    self._extra.pop((key, column), None)
                self._lose(block, block.raw)
                if block.parent:
                    self._blocks.move_to_end(block.parent.key, last=False)
                self._reap(block, keep)
                self.counters["dropped"] += 1
                return True
        return False


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
