"""The split among sources and the meeting point of computing and fetching, against every alternative."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from kvshare_research.core.costing import PrefillCoefficients
from kvshare_research.core.splitting import capped_ps, finish_ps, front_of, meet_ps, next_finish_ps, split

SOURCE = st.tuples(st.integers(0, 40), st.integers(1, 12))
SMALL = st.lists(SOURCE, min_size=1, max_size=3)
LARGE = st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 10**10)), min_size=1, max_size=6)


def last(counts: tuple[int, ...], sources: list[tuple[int, int]]) -> int:
    return max(finish_ps(setup, rate, count) for count, (setup, rate) in zip(counts, sources, strict=True))


def water_level(total: int, sources: list[tuple[int, int]]) -> Fraction:
    """The least real T by which linear sources deliver `total`: (total + sum a/b) / sum 1/b over those used."""
    level = None
    rate = intercept = Fraction(0)
    for setup, per_block in sorted(sources):
        if level is not None and setup >= level:
            break
        rate += Fraction(1, per_block)
        intercept += Fraction(setup, per_block)
        level = (total + intercept) / rate
    assert level is not None
    return level


@given(SMALL, st.integers(1, 8))
def test_no_other_split_finishes_earlier(sources: list[tuple[int, int]], total: int) -> None:
    counts, last_ps = split(total, sources)
    every = (c for c in product(range(total + 1), repeat=len(sources)) if sum(c) == total)
    assert sum(counts) == total
    assert last_ps == last(counts, sources) == min(last(c, sources) for c in every)


@given(LARGE, st.integers(1, 5_000))
def test_within_one_block_of_the_optimum_over_the_reals(sources: list[tuple[int, int]], total: int) -> None:
    counts, last_ps = split(total, sources)
    level = water_level(total, sources)
    assert sum(counts) == total
    assert level <= last_ps
    assert last_ps <= level + max(rate for setup, rate in sources if setup < level)
    for count, (setup, rate) in zip(counts, sources, strict=True):
        assert abs(count - max(Fraction(0), (level - setup) / rate)) <= len(sources)


@given(LARGE, st.integers(1, 5_000))
def test_the_invariant_that_proves_it(sources: list[tuple[int, int]], total: int) -> None:
    """Nobody finishes after somebody else would have finished one block more."""
    counts, last_ps = split(total, sources)
    assert all(last_ps <= next_finish_ps(*source, count) for count, source in zip(counts, sources, strict=True))


@given(LARGE, SOURCE, st.integers(1, 500))
def test_one_more_source_never_hurts(sources: list[tuple[int, int]], extra: tuple[int, int], total: int) -> None:
    assert split(total, [*sources, extra])[1] <= split(total, sources)[1]


def test_two_equal_sources_halve_it_and_the_receiver_caps_it() -> None:
    assert split(10, [(100, 20), (100, 20)]) == ((5, 5), 200)
    assert capped_ps(200, 100, 10, 15) == 250  # the receiver takes 15 a block: no faster than 100 + 150
    assert split(10, [(0, 10), (85, 1)]) == ((8, 2), 87)  # the late quick one takes the last two


@given(
    st.builds(PrefillCoefficients, *(st.integers(0, n) for n in (50, 20, 5, 3, 3))),
    st.integers(0, 64),
    st.integers(1, 4),
    st.integers(0, 30),
    st.integers(0, 400),
    st.integers(1, 200),
)
def test_the_front_is_the_best_of_all_fronts(
    coefficients: PrefillCoefficients, cached: int, block_tokens: int, blocks: int, setup: int, rate: int
) -> None:
    front = front_of(coefficients, cached, block_tokens, blocks, setup, rate)
    times = [meet_ps(coefficients, cached, block_tokens, blocks, setup, rate, f) for f in range(blocks + 1)]
    assert times[front] == min(times)
    assert front == max(f for f, t in enumerate(times) if t == min(times)) or times[front] == times[front + 1]


def test_equal_rates_meet_in_the_middle() -> None:
    """Computing and fetching both take 10 a block: five each (Cake: 1 / (1/Tc + 1/Tl))."""
    assert front_of(PrefillCoefficients(0, 10, 0, 0, 0), 0, 1, 10, 0, 10) == 5
