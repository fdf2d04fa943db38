"""The simulator's own parts: engines that skip agree with engines that step, links share fairly, failures lose nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.core.costing import PS_PER_US, PrefillCoefficients, prefill_ps
from kvshare_research.core.nouns import LinkRow, Status
from kvshare_research.core.worker import Worker
from kvshare_research.driver.simulator_engine import EngineModel, ModelledEngine
from kvshare_research.driver.simulator_links import FairLink, one_way_us, unit
from tests.core.fleet import DIRECTORY, ask, fleet, only

MODEL = EngineModel(
    prefill=PrefillCoefficients(1_000_000_000, 50_000_000, 1_000_000, 1_000, 700),
    decode_step_ps=7_000_000_123,
    decode_ps_per_request=1_234_567,
    decode_ps_per_token=98_765,
    chunk_tokens=64,
)
WORK = st.lists(
    st.tuples(st.integers(0, 60_000), st.integers(1, 300), st.integers(0, 12)), min_size=1, max_size=8
)  # (arrival in us, prompt tokens, tokens to decode)


def played(work: list[tuple[int, int, int]], step_by_step: bool) -> tuple[list[tuple[int, int, bool, int]], int]:
    """(time, request, is prefill, elapsed) of everything that ends, one prefill at a time in order; and the wake-ups."""
    engine = ModelledEngine(MODEL, step_by_step)
    queue = sorted((at, i) for i, (at, _, _) in enumerate(work))
    log, waiting, due, prefilling, wakes = [], [], None, False, 0
    while queue or due is not None:
        now = min(t for t in (queue[0][0] if queue else None, due) if t is not None)
        if queue and queue[0][0] == now:
            waiting.append(queue.pop(0)[1])
            if not prefilling:
                i, prefilling = waiting.pop(0), True
                engine.prefill(i, 0, work[i][1], True, now)
                changed = engine.cut(now) if engine.running else engine.begin(now)
                due = due if changed is None else changed
            continue
        wakes += 1
        for ended in engine.end(now):
            log.append((now, ended.request_id, ended.is_prefill, ended.elapsed_us))
            if ended.is_prefill:
                prefilling = False
                if work[ended.request_id][2]:
                    engine.decode(ended.request_id, ended.token, work[ended.request_id][2], now)
        if not prefilling and waiting:
            i, prefilling = waiting.pop(0), True
            engine.prefill(i, 0, work[i][1], True, now)
        due = engine.begin(now)
    return log, wakes


@given(WORK)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_skipping_iterations_changes_no_time(work: list[tuple[int, int, int]]) -> None:
    skipping, few = played(work, step_by_step=False)
    stepping, many = played(work, step_by_step=True)
    assert skipping == stepping
    assert few <= many
    assert sorted(i for _, i, is_prefill, _ in skipping if is_prefill) == list(range(len(work)))
    assert sorted(i for _, i, is_prefill, _ in skipping if not is_prefill) == [i for i, w in enumerate(work) if w[2]]


def test_an_engine_alone_takes_what_the_polynomial_says() -> None:
    """One prompt in chunks of 64, then three tokens: sums of the model's own terms, rounded up at the end."""
    ((first, _, _, _), (last, _, _, _)), _ = played([(0, 100, 3)], step_by_step=False)
    chunks = prefill_ps(MODEL.prefill, 64, 0) + prefill_ps(MODEL.prefill, 36, 64)
    steps = sum(
        MODEL.decode_step_ps + MODEL.decode_ps_per_request + MODEL.decode_ps_per_token * (100 + i) for i in range(3)
    )
    assert first == -(-chunks // PS_PER_US)
    assert last == first + -(-steps // PS_PER_US)


def test_a_batch_decodes_slower_than_a_request_and_faster_than_one_after_the_other() -> None:
    alone = played([(0, 64, 12)], step_by_step=False)[0][-1][0]
    both = played([(0, 64, 12), (0, 64, 12)], step_by_step=False)[0][-1][0]
    assert alone < both < 2 * alone


@given(st.lists(st.tuples(st.integers(0, 1_000), st.integers(1, 2_000)), min_size=1, max_size=8))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_link_is_shared_fairly_and_never_outruns_itself(transfers: list[tuple[int, int]]) -> None:
    """Work is conserved: while any transfer is under way the link is busy; nobody is faster than alone; equals that
    start together end together."""
    link = FairLink(ps_per_byte=PS_PER_US)  # a byte in a microsecond
    queue = sorted((at, i, size) for i, (at, size) in enumerate(transfers))
    ended: dict[int, int] = {}
    while queue or link.next_us() is not None:
        due = link.next_us()
        if queue and (due is None or queue[0][0] <= due):
            at, i, size = queue.pop(0)
            ended |= dict.fromkeys(link.finished(at), at)
            link.start(i, size, at)
        else:
            assert due is not None
            ended |= dict.fromkeys(link.finished(due), due)
    assert set(ended) == set(range(len(transfers)))
    busy_until = 0
    for at, size in sorted(transfers):
        busy_until = max(busy_until, at) + size
    assert busy_until <= max(ended.values()) <= busy_until + len(transfers)
    for i, (at, size) in enumerate(transfers):
        assert ended[i] >= at + size
    for (i, a), (j, b) in pairwise(enumerate(transfers)):
        if a == b:
            assert abs(ended[i] - ended[j]) <= 1


def test_two_transfers_take_twice_as_long_as_one() -> None:
    link = FairLink(ps_per_byte=PS_PER_US)
    link.start(1, 100, 0)
    link.start(2, 50, 0)
    assert link.next_us() == 100
    assert link.finished(100) == [2]
    assert link.next_us() == 150


def test_round_trips_have_the_mean_and_the_tail_that_the_link_says() -> None:
    link = LinkRow(rtt_us=100_000, rtt_high_us=160_000, ps_per_byte=1, ps_per_byte_high=1)
    drawn = [2 * one_way_us(link, 7, i) for i in range(4_000)]
    assert abs(sum(drawn) / len(drawn) - 100_000) < 2_000
    assert 0.90 < sum(d <= 160_000 for d in drawn) / len(drawn) < 0.98
    assert all(0 < unit(7, i) < 1 for i in range(100))
    assert one_way_us(LinkRow(rtt_us=9, rtt_high_us=9, ps_per_byte=1, ps_per_byte_high=1), 7, 1) == 4


def test_lost_events_are_made_good_by_heartbeats() -> None:
    """Of what workers publish a third is lost; in the end the router believes what the pools hold."""
    sim = fleet(2)
    sim.event_loss_ratio, sim.tick_us, sim.seed = 0.34, 200_000, 5
    for number in range(12):
        ask(sim, number, tenant=1 + number % 2, prefix=f"p{number % 5}", at_us=1 + 300_000 * number, ingress=number % 2)
    sim.run()
    assert sim.counters["events lost"] > 0
    for node, worker in enumerate(sim.workers):
        held = {block.block_hash for block in worker.ledger.named()}
        assert {row[1] for row in sim.router.replica.rows(node)} == held


def test_a_node_that_dies_and_returns_loses_no_request() -> None:
    """Its requests are decided again, it comes back empty as a new incarnation, and serves; nothing is counted twice."""
    sim = fleet(2)
    first = sim.workers[0]
    sim.revive = lambda node, incarnation: Worker(
        node=node, incarnation=incarnation, policy=first.policy, ledger=fleet(2).workers[0].ledger, directory=DIRECTORY
    )
    for number in range(20):
        ask(sim, number, prefix=f"p{number % 3}", at_us=1 + 150_000 * number, ingress=0)
    sim.fail(0, 700_000, noticed_us=900_000, back_us=1_500_000)
    outcomes = sim.run()
    assert sorted(o.request_id for o in outcomes) == list(range(20))
    assert all(o.status == Status.DONE for o in outcomes)
    assert sim.injected == len(outcomes) == 20
    assert sim.router.in_flight == 0
    late = [o.executor for o in outcomes if o.request_id >= 12]
    assert 0 in late
    assert only(outcomes, 5).executor == 1


def test_requests_are_conserved_at_every_moment() -> None:
    """Injected = ended + in flight after every single event, and time never steps back."""
    sim = fleet(2, capacity=24)
    for number in range(15):
        ask(
            sim,
            number,
            tenant=1 + number % 2,
            prefix=f"p{number % 4}",
            at_us=1 + 20_000 * number,
            prefix_blocks=8 + 8 * (number % 3),
        )
    before = 0
    while sim._heap:
        sim.run(until_us=sim._heap[0][0])
        assert sim.now_us >= before
        before = sim.now_us
        assert sim.injected == len(sim.outcomes) + sim.router.in_flight
    assert sim.injected == 15
    assert {o.status for o in sim.outcomes} == {Status.DONE, Status.REJECTED}  # the longest never fits


PROGRAM = """
import json
from tests.core.fleet import ask, fleet
sim = fleet(3, event_delay_us=10_000)
sim.event_loss_ratio, sim.seed = 0.2, 11
for number in range(20):
    ask(sim, number, tenant=1 + number % 2, prefix=f"p{number % 4}", at_us=1 + 37_000 * number, ingress=number % 3)
print(json.dumps(repr(sim.run())))
"""


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_two_processes_give_equal_bytes(hash_seed: str) -> None:
    """Whatever the process hashes strings to."""

    def run(seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ".", "PATH": ""},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)

    assert run(hash_seed) == run("3")


def test_engines_that_share_a_machine_slow_each_other_and_one_alone_is_not_slowed() -> None:
    """Two requests on two nodes at once take the longer for it, unless they come one after the other."""

    def prefills_us(permille: int, apart_us: int) -> list[int]:
        sim = fleet(2)
        sim.engine = replace(sim.engine, together_permille=permille)
        for engine in sim._engines:
            engine.model = sim.engine
        for number in range(2):
            ask(sim, number, prefix=f"p{number}", at_us=1 + apart_us * number, ingress=number)
        return [o.prefill_us for o in sorted(sim.run(), key=lambda o: o.request_id)]

    alone = prefills_us(1_000, 0)
    assert prefills_us(1_500, 60_000_000) == alone
    slowed = prefills_us(1_500, 0)
    assert slowed[0] == alone[0]
    assert abs(slowed[1] - 1.5 * alone[1]) <= 2
    assert MODEL.slowed_permille(3, 3) == 1_000
    assert replace(MODEL, together_permille=1_600).slowed_permille(1, 3) == 1_200
