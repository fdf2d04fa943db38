"""The ledger: whatever is asked of it, its accounts add up and nobody falls below a floor."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvshare_research.core import account as rules
from kvshare_research.core.ledger import Block, Ledger
from kvshare_research.core.nouns import AccountSpec
from kvshare_research.core.ports import BlockView, Retention
from kvshare_research.retention.lru import LruRetention

SCOPES = range(4)


class Contrary(Retention):
    """A retention policy that raises, answers NaN, or lies, depending on the slot."""

    def score(self, block: BlockView, now_us: int) -> float:
        if block.slot % 3 == 0:
            raise RuntimeError("broken policy")
        return float("nan") if block.slot % 3 == 1 else -block.used_us


class LedgerMachine(RuleBasedStateMachine):
    """Allocations, names, pins, drops, sweeps and quota changes in any order, with any retention policy."""

    @initialize(contrary=st.booleans(), reserved=st.lists(st.integers(0, 3), min_size=4, max_size=4), data=st.data())
    def start(self, contrary: bool, reserved: list[int], data: st.DataObject) -> None:
        self.now = 0
        self.held: list[Block] = []
        self.chains = 0
        specs = [
            AccountSpec(
                scope_id=s,
                reserved_blocks=reserved[s],
                limit_blocks=data.draw(st.integers(reserved[s], 12)),
                priority=data.draw(st.integers(0, 2)),
                ttl_us=data.draw(st.sampled_from([None, 5])),
            )
            for s in SCOPES
        ]
        self.ledger = Ledger(capacity_blocks=12, accounts=specs, retention=Contrary() if contrary else LruRetention())

    @rule(scope_id=st.sampled_from(SCOPES), count=st.integers(1, 5))
    def allocate(self, scope_id: int, count: int) -> None:
        self.now += 1
        before = {s: a.used for s, a in self.ledger.accounts.items()}
        floors = {s: a.reserved for s, a in self.ledger.accounts.items()}
        classes = {s: a.priority for s, a in self.ledger.accounts.items()}
        taken, evicted = self.ledger.allocate(scope_id, count, self.now)
        for gone in evicted:
            assert gone.scope_id == scope_id or classes[gone.scope_id] <= classes[scope_id]
        for other in SCOPES:
            if other != scope_id and self.ledger.accounts[other].used < before[other]:
                assert self.ledger.accounts[other].used >= floors[other]
        if taken is not None:
            assert [b.scope_id for b in taken] == [scope_id] * count
            assert all(b.pins == 1 for b in taken)
            self.held.extend(taken)

    @rule(depth=st.integers(1, 4))
    def name_a_chain(self, depth: int) -> None:
        unnamed = [b for b in self.held if b.block_hash is None][:depth]
        self.chains += 1
        parent = None
        for i, block in enumerate(unnamed):
            block_hash = b"%08d%08d" % (self.chains, i)
            assert self.ledger.name(block, block_hash, parent, i, self.now)
            assert not self.ledger.name(block, block_hash, parent, i, self.now), "named twice"
            parent = block_hash

    @rule(place=st.integers(1, 15))
    def name_in_a_tree(self, place: int) -> None:
        """Places come and go in any order: one may be named before its parent, and again after it has left."""
        unnamed = [b for b in self.held if b.block_hash is None]
        if unnamed:
            parent = b"%016d" % (place // 2) if place > 1 else None
            taken = self.ledger.find(b"%016d" % place, self.now - 100) is not None
            assert self.ledger.name(unnamed[0], b"%016d" % place, parent, place.bit_length(), self.now) != taken

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.ledger.drop(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @rule(data=st.data())
    def pin_a_named_block(self, data: st.DataObject) -> None:
        named = self.ledger.named()
        if named:
            block = named[data.draw(st.integers(0, len(named) - 1))]
            pins = block.pins
            if self.ledger.pin(block):
                self.held.append(block)
            else:
                assert block.pins == pins == 0

    @rule(ticks=st.integers(1, 10))
    def time_passes(self, ticks: int) -> None:
        self.now += ticks
        for gone in self.ledger.sweep(self.now):
            assert self.ledger.find(gone.block_hash, self.now) is None

    @rule(scope_id=st.sampled_from(SCOPES), reserved=st.integers(0, 4), extra=st.integers(0, 8), cls=st.integers(0, 2))
    def configure(self, scope_id: int, reserved: int, extra: int, cls: int) -> None:
        before = self.ledger.accounts[scope_id]
        spec = AccountSpec(scope_id=scope_id, reserved_blocks=reserved, limit_blocks=reserved + extra, priority=cls)
        if not self.ledger.configure(spec):
            assert self.ledger.accounts[scope_id] == before

    @rule(scope_id=st.sampled_from(SCOPES))
    def purge(self, scope_id: int) -> None:
        self.ledger.purge(frozenset({scope_id}))
        assert all(b.pins for b in self.ledger.named() if b.scope_id == scope_id)

    @precondition(lambda self: self.ledger.named())
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        named = self.ledger.named()
        self.now += 1
        self.ledger.touch(named[data.draw(st.integers(0, len(named) - 1))], self.now)

    @rule(scope_id=st.sampled_from(SCOPES), count=st.integers(1, 4))
    def evicts_as_looking_at_every_block_would(self, scope_id: int, count: int) -> None:
        """The blocks that leave are those, in order, that a look at the whole pool picks one by one."""
        planned = one_by_one(self.ledger, scope_id, count, self.now)
        taken, evicted = self.ledger.allocate(scope_id, count, self.now)
        if taken is not None:
            self.held.extend(taken)
            assert [e.block_hash for e in evicted] == planned

    @invariant()
    def adds_up(self) -> None:
        self.ledger.check()
        for block in self.held:
            assert self.ledger.block(block.slot) is block, "a pinned block was evicted"


def first_to_go(ledger: Ledger, scope_id: int) -> bytes | None:
    """The block to make way for one of this scope, by looking at every block of the pool; None if none has to or may."""
    if rules.admit(ledger.node, ledger.account(scope_id), 1).ok:
        return None
    named = ledger.named()
    linked = {(b.parent, b.scope_id) for b in named}
    present = {b.block_hash for b in named}
    ranks = []
    for block in named:
        mine, theirs = ledger.account(scope_id), ledger.account(block.scope_id)
        own = block.scope_id == scope_id
        allowed = rules.may_replace_own(mine, 1) if own else rules.admit_evicting(ledger.node, mine, theirs, 1).ok
        if block.pins or not allowed:
            continue
        orphan = block.parent is not None and block.parent not in present
        broken = isinstance(ledger.retention, Contrary)
        value = (
            (-block.used_us if block.slot % 3 == 2 else block.used_us) if broken else block.used_us - block.depth * 1e-6
        )
        score = float("-inf") if orphan else value
        ranks.append(
            (theirs.priority, (block.block_hash, block.scope_id) in linked, score, block.slot, block.block_hash)
        )
    return min(ranks)[-1] if ranks else None


def one_by_one(ledger: Ledger, scope_id: int, count: int, now_us: int) -> list[bytes]:
    """What leaves if the blocks are asked for one at a time, each checked against a look at the whole pool."""
    copy, gone = deepcopy(ledger), []
    for _ in range(count):
        expected = first_to_go(copy, scope_id)
        taken, evicted = copy.allocate(scope_id, 1, now_us)
        if taken is not None:
            assert [e.block_hash for e in evicted] == ([] if expected is None else [expected])
        gone += [e.block_hash for e in evicted]
    return gone


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


@given(toggles=st.lists(st.tuples(st.integers(1, 15), st.integers(0, 1)), min_size=8, max_size=40), seen=st.booleans())
@settings(deadline=None, derandomize=True, max_examples=80)
def test_links_hold_whatever_comes_and_goes(toggles: list[tuple[int, int]], seen: bool) -> None:
    """Places of a wide tree in two accounts come and go in any order, parents before their children and after: links
    and leaves are right after each step, and every leaf has the score of its present state."""
    ledger = Ledger(capacity_blocks=20, accounts=(), retention=LruRetention())
    for now_us, (place, scope_id) in enumerate(toggles):
        block_hash, parent = b"%016d" % place, b"%016d" % (place // 4) if place > 3 else None
        there = ledger.find(block_hash, now_us)
        if there is not None:
            ledger.drop_named([there])
        else:
            taken, _ = ledger.allocate(scope_id, 1, now_us)
            assert taken is not None
            assert ledger.name(taken[0], block_hash, parent, int(place > 3), now_us)
            ledger.drop(taken[0])
            if seen:
                ledger.touch(taken[0], now_us)
        ledger.check()
        for block in ledger.named():
            assert block.entry is None or block.entry[0] == ledger.values.score(block, now_us)


def filled(count: int, retention: Retention | None = None) -> tuple[Ledger, list[bytes]]:
    """A ledger of `count` blocks, all taken by one unpinned chain of scope 0."""
    ledger = Ledger(capacity_blocks=count, accounts=(), retention=retention or LruRetention())
    taken, _ = ledger.allocate(0, count, 0)
    assert taken is not None
    hashes = [b"%016d" % i for i in range(count)]
    for i, block in enumerate(taken):
        ledger.name(block, hashes[i], hashes[i - 1] if i else None, i, 0)
        ledger.drop(block)
    return ledger, hashes


@given(count=st.integers(1, 8), need=st.integers(1, 8))
@settings(deadline=None, derandomize=True)
def test_eviction_takes_leaves_first(count: int, need: int) -> None:
    """What remains of a chain is always a prefix of it, whatever had to go."""
    ledger, hashes = filled(count)
    taken, evicted = ledger.allocate(1, need, 1)

    assert (taken is not None) == (need <= count)
    gone = {e.block_hash for e in evicted}
    assert gone == set(hashes[count - len(gone) :])


def test_a_policy_that_raises_never_stops_eviction() -> None:
    """The pool still yields blocks, the failures are counted, and LRU stands in."""
    ledger, _ = filled(6, Contrary())
    taken, evicted = ledger.allocate(1, 6, 1)

    assert taken is not None
    assert len(evicted) == 6
    assert ledger.values.errors > 0


@pytest.mark.parametrize("fill", [1, 19])
def test_over_quota_is_refused_alike_at_any_fill(fill: int) -> None:
    """The same words at 10 % and at 95 % pool use: the answer depends on quotas alone."""
    spec = AccountSpec(scope_id=1, reserved_blocks=0, limit_blocks=4)
    ledger = Ledger(capacity_blocks=20, accounts=(spec,), retention=LruRetention())
    ledger.allocate(0, fill, 0)

    assert ledger.fits_ever({1: 5}) == "QuotaExceeded: scope 1 needs 5 blocks, its limit is 4"
    assert ledger.fits_ever({1: 4}) is None


def test_ttl_ends_at_its_boundary() -> None:
    """Alive just before, dead at the boundary; use extends a sliding TTL and not an absolute one."""
    for sliding in (False, True):
        spec = AccountSpec(scope_id=0, reserved_blocks=0, limit_blocks=4, ttl_us=10, sliding_ttl=sliding)
        ledger = Ledger(capacity_blocks=4, accounts=(spec,), retention=LruRetention())
        taken, _ = ledger.allocate(0, 1, 0)
        assert taken is not None
        ledger.name(taken[0], b"0" * 16, None, 0, 0)
        ledger.touch(taken[0], 6)

        assert ledger.find(b"0" * 16, 9) is not None
        assert (ledger.find(b"0" * 16, 10) is not None) == sliding
        assert ledger.find(b"0" * 16, 16) is None
