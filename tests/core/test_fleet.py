"""Routers and workers together, in virtual time: sharing happens, refusals are survived, and requests are conserved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.core import messages as m
from kvshare_research.core.directory import Directory
from kvshare_research.core.ledger import Ledger
from kvshare_research.core.nouns import (
    Action,
    Chain,
    LinkRow,
    MissReason,
    Outcome,
    Piece,
    Plan,
    Request,
    Segment,
    Status,
)
from kvshare_research.core.rights import GROUP, PUBLIC, TENANT, Membership, Reader, Scope
from kvshare_research.core.router import Router, RouterPolicy
from kvshare_research.core.running import WorkerPolicy
from kvshare_research.core.worker import Worker
from kvshare_research.cost.links import LinkModel, LinkTable
from kvshare_research.cost.ttft import TtftCost
from kvshare_research.driver.simulator import EngineModel, Simulator
from kvshare_research.index.reference import ReferenceIndex
from kvshare_research.retention.lru import LruRetention
from kvshare_research.schedule.fcfs import FcfsSchedule
from kvshare_research.selector.cheapest import Cheapest

BLOCK_TOKENS = 16
BLOCK_BYTES = 1 << 20
PUBLIC_ID, GROUP_ID, ONE, TWO = range(4)
DIRECTORY = Directory(
    tenants=("one", "two"),
    groups=("both",),
    scopes=(Scope(PUBLIC, 0), Scope(GROUP, 1), Scope(TENANT, 1), Scope(TENANT, 2)),
    memberships=(((1, 1), Membership(True, 1, 1 << 60)), ((2, 1), Membership(True, 1, 1 << 60))),
)


COST = TtftCost(
    c0_ps=1_000_000_000,
    c1_ps_per_token=2_000_000_000,
    c2_ps_per_token=2_000_000,
    c3_ps_per_token2=0,
    c4_ps_per_token2=0,
    merge_ps_per_byte=0,
)


def fleet(
    nodes: int = 2, *, capacity: int = 64, directory: Directory = DIRECTORY, rtt_us: int = 1_000, ps_per_byte: int = 1_000,
    actions: Iterable[Action] = tuple(Action), event_delay_us: int = 0, guess_us: int = 0, deadline_us: int = 10_000_000,
) -> Simulator:  # fmt: skip
    """A fleet of empty nodes with equal links."""
    model = LinkModel(rtt_us=rtt_us, ps_per_byte=ps_per_byte)
    router = Router(
        policy=RouterPolicy(
            cost=COST,
            selector=Cheapest(),
            actions=frozenset(actions),
            block_bytes=BLOCK_BYTES,
            guess_us=guess_us,
        ),
        directory=directory,
        index=ReferenceIndex().new_store(nodes),
        links=LinkTable.start(nodes, model),
        node_count=nodes,
    )
    policy = WorkerPolicy(
        retention=LruRetention(),
        schedule=FcfsSchedule(),
        block_tokens=BLOCK_TOKENS,
        block_bytes=BLOCK_BYTES,
        fetch_deadline_us=deadline_us,
    )
    workers = [
        Worker(
            node=node,
            incarnation=1,
            policy=policy,
            ledger=Ledger(capacity_blocks=capacity, accounts=directory.accounts, retention=LruRetention()),
            directory=directory,
        )
        for node in range(nodes)
    ]
    link = LinkRow(rtt_us=rtt_us, rtt_high_us=rtt_us, ps_per_byte=ps_per_byte, ps_per_byte_high=ps_per_byte)
    return Simulator(
        router=router,
        workers=workers,
        links=[[link] * nodes] * nodes,
        engine=EngineModel(prefill=COST.coefficients, decode_step_ps=10_000_000),
        block_bytes=BLOCK_BYTES,
        event_delay_us=event_delay_us,
    )


def ask(
    sim: Simulator, number: int, *, tenant: int = 1, prefix: str = "p", prefix_scope: int = PUBLIC_ID, prefix_blocks: int = 8,
    tail_tokens: int = 24, at_us: int | None = None, executor: int | None = None, ingress: int = 0,
) -> None:  # fmt: skip
    """A request with a shared prefix and a private tail will arrive."""
    tail_scope = ONE if tenant == 1 else TWO
    tokens = prefix_blocks * BLOCK_TOKENS + tail_tokens
    full = tokens // BLOCK_TOKENS
    # A namespace per scope, as the real hash has: tails of different tenants never meet.
    names = [f"{prefix}{prefix_scope}/{i}" for i in range(prefix_blocks)]
    names += [f"{prefix}{tail_scope}/{number}/{i}" for i in range(prefix_blocks, full)]
    chain = Chain(
        hashes=b"".join(name.encode().ljust(16, b".")[:16] for name in names),
        scope_ends=((prefix_scope, prefix_blocks), (tail_scope, full))
        if full > prefix_blocks
        else ((prefix_scope, full),),
        block_tokens=BLOCK_TOKENS,
    )
    request = Request(
        request_id=number,
        tenant_id=tenant,
        segments=(
            Segment(scope_id=prefix_scope, token_count=prefix_blocks * BLOCK_TOKENS),
            Segment(scope_id=tail_scope, token_count=tail_tokens),
        ),
        output_tokens_max=2,
        ingress=ingress,
        arrival_us=sim.now_us + 1 if at_us is None else at_us,
        executor=executor,
    )
    sim.inject(request, chain)


def only(outcomes: list[Outcome], number: int) -> Outcome:
    (found,) = [o for o in outcomes if o.request_id == number]
    assert found.status == Status.DONE, found.reason
    return found


def test_a_miss_registers_its_blocks_and_the_next_tenant_hits() -> None:
    """The first request computes the public prefix, the second tenant's request reuses all of it; its tail is its own."""
    sim = fleet()
    ask(sim, 1, tenant=1)
    sim.run()
    ask(sim, 2, tenant=2)
    outcomes = sim.run()

    first, second = only(outcomes, 1), only(outcomes, 2)
    assert first.computed_tokens == first.prompt_tokens
    assert second.resident_tokens == second.cross_tenant_tokens == 8 * BLOCK_TOKENS
    assert second.ttft_us < first.ttft_us / 3


def test_the_same_tenant_hits_where_the_other_one_misses() -> None:
    """Paired: a tenant-scoped prefix is reused by its tenant and by nobody else, on every way of serving."""
    for ingress in (0, 1):
        sim = fleet()
        ask(sim, 1, tenant=1, prefix_scope=ONE)
        sim.run()
        ask(sim, 2, tenant=1, prefix_scope=ONE, ingress=ingress)
        ask(sim, 3, tenant=2, prefix_scope=TWO, ingress=ingress, at_us=10_000_000)
        outcomes = sim.run()

        assert only(outcomes, 2).computed_tokens < only(outcomes, 2).prompt_tokens
        assert only(outcomes, 3).computed_tokens == only(outcomes, 3).prompt_tokens


def test_a_reader_without_the_right_is_refused_by_each_check_alone() -> None:
    """A router that believes everything is readable still gets nothing out of a holder or a worker."""
    sim = fleet()
    ask(sim, 1, tenant=1, prefix_scope=ONE, executor=0)
    sim.run()
    everybody = replace(DIRECTORY, scopes=(Scope(PUBLIC, 0),) * 4)
    sim.router.directory = everybody
    ask(sim, 2, tenant=2, prefix_scope=ONE, executor=1)
    outcomes = sim.run()

    assert only(outcomes, 2).computed_tokens == only(outcomes, 2).prompt_tokens
    assert sim.workers[0].serving.refused_reads == 1
    ask(sim, 3, tenant=2, prefix_scope=ONE, executor=0)
    assert only(sim.run(), 3).resident_tokens == 0
    assert sim.workers[0].refused_reads > 0


def test_bytes_cross_when_the_executor_lacks_the_prefix() -> None:
    """A pinned executor pulls; the bytes moved are the planned blocks; afterwards both nodes hold the prefix."""
    sim = fleet()
    ask(sim, 1, executor=0)
    sim.run()
    ask(sim, 2, tenant=2, executor=1, ingress=1)
    outcome = only(sim.run(), 2)

    assert outcome.action == Action.PULL
    assert outcome.pulled_tokens == 8 * BLOCK_TOKENS
    assert outcome.pulled_bytes == sim.moved_bytes == 8 * BLOCK_BYTES
    ask(sim, 3, tenant=1, executor=1, ingress=1)
    assert only(sim.run(), 3).resident_tokens == 8 * BLOCK_TOKENS


def test_two_holders_serve_one_prefix() -> None:
    """On slow links two sources share a pull, and each sends a part."""
    sim = fleet(3, ps_per_byte=20_000)
    ask(sim, 1, executor=0, prefix_blocks=24)
    sim.run()
    ask(sim, 2, executor=1, ingress=1, prefix_blocks=24)
    sim.run()
    ask(sim, 3, tenant=2, executor=2, ingress=2, prefix_blocks=24)
    outcome = only(sim.run(), 3)

    assert outcome.action in (Action.MULTI_PULL, Action.SPLIT)
    assert outcome.pulled_tokens > 0


def test_pull_and_recompute_share_a_prefix() -> None:
    """Where the link is about as fast as the engine, the front is computed while the back arrives: faster than either."""
    per_block_us = 2_000 * BLOCK_TOKENS
    speed = {"ps_per_byte": per_block_us * 1_000_000 // BLOCK_BYTES, "rtt_us": 1_000}
    times = {}
    for action in (Action.SPLIT, Action.PULL, Action.RECOMPUTE):
        sim = fleet(actions=(Action.RECOMPUTE, action), **speed)
        ask(sim, 1, executor=0, prefix_blocks=16)
        sim.run()
        ask(sim, 2, tenant=2, executor=1, ingress=1, prefix_blocks=16)
        outcome = only(sim.run(), 2)
        times[action] = outcome.ttft_us
        if action == Action.SPLIT:
            assert outcome.action == Action.SPLIT
            assert 0 < outcome.pulled_tokens < 16 * BLOCK_TOKENS
            assert outcome.overlap_us > 0
    assert times[Action.SPLIT] < 0.75 * min(times[Action.PULL], times[Action.RECOMPUTE])


def test_a_stale_index_costs_time_and_nothing_else() -> None:
    """The holder has evicted what the router believes it holds: the pull is refused and the blocks are computed."""
    sim = fleet(capacity=16)
    sim.drop_event = lambda message: isinstance(message.body, m.BlocksRemoved)
    ask(sim, 1, executor=0, prefix="old")
    sim.run()
    for number in range(2, 5):
        ask(sim, number, executor=0, prefix=f"new{number}")
        sim.run()
    ask(sim, 9, tenant=2, executor=1, ingress=1, prefix="old")
    outcome = only(sim.run(), 9)

    assert outcome.computed_tokens == outcome.prompt_tokens
    assert dict(outcome.missed)[MissReason.STALE] == 8 * BLOCK_TOKENS
    assert sim.counters["fetches failed: not available"] == 1


def test_a_fetch_past_its_deadline_is_computed_instead() -> None:
    """A link slower than quoted: the deadline passes, the reader computes, and late bytes change nothing."""
    sim = fleet(deadline_us=50_000)
    ask(sim, 1, executor=0)
    sim.run()
    slow = LinkRow(rtt_us=1_000, rtt_high_us=1_000, ps_per_byte=1_000_000, ps_per_byte_high=1_000_000)
    sim.links = [[slow] * 2] * 2
    start = sim.now_us + 10
    ask(sim, 2, tenant=2, executor=1, ingress=1, at_us=start)
    sim.at(start + 60_000, node1=m.Ticked())
    outcome = only(sim.run(), 2)

    assert outcome.pulled_tokens == 0
    assert outcome.computed_tokens == outcome.prompt_tokens
    assert outcome.ttft_us < 8_000_000
    for worker in sim.workers:
        worker.ledger.check()


def test_a_revoked_member_no_longer_hits() -> None:
    """Paired: member hits before, misses after; the remaining member still hits."""
    sim = fleet()
    ask(sim, 1, tenant=1, prefix_scope=GROUP_ID)
    sim.run()
    ask(sim, 2, tenant=2, prefix_scope=GROUP_ID)
    assert only(sim.run(), 2).cross_tenant_tokens == 8 * BLOCK_TOKENS
    sim.at(sim.now_us + 1, m.DirectoryChanged(directory=DIRECTORY.revoked(2, 1)))
    sim.run()
    assert sim.router.revocation_complete()
    ask(sim, 3, tenant=2, prefix_scope=GROUP_ID)
    ask(sim, 4, tenant=1, prefix_scope=GROUP_ID, at_us=sim.now_us + 5_000_000)
    outcomes = sim.run()

    assert only(outcomes, 3).computed_tokens == only(outcomes, 3).prompt_tokens
    assert MissReason.DENIED_SCOPE in dict(only(outcomes, 3).missed)
    assert only(outcomes, 4).same_tenant_tokens == 8 * BLOCK_TOKENS


def test_siblings_that_arrive_together_compute_their_prefix_once() -> None:
    """Eight equal prompts within a millisecond, events that lag: the prefix is computed once, whoever else needs it waits."""
    sim = fleet(event_delay_us=50_000, guess_us=2_000_000)
    for number in range(8):
        ask(sim, number, tenant=1 + number % 2, at_us=1 + number * 100)
    outcomes = sim.run()

    computed = sum(only(outcomes, n).computed_tokens == only(outcomes, n).prompt_tokens for n in range(8))
    assert computed == 1


def test_two_nodes_that_would_fetch_from_each_other_do_not_wait_for_each_other() -> None:
    """Each is told that the other has the prefix, which neither has: both are refused at once and compute."""
    sim = fleet()
    chain = Chain(
        hashes=b"".join(b"q%015d" % i for i in range(8)), scope_ends=((PUBLIC_ID, 8),), block_tokens=BLOCK_TOKENS
    )
    for node in (0, 1):
        request = Request(
            request_id=100 + node,
            tenant_id=1,
            segments=(Segment(scope_id=PUBLIC_ID, token_count=8 * BLOCK_TOKENS + 4),),
            output_tokens_max=1,
            ingress=node,
            arrival_us=1,
        )
        plan = Plan(
            request_id=request.request_id,
            action=Action.PULL,
            executor=node,
            resident_blocks=0,
            front_blocks=0,
            pieces=(Piece(source=1 - node, start=0, end=8),),
            quoted_ttft_us=0,
        )
        event = m.Dispatched(request=request, chain=chain, plan=plan, reader=Reader(1, 0, 0))
        sim._work(node, event, 1)
    sim.run()

    assert all(worker.queued_requests == 0 for worker in sim.workers)
    assert max(sim._reported_us.values()) < 1_000_000, "they waited until a deadline"


def test_a_request_that_can_never_fit_is_rejected_with_its_reason() -> None:
    """Rejected before any work, with what it needs and what there is."""
    sim = fleet(capacity=4)
    ask(sim, 1)
    (outcome,) = sim.run()

    assert outcome.status == Status.REJECTED
    assert outcome.reason == "needs 10 blocks, the pool has 4"


@pytest.mark.parametrize(("tokens", "output"), [((0,), 2), ((), 2), ((-5,), 3), ((40, -8), 2), ((40,), -30)])
def test_a_prompt_that_is_none_is_turned_away_and_holds_no_place(tokens: tuple[int, ...], output: int) -> None:
    """As many as a worker admits at once; then a prompt of somebody else is served."""
    sim = fleet(1)
    segments = tuple(Segment(scope_id=ONE, token_count=count) for count in tokens)
    chain = Chain(hashes=b"", scope_ends=(), block_tokens=BLOCK_TOKENS)
    for number in range(3):
        request = Request(
            request_id=number, tenant_id=1, segments=segments, output_tokens_max=output, ingress=0, arrival_us=1,
        )  # fmt: skip
        (rejected, _) = sim.router.handle(m.Arrived(request=request, chain=chain), 1)
        assert isinstance(rejected, m.Reject)
    ask(sim, 9, tenant=2)
    assert only(sim.run(), 9).request_id == 9


def test_a_lost_node_takes_nothing_with_it() -> None:
    """Its requests are decided once more elsewhere; its blocks are no longer offered."""
    sim = fleet()
    ask(sim, 1, ingress=0)
    sim.run(until_us=1_000)
    sim.at(2_000, m.NodeLost(node=0))
    sim.run(until_us=2_000)
    assert sim.router.replica.rows(0) == ()
    (outcome,) = sim.run()

    assert (outcome.status, outcome.executor) == (Status.DONE, 1)


@given(
    requests=st.lists(
        st.tuples(st.integers(1, 2), st.integers(0, 3), st.sampled_from([PUBLIC_ID, GROUP_ID]), st.integers(0, 400_000), st.integers(0, 2)),
        min_size=1,
        max_size=14,
    ),
    capacity=st.integers(12, 40),
    delay=st.sampled_from([0, 30_000]),
    drop=st.integers(0, 3),
    guess=st.sampled_from([0, 500_000]),
)  # fmt: skip
@settings(max_examples=80, deadline=None, derandomize=True)
def test_whatever_arrives_is_conserved_and_explained(
    requests: list[tuple[int, int, int, int, int]], capacity: int, delay: int, drop: int, guess: int
) -> None:
    """Every request ends once; every prompt token is reused or computed, and each computed one has a reason; pools add up."""
    sim = fleet(3, capacity=capacity, event_delay_us=delay, guess_us=guess, ps_per_byte=20_000)
    if drop:
        sim.drop_event = lambda message: message.seq % (drop + 1) == 0
    for number, (tenant, prefix, scope, at_us, ingress) in enumerate(requests):
        ask(sim, number, tenant=tenant, prefix=f"x{prefix}", prefix_scope=scope, at_us=at_us + 1, ingress=ingress)
    outcomes = sim.run()

    assert sorted(o.request_id for o in outcomes) == list(range(len(requests)))
    assert sim.router.in_flight == 0
    for outcome in outcomes:
        assert outcome.status == Status.DONE, outcome.reason
        assert sum(tokens for _, tokens in outcome.missed) == outcome.computed_tokens
        assert outcome.ttft_us > 0
    for worker in sim.workers:
        worker.ledger.check()
        assert all(block.pins == 0 for block in worker.ledger.named())
        assert worker.queued_requests == 0


def test_equal_inputs_give_equal_bytes() -> None:
    """Two simulations of one schedule agree in every field."""

    def played() -> list[Outcome]:
        sim = fleet(3, event_delay_us=10_000)
        for number in range(20):
            ask(
                sim,
                number,
                tenant=1 + number % 2,
                prefix=f"p{number % 4}",
                at_us=1 + 37_000 * number,
                ingress=number % 3,
            )
        return sim.run()

    assert repr(played()) == repr(played())


@pytest.mark.parametrize("prefix_blocks", [0, 1])
def test_the_shortest_prompts(prefix_blocks: int) -> None:
    """A prompt below one block, and one of exactly one block: always served, the last token always computed."""
    sim = fleet()
    ask(sim, 1, prefix_blocks=prefix_blocks, tail_tokens=1 if prefix_blocks == 0 else 0)
    sim.run()
    ask(sim, 2, prefix_blocks=prefix_blocks, tail_tokens=1 if prefix_blocks == 0 else 0)
    outcome = only(sim.run(), 2)

    assert outcome.computed_tokens == outcome.prompt_tokens
    assert outcome.missed == (
        (MissReason.LAST_TOKEN if prefix_blocks else MissReason.PARTIAL_BLOCK, outcome.prompt_tokens),
    )


def test_a_request_pinned_to_a_lost_node_is_rejected_with_the_reason() -> None:
    sim = fleet()
    sim.at(10, m.NodeLost(node=0))
    ask(sim, 1, executor=0, at_us=20)
    ask(sim, 2, executor=1, at_us=30)
    outcomes = sim.run()

    (gone,) = [o for o in outcomes if o.request_id == 1]
    assert (gone.status, gone.reason) == (Status.REJECTED, "worker 0, which it is pinned to, is not live")
    assert only(outcomes, 2).executor == 1
