"""Audits: no shipped mechanism is refuted, every planted mistake is; bounds are right where the truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvshare_research.disclosure.calibration import analytic_sigma
from kvshare_research.disclosure.noise import SeededNoise
from kvshare_research.privacy.bounds import clopper_pearson, epsilon_lower, one_run_bound, one_run_epsilon
from kvshare_research.privacy.mechanism_audit import Subject, audit, planted, shipped

EPSILON, DELTA, L0 = 2.0, 1e-4, 8
SHIPPED = shipped(EPSILON, DELTA, L0, 8, SeededNoise(11))
PLANTED = planted(EPSILON, DELTA, L0, SeededNoise(12))


def trials(subject: Subject) -> int:
    return 3_000 if subject.online else 40_000


@pytest.mark.parametrize("subject", SHIPPED, ids=lambda s: s.name)
def test_a_shipped_mechanism_is_not_refuted(subject: Subject) -> None:
    found = audit(subject, trials(subject))
    assert not found.violated
    assert found.epsilon_lower > 0.02, "an audit that sees nothing has not looked at the worst neighbour"


@pytest.mark.parametrize("subject", PLANTED, ids=lambda s: s.name)
def test_a_planted_mistake_is_refuted(subject: Subject) -> None:
    assert audit(subject, trials(subject)).epsilon_lower > 1.4 * EPSILON


def test_clopper_pearson_covers() -> None:
    """The bounds miss a known probability about as often as they say, and never more."""
    rng = np.random.default_rng(0)
    missed = sum(
        not low <= 0.03 <= high
        for low, high in (clopper_pearson(int(k), 500, 0.025) for k in rng.binomial(500, 0.03, 800))
    )
    assert missed <= 0.05 * 800 * 1.3
    assert clopper_pearson(0, 100, 0.01)[0] == 0.0
    assert clopper_pearson(100, 100, 0.01)[1] == 1.0


def test_the_bound_of_many_runs_tends_to_the_truth() -> None:
    """Randomised response with epsilon 1: ln(p/q) = 1 exactly."""
    p = math.e / (1 + math.e)
    n = 1_000_000
    assert 0.98 < epsilon_lower(round(n * p), round(n * (1 - p)), n, 0.0) < 1.0
    assert epsilon_lower(500, 500, 1_000, 0.0) == 0.0


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_the_one_run_bound_holds_and_sees_something(epsilon: float) -> None:
    sigma = analytic_sigma(epsilon, 1e-5, 1.0)
    rng = np.random.default_rng(3)
    found = []
    for _ in range(10):
        included = rng.random(1_000) < 0.5
        found.append(one_run_bound(included + rng.normal(0, sigma, 1_000), included, 1e-5).epsilon)
    assert max(found) <= epsilon
    assert np.mean(found) > (0.02 if epsilon == 1.0 else 0.8)


def test_perfect_guesses_rule_out_much_and_coin_flips_nothing() -> None:
    assert one_run_epsilon(1_000, 400, 400, 1e-5) > 4.0
    assert one_run_epsilon(1_000, 400, 200, 1e-5) == 0.0
