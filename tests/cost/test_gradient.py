"""Fits by gradient: they find what made the data, agree with the exact fit, and their intervals cover."""

from __future__ import annotations

import numpy as np
import pytest

from kvshare_research.core.costing import PrefillCoefficients, prefill_ps
from kvshare_research.core.errors import ConfigError
from kvshare_research.cost.calibration import fit_prefill
from kvshare_research.cost.gradient import fit, prefill_columns

TRUE = PrefillCoefficients(5_000_000_000, 90_000_000, 2_000_000, 8_000, 4_000)
SHAPES = [(s, k) for s in (64, 128, 256, 512, 1024, 2048) for k in (0, 512, 2048)]


def timings(seed: int, noise: float = 0.02, repeats: int = 4) -> list[tuple[int, int, int]]:
    chance = np.random.default_rng(seed)
    return [
        (s, k, max(1, int(prefill_ps(TRUE, s, k) / 1e6 * np.exp(noise * chance.standard_normal()))))
        for s, k in SHAPES
        for _ in range(repeats)
    ]


def fitted(points: list[tuple[int, int, int]]):
    new, cached, us = np.array(points, np.float64).T
    columns, names = prefill_columns(new, cached)
    return fit(columns, us * 1e6, names, [p[:2] for p in points])


def test_it_finds_the_coefficients_and_agrees_with_the_exact_fit() -> None:
    points = timings(0)
    c0, c1, c2, pairs = fitted(points)
    exact, _ = fit_prefill(points)
    assert c0.value == pytest.approx(exact.c0_ps, rel=0.05)
    assert c1.value == pytest.approx(exact.c1_ps_per_token, rel=0.03)
    assert pairs.value == pytest.approx(TRUE.c3_ps_per_token2, rel=0.1)
    assert c2.hessian[0] <= TRUE.c2_ps_per_token <= c2.hessian[1]
    assert fitted(points) == fitted(points)


def test_intervals_cover_about_as_often_as_they_say() -> None:
    """Over 20 data sets the true launch cost and token cost lie in most of the intervals of both kinds."""
    inside = {"hessian": 0, "bootstrap": 0}
    for seed in range(20):
        for row, truth in zip(fitted(timings(seed))[:2], TRUE[:2], strict=True):
            for kind in inside:
                low, high = getattr(row, kind)
                assert low <= row.value <= high
                inside[kind] += low <= truth <= high
    assert 33 <= inside["hessian"] <= 40, inside
    assert 30 <= inside["bootstrap"] <= 40, inside


def test_outliers_move_it_little_and_a_coefficient_that_is_not_there_is_not_told_from_zero() -> None:
    points = [(s, k, us * (20 if i % 17 == 0 else 1)) for i, (s, k, us) in enumerate(timings(3))]
    assert fitted(points)[1].value == pytest.approx(TRUE.c1_ps_per_token, rel=0.06)
    flat = np.array([(1.0, size) for size in (1e3, 1e4, 1e5, 1e6) for _ in range(5)])
    trip, rate = fit(flat, np.full(20, 7.0), ("round trip", "per byte"), flat[:, 1].tolist())
    assert trip.value == pytest.approx(7.0, rel=0.01)
    assert rate.bootstrap[0] == 0.0
    assert rate.hessian[0] == 0.0


def test_too_few_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 shapes"):
        fitted([(64, 0, 10), (128, 0, 20)])
