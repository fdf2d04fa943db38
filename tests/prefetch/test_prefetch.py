"""Prefetch through real routers and workers in virtual time: it helps, displaces nothing, leaks nothing, and can be stopped."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.privacy_prefetch import scene
from kvshare_research.core import messages as m
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.foresight import Foresight, front, prefix_blocks
from kvshare_research.core.nouns import Chain, Status
from kvshare_research.core.ports import Prefetch, PrefetchIntent, Seen
from kvshare_research.driver.simulator import Simulator
from kvshare_research.prefetch.oracle import Oracle
from kvshare_research.prefetch.ppm import Ppm
from kvshare_research.prefetch.queue_lookahead import QueueLookahead
from kvshare_research.prefetch.workflow import Workflow
from tests.core.fleet import BLOCK_BYTES, GROUP_ID, ONE, TWO, ask, fleet, only

LIMITS: dict[str, Any] = {"price_ps_per_byte": 0, "inflight_bytes_max": 1 << 30, "horizon_us": 10_000_000}
PREDICTING: dict[str, Any] = {**LIMITS, "proposals_max": 2, "probability_min": 0.1}
PPM = Ppm(scope="tenant", **PREDICTING)
SECOND = 1_000_000


def foreseeing(policy: Prefetch, nodes: int = 2, **kind: Any) -> Simulator:
    sim = fleet(nodes, **kind)
    sim.router.foresight = Foresight(policy)
    return sim


def habit(sim: Simulator, rounds: int, *, tenant: int = 1, scope: int = GROUP_ID) -> None:
    """The tenant alternates between two prefixes on node 1, which only node 0 computed."""
    for i, prefix in enumerate("ab"):
        ask(sim, i + 1, tenant=2, prefix=prefix, prefix_scope=scope, executor=0, at_us=1 + i * SECOND)
    for i in range(2 * rounds):
        ask(
            sim,
            10 + i,
            tenant=tenant,
            prefix="ab"[i % 2],
            prefix_scope=scope,
            executor=1,
            ingress=1,
            at_us=(4 + i) * SECOND,
        )


def test_what_a_tenant_does_next_is_there_before_it_asks() -> None:
    """It follows a with b on another node first; then both are wanted on node 1, and the second comes by prediction."""
    sim = foreseeing(PPM)
    for i, prefix in enumerate("ababab"):
        ask(sim, i + 1, prefix=prefix, prefix_scope=GROUP_ID, executor=0, ingress=1, at_us=1 + i * SECOND)
    ask(sim, 20, prefix="a", prefix_scope=GROUP_ID, executor=1, ingress=1, at_us=20 * SECOND)
    ask(sim, 21, prefix="b", prefix_scope=GROUP_ID, executor=1, ingress=1, at_us=30 * SECOND)
    sim.run()
    assert only(sim.outcomes, 21).pulled_tokens == 0
    assert only(sim.outcomes, 21).resident_tokens == 8 * 16
    assert sim.workers[1].prefetching.counters["used_blocks"] >= 8
    assert sim.router.foresight is not None
    assert sim.router.foresight.open == {}


def test_one_tenants_habits_do_not_move_anything_for_another() -> None:
    """Tables are per tenant: tenant two has never followed a with b, so nothing moves for it."""
    sim = foreseeing(PPM)
    for i, prefix in enumerate("ababab"):
        ask(sim, i + 1, tenant=1, prefix=prefix, prefix_scope=GROUP_ID, executor=0, ingress=0, at_us=1 + i * SECOND)
    ask(sim, 20, tenant=2, prefix="a", prefix_scope=GROUP_ID, executor=1, ingress=1, at_us=20 * SECOND)
    sim.run()
    assert sim.workers[1].prefetching.counters["landed_blocks"] == 0


def test_a_prefetch_never_reads_what_a_demand_could_not() -> None:
    """A predictor that wants another tenant's private prefix, a group's after its revocation, or an unsound one."""
    for case in ("private", "revoked", "unsound"):
        sim = foreseeing(Wish(case))
        scope = TWO if case == "private" else GROUP_ID
        ask(sim, 1, tenant=2, prefix="x", prefix_scope=scope, executor=0)
        sim.run()
        if case == "revoked":
            sim.at(sim.now_us, m.DirectoryChanged(directory=sim.router.directory.revoked(1, 1)))
            sim.run()
        ask(sim, 2, tenant=1, prefix="y", executor=1, ingress=1)
        sim.run()
        assert sim.workers[1].prefetching.counters["asked"] == 0, case
        assert only(sim.outcomes, 2).ttft_us > 0


class Wish(Prefetch):
    """Wants the first chain it saw, for tenant 1, from the second request on; its probability is none in one case."""

    price_ps_per_byte, inflight_bytes_max = 0, 1 << 30

    def __init__(self, case: str) -> None:
        self.case = case

    def initial_state(self) -> Any:
        return []

    def observe(self, state: Any, seen: Seen) -> Any:
        return [*state, seen.chain]

    def propose(self, state: list[Chain], now_us: int) -> tuple[Any, tuple[PrefetchIntent, ...]]:
        chance = math.nan if self.case == "unsound" else 1.0
        wish = PrefetchIntent(
            tenant_id=1, user_id=0, chain=state[0], block_count=8, node=1, deadline_us=now_us + SECOND, probability=chance,
        )  # fmt: skip
        return state, (wish,) if len(state) > 1 else ()


@pytest.mark.parametrize(
    "change",
    [
        {"node": -1}, {"node": 99}, {"block_count": 0}, {"block_count": 99}, {"block_count": -3},
        {"block_count": math.nan}, {"probability": math.nan}, {"probability": math.inf}, {"probability": -0.1},
        {"deadline_us": -5}, {"tenant_id": 0}, {"tenant_id": 99},
        {"chain": Chain(hashes=b"never seen by any" * 16, scope_ends=((GROUP_ID, 17),), block_tokens=16)},
        {"chain": Chain(hashes=b"", scope_ends=(), block_tokens=16)},
    ],
    ids=str,
)  # fmt: skip
def test_a_predictor_that_talks_nonsense_moves_nothing_widens_nothing_and_is_counted(change: dict[str, Any]) -> None:
    """What is no prefix, no node, no tenant, not held by anybody or not to be read: refused by the router."""
    sane = Wish("")
    wish = Wish("")
    wish.propose = lambda state, now_us: (state, tuple(replace(i, **change) for i in sane.propose(state, now_us)[1]))  # type: ignore[method-assign]
    sim = foreseeing(wish)
    ask(sim, 1, tenant=2, prefix="x", prefix_scope=GROUP_ID, executor=0)
    sim.run()
    ask(sim, 2, tenant=1, prefix="y", executor=1, ingress=1, at_us=sim.now_us + 10)
    assert all(o.status == Status.DONE for o in sim.run())
    assert sim.router.foresight is not None
    counted = sim.router.foresight.counters
    assert counted["issued"] == 0
    assert counted["unsound"] + counted["refused: nothing to move"] >= 1
    assert all(worker.prefetching.counters["asked"] == 0 for worker in sim.workers)


def test_the_holder_refuses_a_prefetch_that_the_router_should_not_have_sent() -> None:
    """Tickets are the same as for any fetch: a router with an outdated directory moves nothing."""
    sim = foreseeing(Wish(""))
    ask(sim, 1, tenant=2, prefix="x", prefix_scope=GROUP_ID, executor=0)
    sim.run()
    stricter = sim.router.directory.revoked(1, 1)
    for node in range(2):
        sim.at(sim.now_us, **{f"node{node}": m.DirectoryChanged(directory=stricter)})
    ask(sim, 2, tenant=1, prefix="y", executor=1, ingress=1)
    sim.run()
    assert sim.workers[1].prefetching.counters["asked"] >= 1
    assert sim.workers[1].prefetching.counters["landed_blocks"] == 0
    assert sim.workers[0].serving.refused_reads >= 1
    for worker in sim.workers:
        worker.ledger.check()


@given(
    st.lists(st.tuples(st.integers(1, 2), st.sampled_from("abcdef"), st.integers(0, 1)), min_size=4, max_size=30),
    st.integers(20, 60),
)
@settings(max_examples=25, deadline=None)
def test_prefetch_displaces_nothing(asked: list[tuple[int, str, int]], capacity: int) -> None:
    """No request finds less on its node than it would without prefetch, at any fill level; all room, pins and buffers
    are back at the end."""

    def play(policy: Prefetch | None) -> Simulator:
        sim = fleet(2, capacity=capacity)
        if policy is not None:
            sim.router.foresight = Foresight(policy)
        for i, (tenant, prefix, node) in enumerate(asked):
            ask(
                sim,
                i + 1,
                tenant=tenant,
                prefix=prefix,
                prefix_scope=GROUP_ID,
                executor=node,
                ingress=node,
                at_us=1 + i * SECOND,
            )
        sim.run()
        return sim

    plain, eager = play(None), play(Ppm(scope="everybody", **PREDICTING))
    for node in range(2):
        eager.workers[node].ledger.check()
        assert eager.workers[node].prefetching.flights == {}
        assert all(block.pins == 0 for block in eager.workers[node].ledger.named())
    for i in range(len(asked)):
        before, after = only(plain.outcomes, i + 1), only(eager.outcomes, i + 1)
        assert after.resident_tokens >= before.resident_tokens, "a demand miss that a prefetch caused"


@pytest.mark.parametrize("when_us", [0, 100, 900, 3_000, 7_000, 9_500, 40_000])
def test_cancelled_in_any_state_it_leaves_nothing_behind(when_us: int) -> None:
    """Asked, being sent, landing, landed: after a cancellation no buffer, pin or open fetch is left at either end."""
    sim = foreseeing(Wish(""))
    ask(sim, 1, tenant=2, prefix="x", prefix_scope=GROUP_ID, executor=0)
    sim.run()
    ask(sim, 2, tenant=1, prefix="y", executor=1, ingress=1, at_us=sim.now_us + 10)
    start = sim.now_us + 10
    sim.at(start + when_us, node1=m.PrefetchCancelled(prefetch_id=1))
    sim.run()
    for worker in sim.workers:
        worker.ledger.check()
        assert worker.prefetching.flights == {}
        assert all(block.pins == 0 for block in worker.ledger.named())
    assert sim.router.foresight is not None
    assert sim.router.foresight.open == {}


def test_a_request_in_need_of_room_takes_it_from_a_prefetch_under_way() -> None:
    sim = foreseeing(Wish(""), capacity=20, ps_per_byte=100_000)
    ask(sim, 1, tenant=2, prefix="x", prefix_scope=GROUP_ID, executor=0)
    sim.run()
    ask(sim, 2, tenant=1, prefix="y", prefix_blocks=4, executor=1, ingress=1, at_us=sim.now_us + 10)
    ask(sim, 3, tenant=1, prefix="z", prefix_blocks=16, executor=1, ingress=1, at_us=sim.now_us + 200_000)
    sim.run()
    counters = sim.workers[1].prefetching.counters
    assert counters["ended: room needed"] + counters["refused: no free room"] >= 1
    assert only(sim.outcomes, 3).end_to_end_us > 0


def test_bytes_under_way_are_bounded() -> None:
    sim = foreseeing(replace(PPM, inflight_bytes_max=3 * BLOCK_BYTES))
    habit(sim, 4)
    sim.run()
    assert sim.router.foresight is not None
    assert sim.router.foresight.counters["issued"] == 0
    assert sim.workers[1].prefetching.counters["asked"] == 0


def test_a_price_above_the_gain_moves_nothing() -> None:
    free, dear = Foresight(PPM), Foresight(replace(PPM, price_ps_per_byte=10_000_000))
    assert free.pays(0.2, 1_000, BLOCK_BYTES)
    assert not dear.pays(0.2, 1_000, BLOCK_BYTES)
    assert dear.pays(1.0, 1_000, BLOCK_BYTES), "what is certain costs nothing in vain"
    assert not free.pays(0.9, 0, BLOCK_BYTES)
    assert not free.pays(1.0, -1, BLOCK_BYTES)


def test_the_queue_is_looked_ahead() -> None:
    """A request waits behind a long computation: its blocks come meanwhile, and not after it is admitted."""

    def play(policy: Prefetch | None) -> int:
        sim = fleet(2, ps_per_byte=10_000)
        for worker in sim.workers:
            worker.policy = replace(worker.policy, admitted_max=1)
        if policy is not None:
            sim.router.foresight = Foresight(policy)
        ask(sim, 1, prefix="a", executor=0)
        ask(sim, 2, prefix="z", prefix_blocks=12, executor=1, ingress=1, at_us=20 * SECOND)
        ask(sim, 3, prefix="a", executor=1, ingress=1, at_us=20 * SECOND + 10)
        sim.run()
        return only(sim.outcomes, 3).ttft_us

    without, with_it = play(None), play(QueueLookahead(admitted_max=1, **LIMITS))
    assert without - with_it > 50_000, "most of the 84 ms that eight blocks take on this link"


def test_the_oracle_has_everything_there() -> None:
    sim = foreseeing(Oracle(**{**LIMITS, "horizon_us": 3 * SECOND}))
    assert sim.router.foresight is not None
    habit(sim, 2)
    told = [row[3][:2] for row in sorted(sim._heap) if len(row[3]) == 2]
    sim.router.foresight.policy.tell(sim.router.foresight.state, told)  # type: ignore[attr-defined]
    sim.run()
    assert only(sim.outcomes, 10).resident_tokens == 8 * 16
    assert only(sim.outcomes, 11).resident_tokens == 8 * 16


def test_a_workflow_looks_as_far_as_it_is_told() -> None:
    steps = {"a": ("b", "c"), "b": ("d",), "c": ("d",), "d": ("a",)}
    policy = Workflow(steps=steps, steps_ahead=2, **PREDICTING)
    assert policy.ahead("a") == [("d", 1.0), ("b", 0.5), ("c", 0.5)]
    assert replace(policy, steps_ahead=1).ahead("a") == [("b", 0.5), ("c", 0.5)]


def test_the_prefix_is_what_lies_before_the_last_segment() -> None:
    sim = fleet(1)
    ask(sim, 1, prefix_blocks=5, tail_tokens=40)
    _, _, _, (request, chain) = sim._heap[0]
    assert isinstance(chain, Chain)
    assert prefix_blocks(request, chain) == 5  # type: ignore[arg-type]
    cut = front(chain, 3)
    assert cut.block_count == 3 and cut.block_hash(2) == chain.block_hash(2)
    assert cut.scope_ends[-1][1] == 3
    assert ONE != TWO


def test_what_was_just_asked_for_is_not_prefetched_to_where_it_was_asked() -> None:
    """A tenant that repeats itself: its request brings the prefix itself, a prefetch would move it once more."""
    sim = foreseeing(PPM)
    ask(sim, 1, tenant=2, prefix="a", prefix_scope=GROUP_ID, executor=0)
    for i in range(4):
        ask(sim, 10 + i, prefix="a", prefix_scope=GROUP_ID, executor=1, ingress=1, at_us=4 * SECOND + i)
    sim.run()
    assert sim.router.foresight is not None
    assert sim.router.foresight.counters["issued"] == 0


@pytest.mark.parametrize(
    "policy", [PPM, QueueLookahead(admitted_max=3, **LIMITS), Oracle(**LIMITS)], ids=lambda p: type(p).__name__
)
def test_the_experiment_moves_bytes_and_pollutes_nothing_in_a_full_pool(policy: Prefetch) -> None:
    directory = scene.directory_of(30)
    rows, _ = scene.asked(directory, 0, 110_000)
    chains = {request.request_id: chain for request, chain in rows}
    given: Any = replace(policy, scope="everybody") if isinstance(policy, Ppm) else policy
    plain, play = (scene.played(directory, rows, p, 600) for p in (None, given))
    found = scene.measured(play, plain, chains)
    assert found["moved MiB"] > 0
    assert found["pollution"] == 0
    assert sum(w.ledger.evicted_blocks for w in plain.sim.workers) > 100, "the pools are full"
    assert 0 < found["accuracy"] <= 1 and 0 <= found["waste"] <= 1 and 0 <= found["coverage"] <= 1


def test_only_what_waits_behind_an_admitted_batch_is_looked_ahead_for() -> None:
    """Behind fewer a request is admitted at once and starts its own fetches: moving them too would move them twice."""
    policy = QueueLookahead(admitted_max=3, **LIMITS)
    chain = Chain(hashes=b"a" * 16, scope_ends=((0, 1),), block_tokens=16)
    state = policy.initial_state()
    for queued in (0, 2, 3, 7):
        seen = Seen(
            request_id=queued, tenant_id=1, user_id=0, step="", chain=chain, prefix_blocks=1, executor=0, ingress=0,
            queued_requests=queued, pulled_blocks=1, now_us=0,
        )  # fmt: skip
        state = policy.observe(state, seen)
    assert [seen.queued_requests for seen in state] == [3, 7]
    with pytest.raises(ConfigError, match="admitted_max"):
        replace(policy, admitted_max=0)
