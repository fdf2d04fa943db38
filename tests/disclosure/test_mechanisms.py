"""The mechanisms: exact calibration, exact discrete noise, votes bounded per unit, and releases that are functions of votes."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.ports import Ballot, Disclosure
from kvshare_research.disclosure.after_k import AfterK
from kvshare_research.disclosure.calibration import (
    analytic_sigma,
    gaussian_delta,
    optimal_probabilities,
    sparse_vector_threshold,
    weighted_threshold,
)
from kvshare_research.disclosure.dp_batch import DpBatch
from kvshare_research.disclosure.dp_optimal import DpOptimal
from kvshare_research.disclosure.dp_svt import DpSvt
from kvshare_research.disclosure.dp_tree import DpTree
from kvshare_research.disclosure.never import NeverDisclosure
from kvshare_research.disclosure.noise import GRID, SeededNoise, SystemNoise, discrete_gaussian
from kvshare_research.disclosure.votes import OnlineVotes, Votes, tallied

COMMON = {"epsilon": 2.0, "delta": 1e-6, "unit": "user", "period_us": 1}
POLICIES: tuple[Disclosure, ...] = (
    NeverDisclosure(),
    AfterK(k=3, unit="user"),
    DpBatch(l0=16, **COMMON),
    DpOptimal(**COMMON),
    DpTree(l0=4, checks=8, alone=True, **COMMON),
    DpSvt(l0=4, checks=8, **COMMON),
)


def name(number: int) -> bytes:
    return number.to_bytes(16, "big")


def ballot(unit: int, *numbers: int) -> Ballot:
    return Ballot(unit_id=unit, names=tuple(map(name, numbers)), blocks=tuple(range(1, len(numbers) + 1)))


@pytest.mark.parametrize(
    ("l0", "epsilon", "units"), [(1, 0.5, 26), (1, 1.0, 14), (1, 2.0, 8), (1, 4.0, 5), (1, 8.0, 3)]
)
def test_optimal_selection_needs_the_published_number_of_units(l0: int, epsilon: float, units: int) -> None:
    table = optimal_probabilities(epsilon, 1e-6)
    assert int(np.argmax(table >= 0.5)) == units
    assert table[0] == 0


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_optimal_selection_is_private_and_tight(epsilon: float) -> None:
    """Hockey-stick divergence between n and n + 1 units, in both directions and for both answers, is exactly delta."""
    p = optimal_probabilities(epsilon, 1e-6)
    a, b, e = p[:-1], p[1:], math.exp(epsilon)
    worst = max((b - e * a).max(), (a - e * b).max(), ((1 - a) - e * (1 - b)).max(), ((1 - b) - e * (1 - a)).max())
    assert worst == pytest.approx(1e-6, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 50.0])
def test_sigma_is_the_least_that_meets_delta(epsilon: float) -> None:
    sigma = analytic_sigma(epsilon, 5e-7, 1.0)
    assert gaussian_delta(epsilon, sigma * 1.0001, 1.0) <= 5e-7 < gaussian_delta(epsilon, sigma * 0.999, 1.0)


def test_a_lone_unit_is_released_with_probability_delta_at_most() -> None:
    """For every number of votes a unit may cast, by exact integration of the threshold."""
    policy = DpBatch(l0=16, **COMMON)
    threshold = weighted_threshold(5e-7, 16, policy.sigma)
    for t in range(1, 17):
        per_name = 0.5 * math.erfc((threshold - 1 / math.sqrt(t)) / policy.sigma / math.sqrt(2))
        assert 1 - (1 - per_name) ** t <= 5e-7 * (1 + 1e-6)


def test_sparse_vector_threshold_is_met_by_simulation() -> None:
    """At a delta large enough to see: a lone unit passes one of 16 tests about as often as allowed, never more."""
    scale, delta, n = 2 / 0.5, 0.02, 200_000
    threshold = sparse_vector_threshold(0.5, delta, 16)
    rng = np.random.default_rng(0)
    passed = (1 + rng.laplace(0, scale, (n, 16)) >= threshold + rng.laplace(0, scale, (n, 1))).any(1).mean()
    assert 0.9 * delta < passed < delta + 4 * math.sqrt(delta / n)


def test_discrete_gaussian_has_the_exact_probabilities() -> None:
    source = random.Random(5)
    drawn = Counter(discrete_gaussian(Fraction(3, 2), source) for _ in range(20_000))
    weights = {x: math.exp(-x * x / (2 * 1.5**2)) for x in range(-12, 13)}
    total = sum(weights.values())
    statistic = sum((drawn[x] - 20_000 * w / total) ** 2 / (20_000 * w / total) for x, w in weights.items() if w > 0.02)
    assert statistic < 30, "chi-square with 9 degrees of freedom"


def test_noise_lies_on_the_grid_and_has_its_spread() -> None:
    for noise, count in ((SeededNoise(3), 20_000), (SystemNoise(random.Random(3)), 2_000)):
        for values, spread in ((noise.gaussian(4.0, count), 4.0), (noise.laplace(2.0, count), 2.0 * math.sqrt(2))):
            assert np.all(values * GRID == np.rint(values * GRID))
            assert np.std(values) == pytest.approx(spread, rel=0.12)
        assert 0 <= noise.uniform(100).min() <= noise.uniform(100).max() < 1


@given(st.lists(st.tuples(st.integers(1, 5), st.lists(st.integers(0, 30), max_size=8)), max_size=40), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_one_unit_moves_the_sums_by_one_at_most(asked: list[tuple[int, list[int]]], l0: int) -> None:
    """Whatever a unit asks for, and however often, its removal changes the weighted sums by a vector of length <= 1."""
    with_all, without = Votes(64 * l0), Votes(64 * l0)
    for unit, numbers in asked:
        with_all.cast(ballot(unit, *numbers))
        if unit != 1:
            without.cast(ballot(unit, *numbers))
    a, b = (dict(zip(*tallied(v.chosen(l0), weighted=True), strict=True)) for v in (with_all, without))
    difference = [a.get(n, 0.0) - b.get(n, 0.0) for n in a.keys() | b.keys()]
    assert math.sqrt(sum(x * x for x in difference)) <= 1 + 1e-9
    assert sum(x != 0 for x in difference) <= l0


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: type(p).__name__)
def test_a_popular_prefix_is_released_and_a_lone_one_is_not(policy: Disclosure) -> None:
    """400 units share name 7; each has a name of its own; one unit repeats its own name a thousand times."""
    state, noise = policy.initial_state(), SeededNoise(1)
    for unit in range(1, 401):
        state = policy.observe(state, ballot(unit, 7, 1_000 + unit))
    for _ in range(1_000):
        state = policy.observe(state, ballot(1, 1_001))
    released: set[bytes] = set()
    for _ in range(4):
        state, new = policy.release(state, noise)
        released |= new
    assert released - {name(7)} == set()
    assert (name(7) in released) != isinstance(policy, NeverDisclosure)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: type(p).__name__)
def test_equal_votes_and_equal_chance_give_equal_releases(policy: Disclosure) -> None:
    """Order of arrival inside a period does not matter to what is released by a batch; chance comes from the port alone."""

    def play(order: list[int]) -> frozenset[bytes]:
        state = policy.initial_state()
        for unit in order:
            state = policy.observe(state, ballot(unit, unit % 9))
        return policy.release(state, SeededNoise(4))[1]

    units = list(range(1, 300))
    assert play(units) == play(units[::-1])


USERS = [p for p in POLICIES if not isinstance(p, NeverDisclosure)]


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("policy", USERS, ids=lambda p: type(p).__name__)
def test_users_of_one_tenant_release_its_prefix_only_where_they_may(policy: Any, alone: bool) -> None:
    """Two thousand users of one tenant ask for name 7, those of forty tenants for name 8."""
    if isinstance(policy, DpTree) and not alone:
        with pytest.raises(ConfigError, match="alone=true"):
            replace(policy, alone=False)
        return
    made = replace(policy, alone=alone)
    state, noise = made.initial_state(), SeededNoise(5)
    for user in range(1, 2_001):
        state = made.observe(state, replace(ballot(user, 7), tenant_id=1))
        state = made.observe(state, replace(ballot(10_000 + user, 8), tenant_id=1 + user % 40))
    released: set[bytes] = set()
    for _ in range(4):
        state, new = made.release(state, noise)
        released |= new
    assert name(8) in released
    assert (name(7) in released) == alone


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 5)), max_size=40), st.booleans(), st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_one_user_moves_what_counts_by_one_at_most(asked: list[tuple[int, int]], weighted: bool, tenants: int) -> None:
    """As for all votes: so the noise that covers those covers these."""

    def votes(drop: int | None) -> Votes:
        made = Votes(64)
        for user, number in asked:
            if user != drop:
                made.cast(replace(ballot(user, number), tenant_id=1 + user % tenants))
        return made

    with_all, without = votes(None), votes(1)
    a, b = (dict(zip(*tallied(v.chosen(6), weighted, v.tenants), strict=True)) for v in (with_all, without))
    difference = [a.get(n, 0.0) - b.get(n, 0.0) for n in a.keys() | b.keys()]
    assert all(0 <= x <= 1 for x in difference)
    assert not weighted or math.sqrt(sum(x * x for x in difference)) <= 1 + 1e-9
    plain = dict(zip(*tallied(with_all.chosen(6), weighted), strict=True))
    assert all(a[n] <= plain[n] for n in plain)
    online = OnlineVotes(6)
    for user, number in asked:
        online.cast(replace(ballot(user, number), tenant_id=1 + user % tenants))
    if not weighted:
        assert {n: online.counted(n, False) for n in online.counts} == a
        assert {n: online.counted(n, True) for n in online.counts} == plain


def test_a_unit_that_floods_is_clipped_and_counted() -> None:
    policy = DpBatch(l0=2, **COMMON)
    state = policy.initial_state()
    for number in range(10_000):
        state = policy.observe(state, ballot(1, number))
    assert len(state.by_unit[1]) == 128
    assert state.clipped == 10_000 - 128


def test_online_horizons_are_paid_for_once() -> None:
    for policy in (DpTree(l0=4, checks=3, alone=True, **COMMON), DpSvt(l0=4, checks=3, **COMMON)):
        state, paid = policy.initial_state(), []
        for _ in range(7):
            paid.append(policy.charge(state) is not None)
            state, _new = policy.release(state, SeededNoise(0))
        assert paid == [True, False, False, True, False, False, True]


@pytest.mark.parametrize(
    ("change", "word"),
    [({"epsilon": 0.0}, "epsilon"), ({"delta": 1.0}, "delta"), ({"unit": "request"}, "unit"), ({"l0": 0}, "l0")],
)
def test_values_without_meaning_are_refused(change: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        DpBatch(**({"l0": 4, **COMMON} | change))
