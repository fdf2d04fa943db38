"""The ledger of one node: which slot holds which block, for which account, pinned by how many. The only authority.

Tables live here; every decision about them is a rule of `account.py` or `rights.py`. Slots hold a *named* block
(its hash is readable by others) or an *unnamed* one (being computed or fetched, a partial tail, decoded tokens).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from . import account as rules
from .account import Account, Node
from .nouns import AccountSpec
from .ports import BlockView, Retention

ORPHAN_SCORE = float("-inf")  # a block whose parent is gone cannot be matched: it goes first


@dataclass(slots=True, kw_only=True)
class Block:
    """One used slot."""

    slot: int
    scope_id: int
    generation: int
    pins: int = 0
    block_hash: bytes | None = None
    parent: bytes | None = None
    depth: int = 0
    origin: int = 0  # the tenant whose request first computed it
    stored_us: int = 0
    used_us: int = 0
    use_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted:
    """A named block that left: its slot is free, its hash must be unpublished."""

    slot: int
    scope_id: int
    block_hash: bytes


class Ledger:
    """Slots, blocks and accounts of one node. A refused operation changes nothing but what it evicted and reports."""

    def __init__(
        self, *, capacity_blocks: int, accounts: Iterable[AccountSpec], retention: Retention, recompute_us: int = 1
    ) -> None:
        self.node = Node(capacity_blocks, 0, 0)
        self.accounts: dict[int, Account] = {}
        self.specs: dict[int, AccountSpec] = {}
        self.retention = retention
        self.retention_errors = 0
        self.evicted_blocks = 0
        self._recompute_us = recompute_us
        self._blocks: dict[int, Block] = {}
        self._slot_of: dict[bytes, int] = {}
        self._children: dict[tuple[bytes, int], int] = {}  # named children of a block within one account
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

    # ------------------------------------------------------------------ reading
    def find(self, block_hash: bytes, now_us: int) -> Block | None:
        """The live named block with this hash; None if absent or past its TTL. Changes nothing."""
        slot = self._slot_of.get(block_hash)
        if slot is None:
            return None
        block = self._blocks[slot]
        return None if self._is_expired(block, now_us) else block

    def block(self, slot: int) -> Block:
        return self._blocks[slot]

    def named(self) -> tuple[Block, ...]:
        """All named blocks, by slot."""
        return tuple(self._blocks[slot] for slot in sorted(self._slot_of.values()))

    def touch(self, block: Block, now_us: int) -> None:
        """The block has been used once more."""
        block.used_us = now_us
        block.use_count += 1

    def _is_expired(self, block: Block, now_us: int) -> bool:
        spec = self.specs.get(block.scope_id)
        if spec is None or spec.ttl_us is None:
            return False
        since = block.used_us if spec.sliding_ttl else block.stored_us
        return now_us >= since + spec.ttl_us

    # ------------------------------------------------------------------ pins
    def pin(self, block: Block) -> bool:
        """One more pin; the first of a block is an admission and may be refused."""
        if block.pins == 0:
            step = rules.pin(self.node, self.account(block.scope_id), 1)
            if not step.ok:
                return False
            self.node, self.accounts[block.scope_id] = step.node, step.account
        block.pins += 1
        return True

    def unpin(self, block: Block) -> None:
        """One pin fewer."""
        assert block.pins > 0, f"slot {block.slot} is not pinned"
        block.pins -= 1
        if block.pins == 0:
            step = rules.unpin(self.node, self.account(block.scope_id), 1)
            assert step.ok
            self.node, self.accounts[block.scope_id] = step.node, step.account

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
        pinned = sum(a.pinned for a in self.accounts.values())
        within = all(self.account(s).pinned + count <= self.account(s).limit for s, count in counts.items())
        return within and pinned + sum(counts.values()) <= self.node.capacity

    def allocate(self, scope_id: int, count: int, now_us: int) -> tuple[tuple[Block, ...] | None, tuple[Evicted, ...]]:
        """`count` pinned unnamed blocks for the scope, or None when that many cannot be had now.

        Evicts as needed, leaves first, lowest class first, then lowest retention score. What it evicted before
        it had to give up is reported too.
        """
        evicted: list[Evicted] = []
        taken: list[Block] = []
        while len(taken) < count:
            block = self._take(scope_id, now_us, evicted)
            if block is None:
                for done in taken:
                    self.drop(done)
                return None, tuple(evicted)
            taken.append(block)
        return tuple(taken), tuple(evicted)

    def _take(self, scope_id: int, now_us: int, evicted: list[Evicted]) -> Block | None:
        step = rules.admit(self.node, self.account(scope_id), 1)
        if step.ok:
            self.node, self.accounts[scope_id] = step.node, step.account
        else:
            victim = self._victim(scope_id, now_us)
            if victim is None or not self._give_up(victim, scope_id):
                return None
            evicted.append(self._forget(victim))
        block = self._occupy(scope_id, now_us)
        if not self.pin(block):
            self._vacate(block)
            return None
        return block

    def _give_up(self, victim: Block, scope_id: int) -> bool:
        """The victim's block is re-booked to the admitting account by the rule that covers the case."""
        mine, theirs = self.account(scope_id), self.account(victim.scope_id)
        if victim.scope_id == scope_id:
            step = rules.release(self.node, mine, 1)
            grown = rules.admit(step.node, step.account, 1) if step.ok else step
            if not grown.ok:
                return False
            self.node, self.accounts[scope_id] = grown.node, grown.account
            return True
        step = rules.admit_evicting(self.node, mine, theirs, 1)
        if not step.ok or step.victim is None:
            return False
        self.node, self.accounts[scope_id], self.accounts[victim.scope_id] = step.node, step.account, step.victim
        return True

    def _victim(self, scope_id: int, now_us: int) -> Block | None:
        """The block to go so that this scope gets one, among what the rules let go: of the lowest class, a leaf of its
        account rather than a block inside a chain, then the least valuable. Whoever may yield has such a block."""
        mine = self.account(scope_id)
        permitted = {
            other: self.accounts[other].priority
            for other in self.accounts
            if (rules.may_replace_own(mine, 1) if other == scope_id else self._evictable(other, scope_id))
        }
        best: tuple[int, bool, float, int] | None = None
        for slot in self._slot_of.values():
            block = self._blocks[slot]
            if block.pins or block.scope_id not in permitted:
                continue
            key = (permitted[block.scope_id], self._has_children(block), self._score(block, now_us), slot)
            if best is None or key < best:
                best = key
        return None if best is None else self._blocks[best[3]]

    def _evictable(self, other: int, scope_id: int) -> bool:
        return rules.admit_evicting(self.node, self.account(scope_id), self.accounts[other], 1).ok

    def _has_children(self, block: Block) -> bool:
        return block.block_hash is not None and self._children.get((block.block_hash, block.scope_id), 0) > 0

    def _score(self, block: Block, now_us: int) -> float:
        """The retention policy's word; a policy that raises or answers NaN is counted and LRU stands in."""
        if block.parent is not None and block.parent not in self._slot_of:
            return ORPHAN_SCORE
        view = BlockView(
            slot=block.slot, scope_id=block.scope_id, depth=block.depth, stored_us=block.stored_us,
            used_us=block.used_us, use_count=block.use_count, recompute_us=self._recompute_us,
        )  # fmt: skip
        try:
            score = self.retention.score(view, now_us)
        except Exception:  # noqa: BLE001 -- a broken policy must never stop eviction
            score = float("nan")
        if score != score:
            self.retention_errors += 1
            return float(block.used_us)
        return score

    # ------------------------------------------------------------------ slots
    def _occupy(self, scope_id: int, now_us: int) -> Block:
        slot = heapq.heappop(self._free)
        self._generation[slot] += 1
        block = Block(slot=slot, scope_id=scope_id, generation=self._generation[slot], stored_us=now_us, used_us=now_us)
        self._blocks[slot] = block
        return block

    def _vacate(self, block: Block) -> None:
        """The unpinned block is gone and its slot is free; its next owner has another generation."""
        step = rules.release(self.node, self.account(block.scope_id), 1)
        assert step.ok
        self.node, self.accounts[block.scope_id] = step.node, step.account
        self._unlink(block)

    def _unlink(self, block: Block) -> None:
        del self._blocks[block.slot]
        heapq.heappush(self._free, block.slot)
        if block.block_hash is not None:
            del self._slot_of[block.block_hash]
            if block.parent is not None:
                link = (block.parent, block.scope_id)
                self._children[link] -= 1
                if not self._children[link]:
                    del self._children[link]

    def _forget(self, victim: Block) -> Evicted:
        """The victim's accounts are already booked; its slot becomes free."""
        assert victim.block_hash is not None
        assert victim.pins == 0
        self.evicted_blocks += 1
        self._unlink(victim)
        return Evicted(slot=victim.slot, scope_id=victim.scope_id, block_hash=victim.block_hash)

    def name(self, block: Block, block_hash: bytes, parent: bytes | None, depth: int, origin: int, now_us: int) -> bool:
        """The block is now findable under `block_hash`; False (and unchanged) if another slot already is."""
        if block_hash in self._slot_of:
            return False
        block.block_hash, block.parent, block.depth = block_hash, parent, depth
        block.origin, block.stored_us, block.used_us = origin, now_us, now_us
        self._slot_of[block_hash] = block.slot
        if parent is not None:
            link = (parent, block.scope_id)
            self._children[link] = self._children.get(link, 0) + 1
        return True

    def drop(self, block: Block) -> None:
        """One pin ends; an unnamed block without pins has no further use and its slot is freed."""
        self.unpin(block)
        if block.pins == 0 and block.block_hash is None:
            self._vacate(block)

    def purge(self, scope_ids: frozenset[int]) -> tuple[Evicted, ...]:
        """Every unpinned named block of these scopes is gone (tenant removed, scope demoted)."""
        gone = [b for b in self.named() if b.scope_id in scope_ids and not b.pins]
        return self._drop_named(gone)

    def sweep(self, now_us: int) -> tuple[Evicted, ...]:
        """Every unpinned block past its TTL is gone."""
        if not any(spec.ttl_us is not None for spec in self.specs.values()):
            return ()
        return self._drop_named([b for b in self.named() if not b.pins and self._is_expired(b, now_us)])

    def _drop_named(self, blocks: list[Block]) -> tuple[Evicted, ...]:
        out = []
        for block in blocks:
            assert block.block_hash is not None
            out.append(Evicted(slot=block.slot, scope_id=block.scope_id, block_hash=block.block_hash))
            self._vacate(block)
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
