"""The ledger of one node: which slot holds which block, for which account, pinned by how many. The only authority.

Tables live here; every decision about them is a rule of `account.py` or `rights.py`. Slots hold a *named* block
(its hash is readable by others) or an *unnamed* one (being computed or fetched, a partial tail, decoded tokens).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from . import account as rules
from .account import Account, Node
from .nouns import AccountSpec
from .ports import Retention
from .valuing import Valuing
from .victims import Block as Block
from .victims import Evicted as Evicted
from .victims import Rank, Victims, runs


class Ledger:
    """Slots, blocks and accounts of one node. A refused operation changes nothing but what it evicted and reports."""

    def __init__(
        self, *, capacity_blocks: int, accounts: Iterable[AccountSpec], retention: Retention, recompute_us: int = 1
    ) -> None:
        self.node = Node(capacity_blocks, 0, 0)
        self.accounts: dict[int, Account] = {}
        self.specs: dict[int, AccountSpec] = {}
        self.retention = retention
        self.evicted_blocks = 0
        self._now_us = 0  # the latest time that anything was asked at
        self.values = Valuing(retention, self.accounts, recompute_us)
        self._blocks: dict[int, Block] = {}
        self._slot_of: dict[bytes, int] = {}
        self._victims = Victims(self._score)
        self._generation = [0] * capacity_blocks
        self._free = list(range(capacity_blocks))
        for spec in accounts:
            if not self.configure(spec):
                raise ValueError(f"account of scope {spec.scope_id} does not fit: {spec} beside {self.node}")

    # ------------------------------------------------------------------ accounts
    def configure(self, spec: AccountSpec) -> bool:
        """The scope has this quota from now on, or False and nothing changed."""
        account = self.accounts.get(spec.scope_id, Account(0, 0, 0, 0, 0))
        limit = min(spec.limit_blocks, self.node.capacity)
        step = rules.configure(self.node, account, spec.reserved_blocks, limit, spec.priority)
        if step.ok:
            self.node, self.accounts[spec.scope_id] = step.node, step.account
            self.specs[spec.scope_id] = spec
        return step.ok

    def account(self, scope_id: int) -> Account:
        """The account of a scope; one nobody configured has no reservation, no limit but the pool, and class 0."""
        if scope_id not in self.accounts:
            capacity = self.node.capacity
            assert self.configure(AccountSpec(scope_id=scope_id, reserved_blocks=0, limit_blocks=capacity))
        return self.accounts[scope_id]

    def priority(self, scope_id: int) -> int:
        """The class of a scope's account."""
        return self.account(scope_id).priority

    # ------------------------------------------------------------------ reading
    def find(self, block_hash: bytes, now_us: int, mark: bytes = b"") -> Block | None:
        """The live named block with this hash and mark; None if absent or past its TTL. Changes nothing."""
        slot = self._slot_of.get(block_hash)
        if slot is None:
            return None
        block = self._blocks[slot]
        return None if block.mark != mark or self._is_expired(block, now_us) else block

    def collision(self, block_hash: bytes, mark: bytes) -> Block | None:
        """The named block of other tokens that has this hash, if there is one: it is never what was looked for."""
        slot = self._slot_of.get(block_hash)
        return None if slot is None or self._blocks[slot].mark == mark else self._blocks[slot]

    def block(self, slot: int) -> Block:
        return self._blocks[slot]

    def named(self) -> tuple[Block, ...]:
        """All named blocks, by slot."""
        return tuple(self._blocks[slot] for slot in sorted(self._slot_of.values()))

    def touch(self, block: Block, now_us: int) -> None:
        """The block has been used once more."""
        block.used_us = self._now_us = now_us
        block.use_count += 1
        if not block.pins:
            self._victims.settle(block, now_us)

    def _is_expired(self, block: Block, now_us: int) -> bool:
        spec = self.specs.get(block.scope_id)
        if spec is None or spec.ttl_us is None or block.kept:
            return False
        since = block.used_us if spec.sliding_ttl else block.stored_us
        return now_us >= since + spec.ttl_us

    # ------------------------------------------------------------------ pins
    def pin(self, block: Block) -> bool:
        """One more pin; the first of a block is an admission and may be refused."""
        return self.pin_first((block,)) == 1

    def pin_first(self, blocks: Sequence[Block]) -> int:
        """One more pin for the longest start of `blocks` (each once) for which it is granted; how many that are."""
        for at, run in runs(blocks):
            if not self._pin_new(run[0].scope_id, sum(b.pins == 0 for b in run)):
                if len(run) == 1:
                    return at
                done = next((i for i, block in enumerate(run) if not self.pin(block)), len(run))
                return at + done
            for block in run:
                self._add_pin(block)
        return len(blocks)

    def _add_pin(self, block: Block) -> None:
        block.pins += 1
        if block.pins == 1:
            self._victims.settle(block, self._now_us)

    def _pin_new(self, scope_id: int, count: int) -> bool:
        if count == 0:
            return True
        step = rules.pin(self.node, self.account(scope_id), count)
        if step.ok:
            self.node, self.accounts[scope_id] = step.node, step.account
        return step.ok

    def unpin(self, block: Block) -> None:
        """One pin fewer."""
        self._unpin_all((block,))

    def _unpin_all(self, blocks: Sequence[Block]) -> list[Block]:
        """One pin fewer each; those that have none left."""
        for block in blocks:
            assert block.pins > 0, f"slot {block.slot} is not pinned"
            block.pins -= 1
        free = [block for block in blocks if block.pins == 0]
        for _, run in runs(free):
            scope_id = run[0].scope_id
            step = rules.unpin(self.node, self.account(scope_id), len(run))
            assert step.ok
            self.node, self.accounts[scope_id] = step.node, step.account
        for block in free:
            self._victims.settle(block, self._now_us)
        return free

    @property
    def pinned_blocks(self) -> int:
        """Blocks that are pinned."""
        return sum(account.pinned for account in self.accounts.values())

    # ------------------------------------------------------------------ room
    def fits_ever(self, counts: dict[int, int]) -> str | None:
        """Why these blocks per scope could never be held at once, or None. Judged on quotas alone, so that the
        answer is the same at any fill level. Running blocks are pinned, so they must fit beside everybody's floor."""
        if sum(counts.values()) > self.node.capacity:
            return f"needs {sum(counts.values())} blocks, the pool has {self.node.capacity}"
        for scope_id, count in sorted(counts.items()):
            limit = self.account(scope_id).limit
            if count > limit:
                return f"QuotaExceeded: scope {scope_id} needs {count} blocks, its limit is {limit}"
        others = sum(account.reserved for scope_id, account in self.accounts.items() if scope_id not in counts)
        own = sum(max(count, self.account(scope_id).reserved) for scope_id, count in counts.items())
        if own + others > self.node.capacity:
            return f"QuotaExceeded: needs {sum(counts.values())} blocks beside floors of others of {others}"
        return None

    def may_fit(self, counts: dict[int, int]) -> bool:
        """Whether these blocks could be had now if every unpinned block went: a cheap necessary condition, so that
        a request that has to wait does not evict in vain."""
        within = all(self.account(s).pinned + count <= self.account(s).limit for s, count in counts.items())
        return within and self.pinned_blocks + sum(counts.values()) <= self.node.capacity

    def allocate(
        self, scope_id: int, count: int, now_us: int, *, evict: bool = True
    ) -> tuple[tuple[Block, ...] | None, tuple[Evicted, ...]]:
        """`count` pinned unnamed blocks for the scope, or None when that many cannot be had now.

        Evicts as needed, leaves first, lowest class first, then lowest retention score. What it evicted before
        it had to give up is reported too.
        """
        evicted: list[Evicted] = []
        self._now_us = now_us
        free = self._admit_free(scope_id, count)
        taken = self._occupy(scope_id, free, now_us)
        if evict and len(taken) < count and self.retention.ages:
            self._victims.score_again(self._blocks, now_us)
        while evict and len(taken) < count:
            got = self._replace(scope_id, count, len(taken), now_us, evicted)
            if not got:
                break
            taken += self._occupy(scope_id, got, now_us)
        if len(taken) == count and self._pin_new(scope_id, count):
            for block in taken:
                block.pins = 1
            return tuple(taken), tuple(evicted)
        self._vacate(taken)
        return None, tuple(evicted)

    @property
    def free_blocks(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    def is_held(self, block: Block) -> bool:
        """Whether the block is still in its slot."""
        return self._blocks.get(block.slot) is block

    def _admit_free(self, scope_id: int, count: int) -> int:
        """So many of `count` blocks are admitted without evicting anything."""
        account = self.account(scope_id)
        wanted = min(count, account.limit - account.used, self.node.capacity - self.node.used)
        while wanted > 0:
            step = rules.admit(self.node, account, wanted)
            if step.ok:
                self.node, self.accounts[scope_id] = step.node, step.account
                return wanted
            wanted //= 2
        return 0

    def _replace(self, scope_id: int, count: int, taken: int, now_us: int, evicted: list[Evicted]) -> int:
        """At least one of the `count` - `taken` blocks still wanted has changed hands; 0 if nobody may give one up.

        Of what the rules let go, it takes of the lowest class a leaf of its account rather than a block inside a chain,
        then the least valuable. Several of the scope's own go at once while they stay the first: for the account that
        is one step.
        """
        step = rules.admit(self.node, self.account(scope_id), 1)
        if step.ok:
            self.node, self.accounts[scope_id] = step.node, step.account
            return 1
        order = sorted(self._first_of_each(scope_id, taken, now_us))
        for at, (priority, rank, other) in enumerate(order):
            if other == scope_id:
                bound = order[at + 1][:2] if at + 1 < len(order) else None
                gone = self._evict_own(scope_id, count - taken, (priority, rank), bound, evicted)
                if gone:
                    return gone
            elif self._give_up(self._blocks[rank[2]], scope_id):
                evicted.append(self._forget(self._blocks[rank[2]]))
                return 1
        return 0

    def _first_of_each(self, scope_id: int, taken: int, now_us: int) -> Iterator[tuple[int, Rank, int]]:
        """(class, rank, account) of what each account would give up first; its `taken` new blocks do not count."""
        for other, account in self.accounts.items():
            if account.used - account.pinned > (taken if other == scope_id else 0):
                rank = self._victims.least(other) or self._victims.least_inside(other, now_us)
                if rank is not None:
                    yield account.priority, rank, other

    def _evict_own(
        self, scope_id: int, wanted: int, first: tuple[int, Rank], bound: tuple[int, Rank] | None,
        evicted: list[Evicted],
    ) -> int:  # fmt: skip
        """Up to `wanted` blocks of the scope made way for as many of its own; none if the rules forbid one.

        The first goes anyhow, leaves that follow it as long as no block of another account, the least of which is
        `bound`, would go before them.
        """
        step = rules.replace_own(self.node, self.account(scope_id), 1)
        if not step.ok:
            return 0
        gone, rank = 0, first[1]
        while True:
            victim = self._blocks[rank[2]]
            orphans = self._victims.is_parent(victim)  # elsewhere: they may go first now
            evicted.append(self._forget(victim))
            gone += 1
            following = self._victims.least(scope_id)
            past = following is None or (bound is not None and (first[0], following) > bound)
            if gone == wanted or orphans or following is None or past:
                break
            rank = following
        step = rules.replace_own(self.node, self.account(scope_id), gone)
        assert step.ok
        self.node, self.accounts[scope_id] = step.node, step.account
        return gone

    def _give_up(self, victim: Block, scope_id: int) -> bool:
        """The victim's block is re-booked to the admitting account, another one, if the rule allows."""
        step = rules.admit_evicting(self.node, self.account(scope_id), self.account(victim.scope_id), 1)
        if not step.ok or step.victim is None:
            return False
        self.node, self.accounts[scope_id], self.accounts[victim.scope_id] = step.node, step.account, step.victim
        return True

    def _score(self, block: Block, now_us: int) -> float:
        """What the block is worth keeping; one that cannot be matched any more, nothing."""
        if block.parent is not None and block.parent not in self._slot_of:
            return float("-inf")  # a block whose parent is gone cannot be matched: it goes first
        return self.values.score(block, now_us)

    def want(self, hashes: Sequence[bytes], step: int, now_us: int) -> None:
        """`step` (1 or -1) more of the waiting requests want these blocks: those that are here are valued anew."""
        self.values.want(hashes, step)
        for slot in [self._slot_of[h] for h in hashes if h in self._slot_of]:
            self._victims.settle(self._blocks[slot], now_us)

    # ------------------------------------------------------------------ slots
    def _occupy(self, scope_id: int, count: int, now_us: int) -> list[Block]:
        free, generation, blocks = self._free, self._generation, self._blocks
        taken = []
        for _ in range(count):
            slot = heapq.heappop(free)
            generation[slot] += 1
            blocks[slot] = block = Block(slot, scope_id, generation[slot], stored_us=now_us, used_us=now_us)
            taken.append(block)
        return taken

    def _vacate(self, blocks: Sequence[Block]) -> None:
        """The unpinned blocks are gone and their slots are free; the next owners have another generation."""
        for _, run in runs(blocks):
            scope_id = run[0].scope_id
            step = rules.release(self.node, self.account(scope_id), len(run))
            assert step.ok
            self.node, self.accounts[scope_id] = step.node, step.account
            for block in run:
                self._unlink(block)

    def _unlink(self, block: Block) -> None:
        del self._blocks[block.slot]
        heapq.heappush(self._free, block.slot)
        if block.block_hash is not None:
            del self._slot_of[block.block_hash]
            self._victims.forget(block, self._now_us)

    def _forget(self, victim: Block) -> Evicted:
        """The victim's accounts are already booked; its slot becomes free."""
        assert victim.block_hash is not None
        assert victim.pins == 0
        self.evicted_blocks += 1
        self._unlink(victim)
        return Evicted(victim.slot, victim.scope_id, victim.block_hash)

    def name(
        self, block: Block, block_hash: bytes, parent: bytes | None, depth: int, origin: int, now_us: int,
        mark: bytes = b"",
    ) -> bool:  # fmt: skip
        """The block is now findable under `block_hash`; False (and unchanged) if another slot already is."""
        if block_hash in self._slot_of:
            return False
        block.block_hash, block.mark, block.parent, block.depth = block_hash, mark, parent, depth
        block.origin, block.stored_us, block.used_us = origin, now_us, now_us
        self._slot_of[block_hash] = block.slot
        self.values.stored(block.scope_id, now_us)
        self._victims.name(block, now_us)
        return True

    def drop(self, block: Block) -> None:
        """One pin ends; an unnamed block without pins has no further use and its slot is freed."""
        self.drop_all((block,))

    def drop_all(self, blocks: Sequence[Block]) -> None:
        """One pin of each ends, as with `drop`."""
        self._vacate([block for block in self._unpin_all(blocks) if block.block_hash is None])

    def purge(self, scope_ids: frozenset[int], keep_blocks: int = 0) -> tuple[Evicted, ...]:
        """Unpinned named blocks of these scopes are gone, deepest first, until they hold no more than `keep_blocks`."""
        gone = [b for b in self.named() if b.scope_id in scope_ids and not b.pins]
        over = sum(self.account(scope_id).used for scope_id in scope_ids) - keep_blocks
        return self.drop_named(sorted(gone, key=lambda b: (-b.depth, b.used_us))[: max(0, over)])

    def sweep(self, now_us: int) -> tuple[Evicted, ...]:
        """Every unpinned block past its TTL is gone."""
        if not any(spec.ttl_us is not None for spec in self.specs.values()):
            return ()
        return self.drop_named([b for b in self.named() if not b.pins and self._is_expired(b, now_us)])

    def drop_named(self, blocks: list[Block]) -> tuple[Evicted, ...]:
        """These unpinned named blocks are gone."""
        out = []
        for block in blocks:
            assert block.block_hash is not None
            out.append(Evicted(block.slot, block.scope_id, block.block_hash))
        self._vacate(blocks)
        return tuple(out)

    def check(self) -> None:
        """Raises AssertionError unless every conserved quantity adds up."""
        used: dict[int, list[int]] = {}
        for block in self._blocks.values():
            row = used.setdefault(block.scope_id, [0, 0])
            row[0] += 1
            row[1] += block.pins > 0
        for scope_id, account in self.accounts.items():
            assert (account.used, account.pinned) == tuple(used.get(scope_id, [0, 0])), (scope_id, account)
            assert 0 <= account.pinned <= account.used <= account.limit, (scope_id, account)
        assert set(used) <= set(self.accounts)
        assert self.node.used == len(self._blocks) <= self.node.capacity
        assert self.node.committed == sum(rules.floor_of(a) for a in self.accounts.values()) <= self.node.capacity
        assert len(self._free) + len(self._blocks) == self.node.capacity
        named = {b.slot: b.block_hash for b in self._blocks.values() if b.block_hash is not None}
        assert {slot: h for h, slot in self._slot_of.items()} == named
        unpinned = {b.slot for b in self._blocks.values() if b.slot in named and not b.pins}
        assert self._victims.leaves() == {slot for slot in unpinned if not self._victims.is_inner(self._blocks[slot])}
