"""Tenants come, change their quota and go while requests run: what is promised holds at every moment, and soon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.attack.probing import modelled_fleet
from kvshare_research.core import messages as m
from kvshare_research.core.directory import Directory
from kvshare_research.core.ledger import Block, Ledger
from kvshare_research.core.nouns import AccountSpec, Outcome, Request, Segment, Status
from kvshare_research.core.requota import Requota
from kvshare_research.core.rights import EVERYBODY, TENANT, Scope
from kvshare_research.driver.simulator import Simulator
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.namespace import ModelSpace, chain
from kvshare_research.retention.lru import LruRetention
from kvshare_research.schedule.fcfs import FcfsSchedule

CAPACITY, TOKENS = 20, 16
SPACE = ModelSpace(model="m", dtype="d", block_tokens=TOKENS)
RING = KeyRing(RootSecret.from_seed(0))
BASE = Directory(tenants=("a", "b"), groups=(), scopes=(EVERYBODY, Scope(TENANT, 1), Scope(TENANT, 2)))


def quota(scope_id: int, floor: int, limit: int, priority: int = 0) -> AccountSpec:
    return AccountSpec(scope_id=scope_id, reserved_blocks=floor, limit_blocks=limit, priority=priority)


def with_quotas(book: Directory, *specs: AccountSpec) -> Directory:
    return replace(book, accounts=specs, revision=book.revision + 1)


def fleet(*specs: AccountSpec, nodes: int = 2) -> Simulator:
    return modelled_fleet(
        with_quotas(BASE, *specs), FcfsSchedule(), nodes=nodes, capacity_blocks=CAPACITY, us_per_token=200, seed=0
    )


def ask(sim: Simulator, number: int, tenant: int, blocks: int, at_us: int, executor: int = 0) -> None:
    tokens = np.random.default_rng(number).integers(0, 999, blocks * TOKENS, dtype=np.uint32)
    segments = (Segment(scope_id=tenant, token_count=len(tokens)),)
    request = Request(
        request_id=number, tenant_id=tenant, segments=segments, output_tokens_max=1, ingress=executor,
        arrival_us=at_us, executor=executor,
    )  # fmt: skip
    directory = sim.router.directory
    sim.inject(request, chain(tokens, segments, (tenant,), directory=directory, ring=RING, space=SPACE))


def change(sim: Simulator, at_us: int, directory: Directory) -> None:
    sim.at(at_us, m.DirectoryChanged(directory=directory))


def outcome(sim: Simulator, number: int) -> Outcome:
    (found,) = [o for o in sim.outcomes if o.request_id == number]
    return found


def held(sim: Simulator, scope_id: int) -> list[int]:
    return [sum(b.scope_id == scope_id for b in worker.ledger.named()) for worker in sim.workers]


def checked(sim: Simulator) -> None:
    sim.run()
    for worker in sim.workers:
        worker.ledger.check()


LOWERED = quota(1, 0, 5), quota(2, 0, 20)


def test_a_lowered_limit_holds_at_once_and_the_router_hears_what_went() -> None:
    sim = fleet(quota(1, 0, 20), quota(2, 0, 20))
    ask(sim, 1, 1, 12, 1)
    checked(sim)
    assert held(sim, 1) == [12, 0]
    change(sim, sim.now_us + 1, with_quotas(sim.router.directory, *LOWERED))
    checked(sim)
    assert held(sim, 1) == [5, 0]
    assert sim.workers[0].ledger.accounts[1].limit == 5
    assert sorted(b.depth for b in sim.workers[0].ledger.named()) == [0, 1, 2, 3, 4], "a chain has a hole"
    assert len(sim.router.replica.store.rows(0)) == 5


def test_what_runs_keeps_its_blocks_and_the_limit_is_in_force_when_it_ends() -> None:
    sim = fleet(quota(1, 0, 20), quota(2, 0, 20))
    ask(sim, 1, 1, 12, 1)  # runs for 12 x 16 x 200 us = 38.4 ms
    change(sim, 10_000, with_quotas(sim.router.directory, *LOWERED))
    sim.run(until_us=20_000)
    assert sim.workers[0].ledger.accounts[1].pinned == 13
    checked(sim)
    assert outcome(sim, 1).status == Status.DONE
    assert sim.workers[0].ledger.accounts[1].limit == 5
    assert max(held(sim, 1)) <= 5


def test_a_request_that_no_longer_fits_its_quota_is_refused_and_holds_up_nobody() -> None:
    sim = fleet(quota(1, 0, 20), quota(2, 0, 20), nodes=1)
    ask(sim, 1, 2, 12, 1)
    ask(sim, 2, 1, 12, 2)  # waits: the pool is taken
    ask(sim, 3, 2, 4, 3)
    change(sim, 10_000, with_quotas(sim.router.directory, *LOWERED))
    checked(sim)
    assert [outcome(sim, n).status for n in (1, 2, 3)] == [Status.DONE, Status.REJECTED, Status.DONE]
    assert outcome(sim, 2).reason == "QuotaExceeded: scope 1 needs 13 blocks, its limit is 5"


def test_floors_that_change_places_do_so_in_one_step_whatever_their_order() -> None:
    for order in (1, -1):
        ledger = Ledger(capacity_blocks=10, accounts=(quota(0, 8, 10), quota(1, 2, 10)), retention=LruRetention())
        requota = Requota(ledger)
        requota.ask([quota(0, 2, 10), quota(1, 8, 10)][::order], frozenset())
        assert not requota.is_waiting
        assert [ledger.accounts[i].reserved for i in (0, 1)] == [2, 8]


def test_a_tenant_that_arrives_gets_its_floor_from_who_borrowed_it() -> None:
    sim = fleet(quota(1, 0, 20), quota(2, 0, 20), nodes=1)
    ask(sim, 1, 1, 18, 1)
    checked(sim)
    book = sim.router.directory.with_scopes([Scope(TENANT, 3)])
    book = with_quotas(replace(book, tenants=(*book.tenants, "c")), quota(1, 0, 20), quota(2, 0, 20), quota(3, 10, 20))
    change(sim, sim.now_us + 1, book)
    checked(sim)
    assert sim.workers[0].ledger.accounts[3].reserved == 10
    ask(sim, 2, 3, 9, sim.now_us + 1)
    checked(sim)
    assert outcome(sim, 2).status == Status.DONE
    assert held(sim, 3) == [9]


@pytest.mark.parametrize("running", [False, True])
def test_a_removed_tenants_blocks_are_gone_with_its_last_request(running: bool) -> None:
    """On every node, without waiting for a clock; the other tenant's stay."""
    sim = fleet(quota(1, 4, 20), quota(2, 0, 20))
    for node in (0, 1):
        ask(sim, 1 + node, 1, 6, 1 + node, executor=node)
        ask(sim, 3 + node, 2, 3, 3 + node, executor=node)
    checked(sim)
    assert min(*held(sim, 1), *held(sim, 2)) > 0
    start_us = sim.now_us + 1
    if running:
        ask(sim, 9, 1, 8, start_us)
        sim.run(until_us=start_us + 5_000)
    change(sim, sim.now_us + 1, sim.router.directory.without_tenant(1))
    sim.run(until_us=start_us + 100_000)  # the request takes 25.6 ms
    assert held(sim, 1) == [0, 0]
    assert held(sim, 2) == [3, 3]
    assert all(worker.ledger.accounts[1].reserved == 0 for worker in sim.workers)
    checked(sim)


ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6), st.integers(0, 1)), min_size=3, max_size=3)


@given(now=ROWS, then=ROWS, stored=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.booleans()), max_size=6))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_any_change_is_in_force_once_nothing_is_pinned(
    now: Sequence[tuple[int, int, int]], then: Sequence[tuple[int, int, int]], stored: Sequence[tuple[int, int, bool]]
) -> None:
    """Whatever is held and pinned: invariants hold throughout, pinned blocks stay, and in the end every limit is kept and
    every quota in force, unless floors and what cannot be reclaimed are more than the pool."""
    before = [quota(i, f, f + more, cls) for i, (f, more, cls) in enumerate(now)]
    after = [quota(i, f, f + more, cls) for i, (f, more, cls) in enumerate(then)]
    ledger = Ledger(capacity_blocks=15, accounts=before, retention=LruRetention())
    pinned: list[Block] = []
    for number, (scope_id, count, keep) in enumerate(stored):
        taken, _ = ledger.allocate(scope_id, count, number)
        for depth, block in enumerate(taken or ()):
            parent = b"%08d%08d" % (number, depth - 1) if depth else None
            ledger.name(block, b"%08d%08d" % (number, depth), parent, depth, number)
            if keep:
                pinned.append(block)
            else:
                ledger.drop(block)
    requota = Requota(ledger)
    requota.ask(after, frozenset())
    ledger.check()
    assert all(ledger.is_held(block) for block in pinned)
    ledger.drop_all(pinned)
    requota.settle()
    ledger.check()
    rows = [(ledger.accounts[spec.scope_id], spec) for spec in after]
    assert all(account.used <= spec.limit_blocks for account, spec in rows)
    if requota.is_waiting:
        stuck = sum(max(a.used if max(a.priority, s.priority) else 0, a.reserved, s.reserved_blocks) for a, s in rows)
        assert stuck > 15, "a quota that fits is not in force"
