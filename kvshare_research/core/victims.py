"""Unpinned named blocks in the order in which they would make way, found without looking at all of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

Rank = tuple[bool, float, int]  # (is inside a chain of its account, retention score, slot): the least goes first
_SLACK = 64  # outdated entries that a heap may hold before it is rebuilt


@dataclass(slots=True)
class Block:
    """One used slot."""

    slot: int
    scope_id: int
    generation: int
    pins: int = 0
    block_hash: bytes | None = None
    mark: bytes = b""  # see `Chain.marks`
    parent: bytes | None = None
    depth: int = 0
    origin: int = 0  # the tenant whose request first computed it
    stored_us: int = 0
    used_us: int = 0
    use_count: int = 0
    attention: float = 0.0  # accumulated here; does not travel
    kept: bool = False  # of a released prefix: it does not age


class Evicted(NamedTuple):
    """A named block that left: its slot is free, its hash must be unpublished."""

    slot: int
    scope_id: int
    block_hash: bytes


@final
class Victims:
    """Knows which named block hangs from which, and for each account the least of its unpinned ones.

    `score` is asked when a leaf gets unpinned, is used, or becomes a leaf or an orphan. Blocks inside chains of their
    account are looked at only when the account has nothing else to give: they are not kept in order.
    """

    def __init__(self, score: Callable[[Block, int], float]) -> None:
        self._score = score
        self._named: dict[bytes, Block] = {}
        self._children: dict[bytes, dict[int, Block]] = {}  # by the parent's hash, then slot
        self._own_children: dict[tuple[bytes, int], int] = {}  # how many of them are of this account
        self._leaves: dict[int, tuple[float, int, int]] = {}  # by slot: its one valid entry (score, slot, serial)
        self._heaps: dict[int, list[tuple[float, int, int]]] = {}  # by account
        self._leaf_counts: dict[int, int] = {}
        self._serial = 0

    # ------------------------------------------------------------------ names come and go
    def name(self, block: Block, now_us: int) -> None:
        """The block has just got its hash and parent."""
        assert block.block_hash is not None
        self._named[block.block_hash] = block
        if block.parent is not None:
            self._children.setdefault(block.parent, {})[block.slot] = block
            link = (block.parent, block.scope_id)
            self._own_children[link] = self._own_children.get(link, 0) + 1
            self._again(self._named.get(block.parent), now_us)
        if (children := self._children.get(block.block_hash)) is not None:
            for child in tuple(children.values()):
                self._again(child, now_us)
        if not block.pins:
            self.settle(block, now_us)

    def forget(self, block: Block, now_us: int) -> None:
        """The named block has left."""
        assert block.block_hash is not None
        if block.slot in self._leaves:
            self._leave(block)
        del self._named[block.block_hash]
        if block.parent is not None:
            siblings = self._children[block.parent]
            del siblings[block.slot]
            if not siblings:
                del self._children[block.parent]
            link = (block.parent, block.scope_id)
            self._own_children[link] -= 1
            if not self._own_children[link]:
                del self._own_children[link]
                self._again(self._named.get(block.parent), now_us)
        if (children := self._children.get(block.block_hash)) is not None:
            for child in tuple(children.values()):
                self._again(child, now_us)

    def settle(self, block: Block, now_us: int) -> None:
        """The block is among the leaves, with its present score, exactly if it is an unpinned named leaf."""
        if block.slot in self._leaves:
            self._leave(block)
        if block.pins or block.block_hash is None or (block.block_hash, block.scope_id) in self._own_children:
            return
        self._serial += 1
        entry = (self._score(block, now_us), block.slot, self._serial)
        self._leaves[block.slot] = entry
        self._leaf_counts[block.scope_id] = self._leaf_counts.get(block.scope_id, 0) + 1
        heapq.heappush(self._heaps.setdefault(block.scope_id, []), entry)

    def score_again(self, blocks: dict[int, Block], now_us: int) -> None:
        """Every leaf has the score of now; for policies whose scores change by themselves."""
        for slot in sorted(self._leaves):
            self.settle(blocks[slot], now_us)

    # ------------------------------------------------------------------ asking
    def is_inner(self, block: Block) -> bool:
        """Whether a named block of the same account hangs from it."""
        return block.block_hash is not None and (block.block_hash, block.scope_id) in self._own_children

    def is_parent(self, block: Block) -> bool:
        """Whether a named block of any account hangs from it."""
        return block.block_hash in self._children

    def least(self, scope_id: int) -> Rank | None:
        """The leaf of an account that goes first; None without leaves."""
        heap = self._heaps.get(scope_id)
        if heap is None:
            return None
        while self._leaves.get(heap[0][1]) is not heap[0]:
            heapq.heappop(heap)
        return False, heap[0][0], heap[0][1]

    def least_inside(self, scope_id: int, now_us: int) -> Rank | None:
        """The unpinned block inside chains of an account that goes first, by looking at all; None without any."""
        inside = (b for b in self._named.values() if b.scope_id == scope_id and not b.pins and self.is_inner(b))
        return min(((True, self._score(b, now_us), b.slot) for b in inside), default=None)

    def leaves(self) -> set[int]:
        """Slots of all leaves that may go, for checks."""
        return set(self._leaves)

    # ------------------------------------------------------------------ steps
    def _again(self, block: Block | None, now_us: int) -> None:
        if block is not None and not block.pins:
            self.settle(block, now_us)

    def _leave(self, block: Block) -> None:
        del self._leaves[block.slot]
        scope_id = block.scope_id
        left = self._leaf_counts[scope_id] - 1
        if not left:
            del self._leaf_counts[scope_id], self._heaps[scope_id]
            return
        self._leaf_counts[scope_id] = left
        heap = self._heaps[scope_id]
        if len(heap) > 2 * left + _SLACK:
            self._heaps[scope_id] = [e for e in heap if self._leaves.get(e[1]) is e]
            heapq.heapify(self._heaps[scope_id])


def runs(blocks: Sequence[Block]) -> Iterator[tuple[int, Sequence[Block]]]:
    """Neighbours of one account together, each run with the position of its first."""
    start, scope_id = 0, None
    for i, block in enumerate(blocks):
        if block.scope_id != scope_id:
            if i:
                yield start, blocks[start:i]
            start, scope_id = i, block.scope_id
    if blocks:
        yield start, blocks[start:]
