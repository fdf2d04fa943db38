"""Router and workers as shipped, with policies that mean no good, on a network that delays, repeats and loses messages."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from kvshare_research.core import messages as m
from kvshare_research.core.account import Account, Node, Step
from kvshare_research.core.ledger import Block
from kvshare_research.core.nouns import AccountSpec
from kvshare_research.core.prefetching import Prefetching
from kvshare_research.core.rights import GROUP, Membership, Reader, Scope, Ticket

from .fleet import BLOCK_TOKENS, NODES, Fleet

ACCOUNT = st.tuples(st.integers(0, 2), st.integers(6, 14), st.sampled_from([0, 0, 1, 2]))
SHARED = st.sampled_from([((0, 1, 8),), ((1, 1, 12),), ((0, 1, 4), (1, 1, 8))])
ENDS = st.permutations(range(NODES)).map(lambda order: (order[0], order[1]))
PRIVATE = st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 2 * BLOCK_TOKENS))


class FleetMachine(RuleBasedStateMachine):
    """Requests, deliveries in any order, repeats, losses, revocations, grants, restarts and the passing of time."""

    @initialize(salt=st.integers(0, 5), gullible=st.booleans(), rows=st.lists(ACCOUNT, min_size=5, max_size=5))
    def start(self, salt: int, gullible: bool, rows: list[tuple[int, int, int]]) -> None:
        accounts = [
            AccountSpec(scope_id=i, reserved_blocks=r, limit_blocks=limit, priority=p)
            for i, (r, limit, p) in enumerate(rows)
        ]
        self.fleet = Fleet(salt=salt, gullible=gullible, accounts=accounts)

    @rule(
        tenant=st.integers(1, 3),
        shared=SHARED,
        private=PRIVATE,
        executor=st.sampled_from([None, None, 0, 1, 2]),
        forged=st.booleans(),
    )
    def ask(
        self,
        tenant: int,
        shared: tuple[tuple[int, int, int], ...],
        private: tuple[int, int, int],
        executor: int | None,
        forged: bool,
    ) -> None:
        """A forged request knows the hashes of a group, or of another tenant, that it may not belong to."""
        victim, text, count = private
        self.fleet.ask(
            tenant, [*shared, (1 + (victim if forged else tenant), 10 + text, count)], executor, forged=forged
        )

    @precondition(lambda self: self.fleet.wires)
    @rule(data=st.data(), again=st.sampled_from([False, False, True]))
    def deliver(self, data: st.DataObject, again: bool) -> None:
        self.fleet.deliver(data.draw(st.integers(0, len(self.fleet.wires) - 1)), again=again)

    @precondition(lambda self: self.fleet.wires)
    @rule(count=st.integers(5, 40))
    def deliver_in_order(self, count: int) -> None:
        for _ in range(min(count, len(self.fleet.wires))):
            self.fleet.deliver(0)

    @precondition(lambda self: self.fleet.wires)
    @rule(data=st.data())
    def lose_message(self, data: st.DataObject) -> None:
        self.fleet.drop(data.draw(st.integers(0, len(self.fleet.wires) - 1)))

    @precondition(lambda self: self.fleet.asked)
    @rule(data=st.data(), tenant=st.integers(1, 3), ends=ENDS, start=st.integers(0, 2), ticks=st.sampled_from([1, 90]))
    def prefetch(self, data: st.DataObject, tenant: int, ends: tuple[int, int], start: int, ticks: int) -> None:
        """Anybody's chain in anybody's name, from where it may not be."""
        number = data.draw(st.integers(1, len(self.fleet.asked)))
        self.fleet.prefetch(number, ends[0], ends[1], start, tenant, ticks)

    @precondition(lambda self: self.fleet.prefetches)
    @rule(data=st.data(), node=st.integers(0, NODES - 1))
    def cancel_prefetch(self, data: st.DataObject, node: int) -> None:
        self.fleet.cancel(node, data.draw(st.integers(1, self.fleet.prefetches)))

    @rule(tenant=st.integers(1, 3))
    def revoke(self, tenant: int) -> None:
        self.fleet.change(self.fleet.directory.revoked(tenant, 1))

    @rule(tenant=st.integers(1, 3))
    def grant(self, tenant: int) -> None:
        self.fleet.change(self.fleet.directory.granted(tenant, 1))

    @precondition(lambda self: not self.fleet.directory.removed)
    @rule(tenant=st.integers(1, 3))
    def remove_tenant(self, tenant: int) -> None:
        self.fleet.change(self.fleet.directory.without_tenant(tenant))

    @rule(node=st.integers(0, NODES - 1))
    def restart(self, node: int) -> None:
        self.fleet.lose(node)

    @rule(ticks=st.sampled_from([1, 10, 60]))
    def time_passes(self, ticks: int) -> None:
        self.fleet.tick(ticks)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "fleet"):
            self.fleet.check()

    def teardown(self) -> None:
        if hasattr(self, "fleet"):
            self.fleet.settle()
            self.fleet.check()
            self.fleet.check_settled()


TestFleetMachine = FleetMachine.TestCase
TestFleetMachine.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def play_at_random(seed: int, steps: int) -> Fleet:
    """The same moves, drawn quickly: what shrinking is too slow for, numbers make up."""
    draw = random.Random(seed)
    rows = [(draw.randint(0, 2), draw.randint(6, 14), draw.choice([0, 0, 1, 2])) for _ in range(5)]
    specs = [AccountSpec(scope_id=i, reserved_blocks=r, limit_blocks=n, priority=p) for i, (r, n, p) in enumerate(rows)]
    fleet = Fleet(salt=draw.randint(0, 5), gullible=draw.random() < 0.5, accounts=specs)
    for _ in range(steps):
        move_at_random(fleet, draw)
        fleet.check()
    fleet.settle()
    fleet.check()
    fleet.check_settled()
    return fleet


def move_at_random(fleet: Fleet, draw: random.Random) -> None:
    move = draw.random()
    if move < 0.2:
        tenant, victim, forged = draw.randint(1, 3), draw.randint(1, 3), draw.random() < 0.4
        shared = [(s, 1, draw.choice([4, 8, 12])) for s in draw.choice([[0], [1], [0, 1]])]
        private = (1 + (victim if forged else tenant), 10, draw.randint(1, 8))
        fleet.ask(tenant, [*shared, private], draw.choice([None, 0, 1, 2]), forged=forged)
    elif move < 0.28:
        if fleet.asked:
            node, source = draw.sample(range(NODES), 2)
            number, tenant = draw.randint(1, len(fleet.asked)), draw.randint(1, 3)
            fleet.prefetch(number, node, source, draw.choice([0, 0, 1, 2]), tenant, draw.choice([5, 90]))
    elif move < 0.30:
        under_way = [(n, i) for n, w in enumerate(fleet.workers) for i in w.prefetching.flights]
        if under_way:
            fleet.cancel(*draw.choice(under_way))
            fleet.deliver(draw.choice([0, -1]))
    elif move < 0.85:
        for _ in range(draw.choice([1, 1, 5, 20])):
            if fleet.wires:
                fleet.deliver(draw.choice([0, 0, draw.randrange(len(fleet.wires))]), again=draw.random() < 0.1)
    elif move < 0.88:
        if fleet.wires:
            fleet.drop(draw.randrange(len(fleet.wires)))
    elif move < 0.92:
        fleet.change(fleet.directory.revoked(draw.randint(1, 3), 1))
    elif move < 0.95:
        fleet.change(fleet.directory.granted(draw.randint(1, 3), 1))
    elif move < 0.955 and not fleet.directory.removed:
        fleet.change(fleet.directory.without_tenant(draw.randint(1, 3)))
    elif move < 0.97:
        fleet.lose(draw.randrange(NODES))
    else:
        fleet.tick(draw.choice([1, 10, 60]))


RUNS = 80


def test_a_hostile_network_at_random() -> None:
    """Every invariant after every move, and everything ended, unpinned and known at rest."""
    fleets = [play_at_random(seed, 60) for seed in range(RUNS)]
    assert sum(f.steps for f in fleets) > 100 * RUNS
    assert sum(f.cross_reads for f in fleets) > 3 * RUNS, "too little is shared for this to mean anything"
    assert sum(o.pulled_tokens for f in fleets for o in f.done()) > 3 * RUNS
    ended = sum((w.prefetching.counters for f in fleets for w in f.workers), Counter())
    assert ended["landed_blocks"] > RUNS / 4 and ended["ended: cancelled"] > 0 < ended["ended: room needed"]
    assert sum(f.unpolluted for f in fleets) > RUNS / 2


def always(*_: object) -> bool:
    return True


def ticket_for_all(
    scope: Scope, reader: Reader, row: Membership, generation: int, now_us: int, lease_us: int
) -> Ticket:
    return Ticket(row.grant_epoch, generation, now_us + lease_us)


def admit_all(node: Node, account: Account, count: int) -> Step:
    return Step(True, replace(node, used=node.used + count), replace(account, used=account.used + count))


def pin_nothing(node: Node, account: Account, count: int) -> Step:
    return Step(True, node, account)


def play_many() -> None:
    for seed in range(300):
        play_at_random(seed, 60)


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        ("worker.may_read", always),
        ("serving.open_read", ticket_for_all),
        ("fetching.may_deliver", always),
        ("account.admit", admit_all),
        ("account.pin", pin_nothing),
    ],
)
def test_a_machine_without_one_of_its_rules_is_found_out(
    rule: str, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"kvshare_research.core.{rule}", wrong)
    with pytest.raises((AssertionError, KeyError, IndexError)):
        play_many()


def takes_by_force(self: Prefetching, event: m.PrefetchAsked, held: list[Block], now_us: int) -> bool:
    for scope_id, end in event.chain.scope_ends:
        if end > len(held):
            taken, _ = self._ledger.allocate(scope_id, end - len(held), now_us, evict=True)
            if taken is None:
                return False
            held.extend(taken)
    return True


def forgets_its_blocks(self: Prefetching, number: int, reason: str = "") -> list[m.WorkerEffect]:
    flight = self.flights.pop(number, None)
    return [] if flight is None else self._fetching.cancel(flight[0])


@pytest.mark.parametrize(("method", "wrong"), [("_take", takes_by_force), ("cancel", forgets_its_blocks)])
def test_a_prefetch_that_displaces_or_leaks_is_found_out(
    method: str, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prefetching, method, wrong)
    with pytest.raises((AssertionError, KeyError, IndexError)):
        play_many()


def accounts(reserved: int = 0) -> list[AccountSpec]:
    return [AccountSpec(scope_id=i, reserved_blocks=reserved, limit_blocks=14) for i in range(5)]


def play(fleet: Fleet, tenant: int, scope_id: int, executor: int) -> int:
    """A request with three blocks of `scope_id` and a private tail, to its end; returns the tokens it reused."""
    fleet.ask(tenant, [(scope_id, 1, 12), (1 + tenant, 11, 5)], executor, forged=True)
    while fleet.wires:
        fleet.deliver(0)
    return max(o.prompt_tokens - o.computed_tokens for o in fleet.done() if o.request_id == len(fleet.asked))


@pytest.mark.parametrize("gullible", [False, True], ids=["router knows", "router believes all is public"])
@pytest.mark.parametrize("executor", [0, 1], ids=["where it is", "elsewhere"])
def test_paired_on_every_path(gullible: bool, executor: int) -> None:
    """The same tenant reuses, a member reuses what is the group's, a stranger reuses nothing; after revocation neither."""
    for salt in range(4):
        fleet = Fleet(salt=salt, gullible=gullible, accounts=accounts())
        assert play(fleet, 1, 1, 0) == 0
        assert play(fleet, 3, 1, executor) == 0
        fleet.change(fleet.directory.revoked(2, 1))
        while fleet.wires:
            fleet.deliver(0)
        assert fleet.router.revocation_complete()
        assert play(fleet, 2, 1, executor) == 0
        fleet.check()


def test_a_fetch_under_way_while_the_right_is_revoked_is_not_used() -> None:
    """The reader learns of the revocation after the holder has sent and before the bytes arrive."""
    used = []
    for revoke in (False, True):
        fleet = Fleet(salt=3, gullible=True, accounts=accounts())
        play(fleet, 1, 1, 0)
        reuses = 0
        for attempt in range(12):
            fleet.ask(2, [(1, 1, 12), (3, 20 + attempt, 5)], 1, forged=True)
            while fleet.wires:
                landing = next((i for i, w in enumerate(fleet.wires) if type(w.event).__name__ == "FetchLanded"), None)
                if landing is not None and revoke and fleet.directory.membership(2, fleet.directory.scopes[1]).active:
                    fleet.change(fleet.directory.revoked(2, 1))
                    changed = next(
                        i
                        for i, w in enumerate(fleet.wires)
                        if w.to == 1 and type(w.event).__name__ == "DirectoryChanged"
                    )
                    fleet.deliver(changed)
                    continue
                fleet.deliver(0)
            outcome = fleet.records[len(fleet.asked)][0]
            reuses += outcome.pulled_tokens
        used.append(reuses)
        assert fleet.directory.scopes[1].level == GROUP
    assert used[0] > 0, "without a revocation the fetch is used"
    assert used[1] == 0


def test_members_reuse_what_is_the_groups() -> None:
    """The pair of the tests above: without this they could pass by sharing nothing."""
    for executor in (0, 1):
        reused = [play(f, 2, 1, executor) for f in members()]
        assert max(reused) == 12


def members() -> list[Fleet]:
    fleets = [Fleet(salt=salt, gullible=False, accounts=accounts()) for salt in range(6)]
    for fleet in fleets:
        play(fleet, 1, 1, 0)
    return fleets


def test_a_removed_tenant_leaves_nothing_behind() -> None:
    """Its private blocks are gone from every node, its floor is free, its requests are rejected; the public ones stay."""
    fleet = Fleet(salt=0, gullible=False, accounts=accounts())
    for executor in range(NODES):
        play(fleet, 1, 0, executor)
    assert any(b.scope_id == 2 for w in fleet.workers for b in w.ledger.named())
    fleet.change(fleet.directory.without_tenant(1))
    fleet.ask(1, [(0, 1, 12), (2, 11, 5)], 0)
    fleet.settle()
    fleet.check_settled()
    assert not any(b.scope_id == 2 for w in fleet.workers for b in w.ledger.named())
    assert any(b.scope_id == 0 for w in fleet.workers for b in w.ledger.named())
    (outcome,) = fleet.records[len(fleet.asked)]
    assert outcome.reason == "the tenant has been removed"
