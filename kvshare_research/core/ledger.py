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
from .victims import Rank, Victims, by_account, runs


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
        self._blocks: list[Block | None] = []  # by slot, of those that were ever used
        self._generation: list[int] = []
        self._free: list[int] = []  # of those, the ones that hold nothing
        self._victims = Victims(self._blocks, self.values.score)
        self._named = self._victims.named
        self._ttl: dict[int, AccountSpec] = {}  # of the scopes whose blocks expire
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
            self._ttl = {s: spec for s, spec in self.specs.items() if spec.ttl_us is not None}
        return step.ok

    def account(self, scope_id: int) -> Account:
        """The account of a scope; one nobody configured has no reservation, no limit but the pool, and class 0."""
        account = self.accounts.get(scope_id)
        if account is None:
            capacity = self.node.capacity
            assert self.configure(AccountSpec(scope_id=scope_id, reserved_blocks=0, limit_blocks=capacity))
            account = self.accounts[scope_id]
        return account

    def priority(self, scope_id: int) -> int:
        """The class of a scope's account."""
        return self.account(scope_id).priority

    # ------------------------------------------------------------------ reading
    def find(self, block_hash: bytes, now_us: int, mark: bytes = b"") -> Block | None:
        """The live named block with this hash and mark; None if absent or past its TTL. Changes nothing."""
        block = self._named.get(block_hash)
        return None if block is None or block.mark != mark or self._is_expired(block, now_us) else block

    def collision(self, block_hash: bytes, mark: bytes) -> Block | None:
        """The named block of other tokens that has this hash, if there is one: it is never what was looked for."""
        block = self._named.get(block_hash)
        return None if block is None or block.mark == mark else block

    def block(self, slot: int) -> Block:
        """What the slot holds; KeyError if nothing."""
        block = self._blocks[slot] if slot < len(self._blocks) else None
        if block is None:
            raise KeyError(slot)
        return block

    def named(self) -> tuple[Block, ...]:
        """All named blocks, by slot."""
        return tuple(b for b in self._blocks if b is not None and b.block_hash is not None)

    def touch(self, block: Block, now_us: int) -> None:
        """The block has been used once more."""
        block.used_us = self._now_us = now_us
        block.use_count += 1
        if not block.pins:
            self._victims.settle(block, now_us)

    def _is_expired(self, block: Block, now_us: int) -> bool:
        spec = self._ttl.get(block.scope_id)
        if spec is None or spec.ttl_us is None or block.kept:
            return False
        since = block.used_us if spec.sliding_ttl else block.stored_us
        return now_us >= since + spec.ttl_us

    # ------------------------------------------------------------------ pins
    def pin(self, block: Block) -> bool:
        """One more pin; the first of a block is an admission and may be refused."""
        if not block.pins and not self._pin_new(block.scope_id, 1):
            return False
        self._add_pin(block)
        return True

    def pin_first(self, blocks: Sequence[Block]) -> int:
        """One more pin for the longest start of `blocks` (each once) for which it is granted; how many that are."""
        for at, run in runs(blocks):
            if not self._pin_new(run[0].scope_id, sum(b.pins == 0 for b in run)):
                return at + next((i for i, block in enumerate(run) if not self.pin(block)), len(run))
            for block in run:
                self._add_pin(block)
        return len(blocks)

    def _add_pin(self, block: Block) -> None:
        block.pins += 1
        if block.entry is not None:
            self._victims.pinned(block)

    def _pin_new(self, scope_id: int, count: int) -> bool:
        if count == 0:
            return True
        step = rules.pin(self.node, self.account(scope_id), count)
        if step.ok:
            self.node, self.accounts[scope_id] = step.node, step.account
        return step.ok

    @property
    def pinned_blocks(self) -> int:
        """Blocks that are pinned."""
        return sum([account.pinned for account in self.accounts.values()])

    # ------------------------------------------------------------------ room
    def fits_ever(self, counts: dict[int, int]) -> str | None:
        """Why these blocks per scope could never be held at once, or None. Judged on quotas alone, so that the
        answer is the same at any fill level. Running blocks are pinned, so they must fit beside everybody's floor."""
        total = sum(counts.values())
        if total > self.node.capacity:
            return f"needs {total} blocks, the pool has {self.node.capacity}"
        for scope_id, count in sorted(counts.items()):
            limit = self.account(scope_id).limit
            if count > limit:
                return f"QuotaExceeded: scope {scope_id} needs {count} blocks, its limit is {limit}"
        others = sum([account.reserved for scope_id, account in self.accounts.items() if scope_id not in counts])
        own = sum([max(count, self.account(scope_id).reserved) for scope_id, count in counts.items()])
        if own + others > self.node.capacity:
            return f"QuotaExceeded: needs {total} blocks beside floors of others of {others}"
        return None

    def may_fit(self, counts: dict[int, int]) -> bool:
        """Whether these blocks could be had now if every unpinned block went: a cheap necessary condition, so that
        a request that has to wait does not evict in vain."""
        for scope_id, count in counts.items():
            account = self.account(scope_id)
            if account.pinned + count > account.limit:
                return False
        return self.pinned_blocks + sum(counts.values()) <= self.node.capacity

    def allocate(
        self, scope_id: int, count: int, now_us: int, *, evict: bool = True
    ) -> tuple[tuple[Block, ...] | None, tuple[Block, ...]]:
        """`count` pinned unnamed blocks for the scope, or None when that many cannot be had now.

        Evicts as needed, leaves first, lowest class first, then lowest retention score. What it evicted before
        it had to give up is reported too.
        """
        evicted: list[Block] = []
        self._now_us = now_us
        free = self._admit_free(scope_id, count)
        taken = self._occupy(scope_id, free, now_us) if free else []
        if evict and len(taken) < count and self.retention.ages:
            self._victims.score_again(now_us)
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
        return len(self._free) + self.node.capacity - len(self._blocks)

    def is_held(self, block: Block) -> bool:
        """Whether the block is still in its slot."""
        return self._blocks[block.slot] is block

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

    def _replace(self, scope_id: int, count: int, taken: int, now_us: int, evicted: list[Block]) -> int:
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
            first = self.block(rank[2])
            if other == scope_id:
                rival = order[at + 1] if at + 1 < len(order) else None
                past = rival[1] if rival is not None and rival[0] == priority else None
                gone = self._evict_own(first, count - taken, past, evicted)
                if gone:
                    return gone
            elif self._give_up(first, scope_id):
                self._forget(first, evicted)
                return 1
        return 0

    def _first_of_each(self, scope_id: int, taken: int, now_us: int) -> Iterator[tuple[int, Rank, int]]:
        """(class, rank, account) of what each account would give up first; its `taken` new blocks do not count."""
        for other, account in self.accounts.items():
            if account.used - account.pinned > (taken if other == scope_id else 0):
                rank = self._victims.least(other) or self._victims.least_inside(other, now_us)
                if rank is not None:
                    yield account.priority, rank, other

    def _evict_own(self, first: Block, wanted: int, past: Rank | None, evicted: list[Block]) -> int:
        """Up to `wanted` blocks of a scope made way for as many of its own; none if the rules forbid one.

        The first goes anyhow, leaves that follow it as long as no block of another account, the least of which is
        `past`, would go before them.
        """
        account = self.account(first.scope_id)
        wanted = min(wanted, account.used - account.pinned)
        step = rules.replace_own(self.node, account, wanted)  # no row changes, so that a yes covers any fewer
        if not step.ok:
            return 0
        if first.own_children:
            self._forget(first, evicted)
            return 1
        gone = self._victims.take(first.scope_id, wanted, past, self._now_us)
        for block in gone:
            heapq.heappush(self._free, block.slot)
        self.evicted_blocks += len(gone)
        evicted.extend(gone)
        return len(gone)

    def _give_up(self, victim: Block, scope_id: int) -> bool:
        """The victim's block is re-booked to the admitting account, another one, if the rule allows."""
        step = rules.admit_evicting(self.node, self.account(scope_id), self.account(victim.scope_id), 1)
        if not step.ok or step.victim is None:
            return False
        self.node, self.accounts[scope_id], self.accounts[victim.scope_id] = step.node, step.account, step.victim
        return True

    def want(self, hashes: Sequence[bytes], step: int, now_us: int) -> None:
        """`step` (1 or -1) more of the waiting requests want these blocks: those that are here are valued anew."""
        self.values.want(hashes, step)
        for block_hash in hashes:
            if (block := self._named.get(block_hash)) is not None:
                self._victims.settle(block, now_us)

    # ------------------------------------------------------------------ slots
    def _occupy(self, scope_id: int, count: int, now_us: int) -> list[Block]:
        free, generation, blocks = self._free, self._generation, self._blocks
        fresh = max(0, count - len(free))  # slots that were never used, if no others are left
        slots = [heapq.heappop(free) for _ in range(count - fresh)]
        if fresh:
            slots.extend(range(len(blocks), len(blocks) + fresh))
            blocks.extend([None] * fresh)
            generation.extend([0] * fresh)
        taken = []
        for slot in slots:
            generation[slot] += 1
            blocks[slot] = block = Block(slot, scope_id, generation[slot], now_us, now_us)
            taken.append(block)
        return taken

    def _vacate(self, blocks: Sequence[Block]) -> None:
        """The unpinned blocks are gone and their slots are free; the next owners have another generation."""
        for scope_id, count in by_account(blocks):
            step = rules.release(self.node, self.account(scope_id), count)
            assert step.ok
            self.node, self.accounts[scope_id] = step.node, step.account
        for block in blocks:
            self._unlink(block)

    def _unlink(self, block: Block) -> None:
        self._blocks[block.slot] = None
        heapq.heappush(self._free, block.slot)
        if block.block_hash is not None:
            self._victims.forget(block, self._now_us)

    def _forget(self, victim: Block, evicted: list[Block]) -> None:
        """The victim's accounts are already booked; its slot becomes free."""
        assert victim.block_hash is not None
        assert victim.pins == 0
        self.evicted_blocks += 1
        self._unlink(victim)
        evicted.append(victim)

    def name(
        self, block: Block, block_hash: bytes, parent: bytes | None, depth: int, now_us: int, mark: bytes = b""
    ) -> bool:
        """The block is now findable under `block_hash`; False (and unchanged) if another slot already is."""
        return self.name_run((block,), (block_hash,), (mark,), parent, depth, now_us) == 1

    def name_run(
        self, blocks: Sequence[Block], hashes: Sequence[bytes], marks: Sequence[bytes], parent: bytes | None,
        depth: int, now_us: int,
    ) -> int:  # fmt: skip
        """The blocks, neighbours in a chain from `depth` on, are now findable; how many: it ends before the first hash
        under which another slot is."""
        count = self._victims.name_run(blocks, hashes, marks, parent, depth, now_us)
        if self.retention.ages:
            for block in blocks[:count]:
                self.values.stored(block.scope_id, now_us)
        return count

    def drop(self, block: Block) -> None:
        """One pin ends; an unnamed block without pins has no further use and its slot is freed."""
        self.drop_all((block,))

    def drop_all(self, blocks: Sequence[Block]) -> None:
        """One pin of each ends, as with `drop`."""
        free: list[Block] = []
        for block in blocks:
            assert block.pins > 0, f"slot {block.slot} is not pinned"
            block.pins -= 1
            if not block.pins:
                free.append(block)
        for scope_id, count in by_account(free):
            step = rules.unpin(self.node, self.account(scope_id), count)
            assert step.ok
            self.node, self.accounts[scope_id] = step.node, step.account
        unnamed: list[Block] = []
        for block in free:
            if block.block_hash is None:
                unnamed.append(block)
            elif not block.own_children:
                self._victims.settle(block, self._now_us)
        self._vacate(unnamed)

    def purge(self, scope_ids: frozenset[int], keep_blocks: int = 0) -> tuple[Block, ...]:
        """Unpinned named blocks of these scopes are gone, deepest first, until they hold no more than `keep_blocks`."""
        gone = [b for b in self.named() if b.scope_id in scope_ids and not b.pins]
        over = sum(self.account(scope_id).used for scope_id in scope_ids) - keep_blocks
        return self.drop_named(sorted(gone, key=lambda b: (-b.depth, b.used_us))[: max(0, over)])

    def sweep(self, now_us: int) -> tuple[Block, ...]:
        """Every unpinned block past its TTL is gone."""
        if not self._ttl:
            return ()
        return self.drop_named([b for b in self.named() if not b.pins and self._is_expired(b, now_us)])

    def drop_named(self, blocks: list[Block]) -> tuple[Block, ...]:
        """These unpinned named blocks are gone."""
        assert all(block.block_hash is not None for block in blocks)
        self._vacate(blocks)
        return tuple(blocks)

    def check(self) -> None:
        """Raises AssertionError unless every conserved quantity adds up."""
        held = {block.slot: block for block in self._blocks if block is not None}
        used: dict[int, list[int]] = {}
        for block in held.values():
            row = used.setdefault(block.scope_id, [0, 0])
            row[0] += 1
            row[1] += block.pins > 0
        for scope_id, account in self.accounts.items():
            assert (account.used, account.pinned) == tuple(used.get(scope_id, [0, 0])), (scope_id, account)
            assert 0 <= account.pinned <= account.used <= account.limit, (scope_id, account)
        assert set(used) <= set(self.accounts)
        assert self.node.used == len(held) <= self.node.capacity
        assert self.node.committed == sum(rules.floor_of(a) for a in self.accounts.values()) <= self.node.capacity
        assert sorted([*self._free, *held]) == list(range(len(self._blocks))), "a slot is lost or twice there"
        assert len(self._blocks) == len(self._generation) <= self.node.capacity
        assert all((self._blocks[slot], self._generation[slot]) == (b, b.generation) for slot, b in held.items())
        named = {slot: b.block_hash for slot, b in held.items() if b.block_hash is not None}
        assert {b.slot: block_hash for block_hash, b in self._named.items()} == named
        self._victims.check()
