"""The formulas: worked examples from papers, and the order that decides ties."""

from __future__ import annotations

from functools import reduce
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from kvshare_research.core.costing import (
    Choice,
    PrefillCoefficients,
    better,
    fetch_ps,
    fetch_us,
    prefill_ps,
    setup_ps,
    ttft_us,
    up_to_us,
)

AMOUNT = st.integers(0, 10**9)
TOKENS = st.integers(0, 200_000)
COEFFICIENTS = st.builds(PrefillCoefficients, AMOUNT, AMOUNT, AMOUNT, st.integers(0, 10**6), st.integers(0, 10**6))
CHOICE = st.builds(Choice, *(st.integers(0, 3) for _ in range(5)))


def test_worked_example_of_gorgo_v1() -> None:
    """70B, .5 ms a token, 1,000 tokens: Israel 183 ms, 80 % cached; US-West 3 ms, 5 %; Germany 281 ms, 60 %."""
    per_token = PrefillCoefficients(0, 500_000_000, 0, 0, 0)

    def serve(rtt_ms: int, cached: int) -> int:
        return ttft_us(rtt_ms * 1000, 0, 0, 0, up_to_us(prefill_ps(per_token, 1000 - cached, cached)), 0)

    assert [serve(183, 800), serve(3, 50), serve(281, 600)] == [283_000, 478_000, 481_000]


def test_local_wins_the_worked_example_at_the_rate_of_a_7b_model() -> None:
    per_token = PrefillCoefficients(0, 94_000_000, 0, 0, 0)  # .094 ms a token, the paper's fit
    local, israel = (up_to_us(prefill_ps(per_token, n, 1000 - n)) for n in (950, 200))
    assert ttft_us(3_000, 0, 0, 0, local, 0) < ttft_us(183_000, 0, 0, 0, israel, 0)


def test_prefill_of_preble_for_llama3_70b() -> None:
    """28.93 + .182 ext + .0040 ctx + 2.55e-6 ext ctx ms, ctx being cached and new: 1,000 new on 3,000 cached."""
    fit = PrefillCoefficients(28_930_000_000, 182_000_000 + 4_000_000, 4_000_000, 2_550, 2_550)
    assert prefill_ps(fit, 1000, 3000) == 28_930_000_000 + 182_000_000_000 + 16_000_000_000 + 10_200_000_000


def test_a_gigabit_moves_a_block_in_its_time() -> None:
    """16 tokens of 46,080 bytes at 1 Gbit/s are 5,898.24 us after 10 ms; a block under way adds the same once more."""
    assert fetch_us(10_000, 0, 8_000, 16 * 46_080) == 10_000 + 5_899
    assert fetch_us(10_000, 16 * 46_080, 8_000, 16 * 46_080) == 10_000 + 11_797
    assert fetch_us(10_000, 5, 8_000, 0) == 0


@given(COEFFICIENTS, TOKENS, TOKENS, TOKENS, TOKENS)
def test_more_work_never_takes_less(c: PrefillCoefficients, s: int, k: int, more_s: int, more_k: int) -> None:
    assert prefill_ps(c, s, k) <= prefill_ps(c, s + more_s, k + (more_k if s else 0))


@given(AMOUNT, AMOUNT, AMOUNT, AMOUNT, AMOUNT)
def test_a_slower_or_fuller_link_never_fetches_sooner(
    rtt: int, under_way: int, rate: int, size: int, more: int
) -> None:
    base = fetch_ps(setup_ps(rtt, under_way, rate), size, rate)
    for other in (
        fetch_ps(setup_ps(rtt + more, under_way, rate), size, rate),
        fetch_ps(setup_ps(rtt, under_way + more, rate), size, rate),
        fetch_ps(setup_ps(rtt, under_way, rate + more), size, rate + more),
        fetch_ps(setup_ps(rtt, under_way, rate), size + (more if size else 0), rate),
    ):
        assert other >= base


@given(st.integers(0, 10**18))
def test_rounding_up_adds_less_than_a_microsecond(ps: int) -> None:
    assert 0 <= up_to_us(ps) * 1_000_000 - ps < 1_000_000


@given(st.lists(CHOICE, min_size=1, max_size=4))
def test_the_winner_is_the_least_and_the_order_does_not_matter(choices: list[Choice]) -> None:
    assert {reduce(better, order) for order in permutations(choices)} == {min(choices)}


def test_computing_wins_its_ties() -> None:
    compute, pull, route = Choice(10, 0, 0, 5, -1), Choice(10, 1, 3, 0, 1), Choice(10, 0, 2, 0, -1)
    assert better(pull, compute) is compute is better(compute, route)
