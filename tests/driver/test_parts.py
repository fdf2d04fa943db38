"""Small parts of the driver, without ranks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kvshare_research.core import messages as m
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Outcome, Status
from kvshare_research.driver.assembly import Place, assembly_at
from kvshare_research.driver.clock import Clock, Rest
from kvshare_research.driver.compute import ComputeThread
from kvshare_research.driver.log import EventLog, digest, read_log, redacted
from kvshare_research.driver.probe import Prober
from kvshare_research.transport import wire

FAILED = Outcome(request_id=1, tenant_id=2, application="", status=Status.FAILED)


def test_a_clock_counts_from_its_restart() -> None:
    clock = Clock()
    first = clock.now_us()
    assert 0 <= first <= clock.now_us()
    clock.restart()
    assert clock.now_us() >= 0


@given(st.lists(st.tuples(st.booleans(), st.one_of(st.none(), st.integers(-5, 2000))), max_size=300))
def test_a_loop_never_sleeps_past_its_next_timer_or_a_millisecond(rounds: list[tuple[bool, int | None]]) -> None:
    rest = Rest()
    for moved, due in rounds:
        seconds = rest.seconds(moved, False, due)
        assert 0 <= seconds <= Rest.LONGEST_S
        assert not moved or seconds == 0
        assert due is None or seconds <= max(0, due) * 1e-6


def test_a_quiet_loop_slows_down_and_wakes_up() -> None:
    rest = Rest()
    quiet = [rest.seconds(False, False, None) for _ in range(600)]
    assert quiet == sorted(quiet)
    assert (quiet[0], quiet[-1]) == (1e-4, Rest.LONGEST_S)
    rest.seconds(True, False, None)
    assert rest.seconds(False, False, None) == 1e-4


def test_jobs_run_in_order_and_what_follows_runs_in_the_callers_thread() -> None:
    import threading

    thread, order, where = ComputeThread(), [], []

    def job(i: int) -> Any:
        def run() -> Any:
            order.append(i)
            return lambda: where.append(threading.current_thread())

        return run

    for i in range(5):
        thread.submit(job(i))
    for _ in range(5):
        assert thread.finish_one(30)
    assert order == list(range(5))
    assert set(where) == {threading.current_thread()}
    assert thread.is_idle
    assert not thread.finish_one(0)

    def fail() -> Any:
        raise OSError("no memory")

    thread.submit(fail)
    with pytest.raises(OSError, match="no memory"):
        thread.finish_one(30)
    thread.stop(30)


def test_probes_follow_one_another_and_wait_for_every_byte() -> None:
    now = [0]
    prober = Prober(lambda: now[0])
    assert prober.start(wire.MeasureLink(3, 100, 2)) == (3, wire.ProbeAsked(1, 100))
    now[0] = 10
    assert prober.answered(1, 60) is None
    assert prober.answered(9, 40) is None
    assert prober.answered(1, 40) == (3, wire.ProbeAsked(2, 100))
    now[0] = 40
    assert prober.answered(2, 100) == wire.Measured(0, ((10,), (30,)))
    assert prober.answered(2, 100) is None


@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=9), st.lists(st.integers(0, 1 << 20), max_size=9))
def test_logs_know_how_many_tokens_but_not_which(some: list[int], others: list[int]) -> None:
    def done(tokens: list[int]) -> m.ReportCompleted:
        outcome = replace(FAILED, output_tokens=tuple(tokens), logit_fingerprint=(float(sum(tokens)),))
        return m.ReportCompleted(request_id=1, outcome=outcome)

    same = digest([done(some)]) == digest([done(others)])
    assert same == (len(some) == len(others))
    decoded = redacted(m.DecodeDone(request_id=1, tokens=tuple(some), elapsed_us=1))
    assert decoded.tokens == (0,) * len(some)
    prefilled = m.PrefillDone(
        request_id=1, end_token=1, elapsed_us=1, merge_us=0, first_token=7, logit_fingerprint=(0.5,)
    )
    assert redacted(prefilled).first_token == 0
    assert redacted(prefilled).logit_fingerprint == ()
    assert redacted(replace(prefilled, first_token=None)).first_token is None


def test_effects_are_told_apart_by_kind_content_and_order() -> None:
    a, b = m.CancelFetch(fetch_id=1), m.CancelFetch(fetch_id=2)
    rows = [[], [a], [b], [a, b], [b, a], [m.ReportFirstToken(request_id=1)]]
    assert len({digest(row) for row in rows}) == len(rows)


def test_a_log_says_what_it_is() -> None:
    place = Place(node=0, node_count=1, capacity_blocks=4, block_bytes=8, incarnation=1)
    log = EventLog("a.b:C", {"x": 1}, place)
    log.record(5, m.Ticked(), ())
    read = read_log(log.to_bytes())
    assert (read.assembly, read.config, read.place) == ("a.b:C", {"x": 1}, place)
    assert [(e.now_us, e.kind) for e in read.entries] == [(5, "Ticked")]
    with pytest.raises(ConfigError, match="not a recorded log"):
        read_log(b"nonsense")
    with pytest.raises(ConfigError, match="cannot make"):
        assembly_at("a.b:C")
