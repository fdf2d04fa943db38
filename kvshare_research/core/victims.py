"""Named blocks: how they hang together, and the unpinned ones in the order in which they would make way."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

Entry = tuple[float, int]  # (retention score, slot) of a leaf that may go: the least goes first
Rank = tuple[bool, float, int]  # the same after: is it inside a chain of its account
_SLACK = 64  # outdated entries that a heap may hold before it is rebuilt


@dataclass(slots=True, eq=False)
class Block:
    """One used slot. What stands below `above` is for `Victims` alone."""

    slot: int
    scope_id: int
    generation: int
    stored_us: int = 0
    used_us: int = 0
    pins: int = 0
    block_hash: bytes | None = None
    mark: bytes = b""  # see `Chain.marks`
    parent: bytes | None = None
    depth: int = 0
    origin: int = 0  # the tenant whose request first computed it
    use_count: int = 0
    attention: float = 0.0  # accumulated here; does not travel
    kept: bool = False  # of a released prefix: it does not age
    above: Block | None = field(default=None, repr=False)  # the named block `parent`, if it is here
    first: Block | None = field(default=None, repr=False)  # of the named blocks that hang from it
    before: Block | None = field(default=None, repr=False)  # its neighbours among those that hang where it does
    after: Block | None = field(default=None, repr=False)
    own_children: int = 0  # of those that hang from it, so many are of its account
    entry: Entry | None = None  # its place among the leaves that may go


@dataclass(slots=True)
class _Leaves:
    """The unpinned leaves of one account: `count` of the entries are of blocks that still hold them."""

    heap: list[Entry] = field(default_factory=list)
    count: int = 0


@final
class Victims:
    """Knows the named blocks by hash, which hangs from which, and for each account the least of its unpinned leaves.

    `blocks` is what the slots hold: the ledger's table, in which `take` makes room. `score` is asked when a leaf gets
    unpinned, is used, or becomes a leaf or an orphan. Blocks inside chains of their account are looked at only when
    the account has nothing else to give: they are not kept in order.
    """

    def __init__(self, blocks: list[Block | None], score: Callable[[Block, int], float]) -> None:
        self.named: dict[bytes, Block] = {}
        self._blocks = blocks
        self._score = score
        self._orphans: dict[bytes, Block] = {}  # the first of those whose parent, of this hash, is not here
        self._leaves: dict[int, _Leaves] = {}  # by account

    # ------------------------------------------------------------------ names come and go
    def name_run(
        self, blocks: Sequence[Block], hashes: Sequence[bytes], marks: Sequence[bytes], parent: bytes | None,
        depth: int, now_us: int,
    ) -> int:  # fmt: skip
        """The blocks, neighbours in a chain, have got these hashes, the first one `parent` and `depth`; how many have:
        it ends before the first whose hash another block has."""
        named, orphans = self.named, self._orphans
        above = None if parent is None else named.get(parent)
        at = depth
        for block, block_hash, mark in zip(blocks, hashes, marks, strict=True):
            if block_hash in named:
                break
            named[block_hash] = block
            block.block_hash, block.mark, block.parent, block.depth = block_hash, mark, parent, at
            block.stored_us = block.used_us = now_us
            if above is not None:
                self._hang(block, above)
            elif parent is not None:
                self._orphan(block)
            if block_hash in orphans:
                self._adopt(block, now_us)
            if not block.pins:
                self.settle(block, now_us)
            parent, above = block_hash, block
            at += 1
        return at - depth

    def forget(self, block: Block, now_us: int) -> None:
        """The named block has left."""
        if block.entry is not None:
            self._leave(block)
        parent = self._unhang(block)
        if parent is not None:
            self.settle(parent, now_us)
        if block.first is not None:
            self._abandon(block, now_us)

    def take(self, scope_id: int, wanted: int, past: Rank | None, now_us: int) -> list[Block]:
        """Leaves of the account leave, each the least at its turn, and their slots are empty.

        At most `wanted`, none that goes after `past`; none after one from which others hang, which may go first now.
        """
        leaves, blocks, score = self._leaves[scope_id], self._blocks, self._score
        heap = leaves.heap
        fresh: Entry | None = None  # of the parent of the last one: it mostly goes next and need not enter the heap
        gone: list[Block] = []
        while len(gone) < wanted and (heap or fresh is not None):
            entry = heapq.heappop(heap) if fresh is None else heapq.heappushpop(heap, fresh)
            fresh = None
            block = blocks[entry[1]]
            if block is None or block.entry is not entry:
                continue
            if past is not None and (False, *entry) > past:
                fresh = entry
                break
            block.entry = blocks[entry[1]] = None
            gone.append(block)
            parent = self._unhang(block)
            if parent is None:
                leaves.count -= 1
            else:
                fresh = parent.entry = (score(parent, now_us), parent.slot)
            if block.first is not None:
                self._abandon(block, now_us)
                break
        if fresh is not None:
            heapq.heappush(leaves.heap, fresh)
        return gone

    # ------------------------------------------------------------------ values change
    def settle(self, block: Block, now_us: int) -> None:
        """The block is among the leaves, with its present score, exactly if it is an unpinned named leaf."""
        if block.entry is not None:
            self._leave(block)
        if block.own_children or block.pins or block.block_hash is None:
            return
        leaves = self._leaves.get(block.scope_id)
        if leaves is None:
            leaves = self._leaves[block.scope_id] = _Leaves()
        leaves.count += 1
        heapq.heappush(leaves.heap, self._scored(block, now_us))

    def pinned(self, block: Block) -> None:
        """The leaf has got a pin: it may not go."""
        self._leave(block)

    def score_again(self, now_us: int) -> None:
        """Every leaf has the score of now; for policies whose scores change by themselves."""
        for leaves in self._leaves.values():
            held = [b for e in leaves.heap if (b := self._blocks[e[1]]) is not None and b.entry is e]
            leaves.heap = [self._scored(block, now_us) for block in held]
            heapq.heapify(leaves.heap)

    # ------------------------------------------------------------------ asking
    def least(self, scope_id: int) -> Rank | None:
        """The leaf of an account that goes first; None without leaves."""
        leaves = self._leaves.get(scope_id)
        if leaves is None:
            return None
        heap = leaves.heap
        while heap and self._entry(heap[0][1]) is not heap[0]:
            heapq.heappop(heap)
        return (False, *heap[0]) if heap else None

    def least_inside(self, scope_id: int, now_us: int) -> Rank | None:
        """The unpinned block inside chains of an account that goes first, by looking at all; None without any."""
        inside = (b for b in self.named.values() if b.own_children and b.scope_id == scope_id and not b.pins)
        return min(((True, self._score(b, now_us), b.slot) for b in inside), default=None)

    # ------------------------------------------------------------------ links
    def _hang(self, block: Block, above: Block) -> None:
        block.above = above
        head = above.first
        if head is not None:
            block.after, head.before = head, block
        above.first = block
        if above.scope_id == block.scope_id:
            above.own_children += 1
            if above.entry is not None:
                self._leave(above)

    def _orphan(self, block: Block) -> None:
        assert block.parent is not None
        head = self._orphans.get(block.parent)
        if head is not None:
            block.after, head.before = head, block
        self._orphans[block.parent] = block

    def _adopt(self, block: Block, now_us: int) -> None:
        """What waited for a block of this hash hangs from it."""
        assert block.block_hash is not None
        block.first = self._orphans.pop(block.block_hash)
        for child in _hanging(block.first):
            child.above = block
            block.own_children += child.scope_id == block.scope_id
            self.settle(child, now_us)

    def _abandon(self, block: Block, now_us: int) -> None:
        """What hung from a block that has left waits for one of its hash."""
        assert block.block_hash is not None
        assert block.first is not None
        self._orphans[block.block_hash] = head = block.first
        block.first, block.own_children = None, 0
        for child in _hanging(head):
            child.above = None
            self.settle(child, now_us)

    def _unhang(self, block: Block) -> Block | None:
        """The block has lost its name and its place; its parent, if that is now an unpinned leaf."""
        assert block.block_hash is not None
        del self.named[block.block_hash]
        above, before, after = block.above, block.before, block.after
        if after is not None:
            after.before, block.after = before, None
        if before is not None:
            before.after, block.before = after, None
        elif above is not None:
            above.first = after
        elif after is not None and block.parent is not None:
            self._orphans[block.parent] = after
        elif block.parent is not None:
            del self._orphans[block.parent]
        if above is None:
            return None
        block.above = None
        if above.scope_id != block.scope_id:
            return None
        above.own_children -= 1
        return None if above.own_children or above.pins else above

    # ------------------------------------------------------------------ leaves
    def _entry(self, slot: int) -> Entry | None:
        block = self._blocks[slot]
        return None if block is None else block.entry

    def _scored(self, block: Block, now_us: int) -> Entry:
        block.entry = entry = (self._score(block, now_us), block.slot)
        return entry

    def _leave(self, block: Block) -> None:
        block.entry = None
        leaves = self._leaves[block.scope_id]
        leaves.count -= 1
        if len(leaves.heap) > 2 * leaves.count + _SLACK:
            self._only_valid(leaves)

    def _only_valid(self, leaves: _Leaves) -> None:
        leaves.heap = [e for e in leaves.heap if self._entry(e[1]) is e]
        heapq.heapify(leaves.heap)

    def check(self) -> None:
        """Raises AssertionError unless links, counts and leaves are what the named blocks say."""
        hanging: dict[bytes | None, set[int]] = {}
        for block_hash, block in self.named.items():
            assert block.block_hash == block_hash
            assert self._blocks[block.slot] is block
            assert block.above is (None if block.parent is None else self.named.get(block.parent))
            hanging.setdefault(block.parent, set()).add(block.slot)
        hanging.pop(None, None)
        heads = {h: b.first for h, b in self.named.items() if b.first is not None} | self._orphans
        assert {h: {b.slot for b in _hanging(head)} for h, head in heads.items()} == hanging
        assert not self._orphans.keys() & self.named.keys()
        valid = {(s, e[1]): e for s, leaves in self._leaves.items() for e in leaves.heap if self._entry(e[1]) is e}
        for block in self.named.values():
            own = [b for b in _hanging(block.first) if b.scope_id == block.scope_id]
            assert block.own_children == len(own)
            assert (block.entry is not None) == (not own and not block.pins)
            assert valid.get((block.scope_id, block.slot)) is block.entry
        for scope_id, leaves in self._leaves.items():
            assert leaves.count == sum(b.entry is not None for b in self.named.values() if b.scope_id == scope_id)


def _hanging(first: Block | None) -> Iterator[Block]:
    """The block and its later neighbours; each may be changed when it comes."""
    while first is not None:
        following = first.after
        yield first
        first = following


def by_account(blocks: Iterable[Block]) -> Iterable[tuple[int, int]]:
    """(account, how many of the blocks are its)."""
    counts: dict[int, int] = {}
    for block in blocks:
        counts[block.scope_id] = counts.get(block.scope_id, 0) + 1
    return counts.items()


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
