"""Routers and workers together, in virtual time: sharing happens, refusals are survived, and requests are conserved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.core import messages as m
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
from kvshare_research.core.rights import PUBLIC, Reader, Scope
from tests.core.fleet import BLOCK_BYTES, BLOCK_TOKENS, DIRECTORY, GROUP_ID, ONE, PUBLIC_ID, TWO, ask, fleet, only


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
