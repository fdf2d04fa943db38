"""The pace of the ranks: what served requests took against what calibration says, idle and all at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kvshare_research.core.costing import PrefillCoefficients, decode_ps, prefill_ps
from kvshare_research.core.nouns import Action, Outcome, Status
from kvshare_research.cost.ttft import TtftCost
from kvshare_research.study.pace import ServingPace, pace_of

COST = TtftCost(
    c0_ps=4 * 10**10, c1_ps_per_token=10**9, c2_ps_per_token=0, c3_ps_per_token2=10**6, c4_ps_per_token2=10**6,
    merge_ps_per_byte=1_000, decode_step_ps=4 * 10**10, decode_ps_per_token=10**6,
)  # fmt: skip


def served(number: int, node: int, prefill: float, decode: float, control_us: int = 900, queue_us: int = 0) -> Outcome:
    """A recomputed prompt of 256 tokens and 4 of an answer, at so many times the calibrated prefill and decode."""
    coefficients = PrefillCoefficients(*COST.coefficients)
    prefill_us = round(prefill * prefill_ps(coefficients, 256, 0) / 1e6)
    decode_us = round(decode * decode_ps(COST.decode_step_ps, COST.decode_ps_per_token, 3, 256) / 1e6)
    ttft_us = control_us + queue_us + prefill_us
    return Outcome(
        request_id=number, tenant_id=0, application="", status=Status.DONE, reason="", action=Action.RECOMPUTE,
        executor=node, ttft_us=ttft_us, end_to_end_us=ttft_us + decode_us, queue_us=queue_us, prefill_us=prefill_us,
        decode_us=decode_us, prompt_tokens=256, computed_tokens=256, output_tokens=(1, 2, 3, 4),
    )  # fmt: skip


@given(st.floats(0.5, 3.0), st.floats(0.5, 3.0), st.floats(1.0, 2.0))
def test_the_pace_is_what_it_was_made_with(prefill: float, decode: float, together: float) -> None:
    """The first and the last of each node are left out: they had no company at one end, whatever they took."""
    alone = [served(i, 0, prefill, decode) for i in range(5)]
    busy = [
        served(10 * node + i, node, prefill * share, decode * share, queue_us=i * 10**7)
        for node in range(2)
        for i, share in enumerate([9.0, together, together, together, 9.0])
    ]
    found = pace_of(alone, busy, COST)
    assert abs(found.prefill_permille - 1_000 * prefill) <= 1
    assert abs(found.decode_permille - 1_000 * decode) <= 1
    assert abs(found.together_permille - 1_000 * together) <= 1
    assert found.control_us == 900


def test_nothing_measured_is_as_calibrated_and_company_never_speeds_up() -> None:
    assert pace_of((), (), COST) == ServingPace()
    failed = replace(served(0, 0, 2.0, 2.0), status=Status.FAILED, prefill_us=0)
    assert pace_of([failed], (), COST) == ServingPace()
    alone = [served(i, 0, 2.0, 2.0) for i in range(3)]
    assert pace_of(alone, (), COST).together_permille == 1_000
    assert pace_of(alone, [served(i, 0, 1.0, 1.0) for i in range(4)], COST).together_permille == 1_000
    short = [replace(row, output_tokens=(1,), decode_us=0) for row in alone]
    assert pace_of(short, (), COST).decode_permille == 1_000
