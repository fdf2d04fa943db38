"""Drawn conversations: as configured on average, alike for one seed, and turns that begin as the turn before."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from kvshare_research.core.errors import ConfigError
from kvshare_research.workload.conversations import ConversationTrace
from kvshare_research.workload.trace import Reading, TraceRow

TRACE = ConversationTrace(
    data_root=None, request_count=1, rate_per_s=50.0, system_count=20, system_zipf_exponent=1.0, system_blocks=3,
    turns_mean=4.0, turn_blocks_mean=2.0, think_s_mean=10.0, output_tokens_mean=100.0, unit_tokens=16, seed=3,
)  # fmt: skip


def rows(trace: ConversationTrace, count: int) -> list[TraceRow]:
    return list(islice(trace.rows(Reading()), count))


def said(row: TraceRow) -> tuple[object, ...]:
    return row.arrival_us, row.session, row.input_tokens, row.output_tokens, row.ids.tolist()


def test_one_seed_gives_one_trace_and_another_seed_another() -> None:
    again = [said(row) for row in rows(TRACE, 200)]
    assert [said(row) for row in rows(TRACE, 200)] == again
    assert [said(row) for row in rows(replace(TRACE, seed=4), 200)] != again


def test_rates_and_lengths_are_those_configured() -> None:
    found = rows(TRACE, 20_000)
    times = np.array([row.arrival_us for row in found])
    assert (np.diff(times) >= 0).all()
    late = times[10_000:]
    assert (len(late) - 1) / (late[-1] - late[0]) * 1e6 == pytest.approx(50, rel=0.1)
    assert np.mean([row.output_tokens for row in found]) == pytest.approx(100.5, rel=0.05)
    over = {row.session for row in found if row.arrival_us < times[-1] - 200_000_000}  # of twenty turns at most
    assert sum(row.session in over for row in found) / len(over) == pytest.approx(4, rel=0.1)
    shares = np.bincount([int(row.ids[0]) // 3 for row in found], minlength=20) / len(found)
    assert shares[0] / shares[9] == pytest.approx(10, rel=0.3)


def test_a_turn_sends_what_was_before_it_and_more_and_shares_only_the_system_prompt_with_others() -> None:
    last: dict[str, TraceRow] = {}
    owner: dict[int, str] = {}
    for row in rows(TRACE, 3_000):
        assert len(row.ids) * 16 == row.input_tokens
        if (before := last.get(row.session)) is not None:
            assert len(row.ids) > len(before.ids)
            assert row.ids[: len(before.ids)].tolist() == before.ids.tolist()
        last[row.session] = row
        for name in row.ids[3:].tolist():
            assert owner.setdefault(name, row.session) == row.session


@pytest.mark.parametrize(
    "change", [{"request_count": None}, {"rate_per_s": 0.0}, {"turns_mean": 0.5}, {"system_count": 1 << 20}]
)
def test_what_cannot_be_meant_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        replace(TRACE, **change)  # type: ignore[arg-type]
