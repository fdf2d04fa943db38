"""Calibration: it finds planted coefficients, shrugs off outliers, tells its error honestly and survives the disk."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvshare_research.core.costing import PS_PER_US, PrefillCoefficients, prefill_ps
from kvshare_research.core.errors import ConfigError
from kvshare_research.cost import calibration as c
from kvshare_research.cost.links import LinkModel
from kvshare_research.cost.ttft import TtftCost

pytest.importorskip("jax")

TRUE = PrefillCoefficients(9 * 10**9, 2_400_000_000, 3_000_000, 220_000, 110_000)
GRID = c.prefill_grid(2048, 16, 60.0, 2_400_000_000)
KEY = {"model": "smol/135M:abc", "device": "cpu", "dtype": "float32", "threads": 1, "link": "loopback"}


def timings(truth: PrefillCoefficients, *, noise: float, outliers: float, seed: int, repeats: int = 3) -> list[c.Point]:
    draw = random.Random(seed)
    points = []
    for new, cached in GRID.points * repeats:
        us = prefill_ps(truth, new, cached) / PS_PER_US * draw.lognormvariate(0, noise)
        points.append((new, cached, round(us * (draw.uniform(2, 6) if draw.random() < outliers else 1))))
    return points


def test_exact_timings_give_the_planted_coefficients() -> None:
    found, _ = c.fit_prefill(timings(TRUE, noise=0, outliers=0, seed=0))
    assert found == pytest.approx(TRUE, rel=2e-3)


def test_one_timing_in_ten_far_too_long_moves_predictions_little() -> None:
    found, _ = c.fit_prefill(timings(TRUE, noise=0.03, outliers=0.1, seed=1))
    for new, cached in ((64, 0), (64, 1024), (900, 700), (2000, 0)):
        assert prefill_ps(found, new, cached) == pytest.approx(prefill_ps(TRUE, new, cached), rel=0.06)


def test_plain_least_squares_is_moved_more() -> None:
    """Over ten draws with one timing in five too long, the worst prediction is better than without Huber weights."""

    def worst(values: object) -> float:
        found = np.array(values, float)
        shapes = ((16, 0), (64, 1024), (900, 700), (2000, 0))
        return max(abs(found @ [1, s, k, s * k, s * s] / prefill_ps(TRUE, s, k) - 1) for s, k in shapes)

    robust, plain = [], []
    for seed in range(10):
        points = timings(TRUE, noise=0.03, outliers=0.2, seed=seed)
        robust.append(worst(c.fit_prefill(points)[0]))
        new, cached, us = np.array(points, float).T
        columns = np.stack([np.ones_like(new), new, cached, new * cached, new * new], 1) / us[:, None]
        plain.append(worst(np.linalg.lstsq(columns, np.ones(len(us)), rcond=None)[0] * PS_PER_US))
    assert np.mean(robust) < 0.7 * np.mean(plain)


def test_no_coefficient_is_negative_even_if_noise_asks_for_it() -> None:
    linear = PrefillCoefficients(0, 10**9, 0, 0, 0)
    for seed in range(5):
        found, errors = c.fit_prefill(timings(linear, noise=0.1, outliers=0.05, seed=seed))
        assert min(found) >= 0
        assert all(error == 0 for value, error in zip(found, errors, strict=True) if value == 0)


def test_masked_and_unmasked_kernels_are_both_found() -> None:
    for c4 in (110_000, 150_000, 220_000):  # from half of c3 to all of it
        truth = TRUE._replace(c4_ps_per_token2=c4)
        found, _ = c.fit_prefill(timings(truth, noise=0, outliers=0, seed=0))
        assert found == pytest.approx(truth, rel=5e-3)


def test_a_few_bad_timings_of_short_prompts_do_not_explode_on_long_ones() -> None:
    """Nine timings on a crowded machine, one of them long: four times its length is far from sixteen times its time."""
    crowded = [(16, 0, 20265), (16, 32, 22265), (16, 96, 17349), (16, 192, 19380), (32, 0, 68348), (32, 32, 15833)]
    crowded += [(32, 96, 13405), (32, 192, 16258), (224, 0, 78208)]
    found, _ = c.fit_prefill(crowded)
    assert prefill_ps(found, 896, 0) <= 7 * prefill_ps(found, 224, 0)


def test_standard_errors_cover_what_they_claim() -> None:
    """Over 40 draws, the planted per-token cost lies within two standard errors in at least four of five."""
    hits = 0
    for seed in range(40):
        found, errors = c.fit_prefill(timings(TRUE, noise=0.05, outliers=0, seed=seed))
        hits += abs(found.c1_ps_per_token - TRUE.c1_ps_per_token) <= 2 * errors[1]
    assert hits >= 32


def test_held_out_shapes_are_never_fitted_and_their_error_is_told() -> None:
    points = timings(TRUE, noise=0.02, outliers=0, seed=2)
    fitted, held_out = c.held_out_split(points, 7)
    assert not {p[:2] for p in fitted} & {p[:2] for p in held_out}
    assert sorted([*fitted, *held_out]) == sorted(points)
    assert c.held_out_split(points, 7) == (fitted, held_out) != c.held_out_split(points, 8)
    good = c.calibrate(**KEY, points=points, seed=7)
    assert (good.fitted_count, good.held_out_count) == (len(fitted), len(held_out))
    assert good.coefficients == c.fit_prefill(fitted)[0]
    assert 0 < good.held_out_error_ratio < 0.05
    broken = [(s, k, us * 2) if (s, k, us) in held_out else (s, k, us) for s, k, us in points]
    assert c.calibrate(**KEY, points=broken, seed=7).held_out_error_ratio == pytest.approx(0.5, abs=0.05)


def test_link_and_merge_are_medians() -> None:
    transfers = [(0, 900), (0, 1_000), (0, 5_000), (10**6, 9_000), (10**6, 10_000), (10**6, 60_000), (10, 10**6)]
    found = c.link_model_of(transfers, LinkModel())
    assert (found.rtt_us, found.ps_per_byte) == (1_000, 9_000)
    assert c.rate_of([(10**6, 100), (10**6, 300), (10**6, 200)]) == 200
    assert c.link_model_of([], LinkModel()) == LinkModel()


def test_a_cost_takes_it_and_nothing_measured_changes_nothing() -> None:
    cost = TtftCost(**PrefillCoefficients(1, 2, 3, 4, 5)._asdict(), merge_ps_per_byte=6)
    points = timings(TRUE, noise=0.02, outliers=0, seed=2)
    found = c.calibrate(**KEY, points=points, merges=[(10, 1)], decodes=[(5, 98, 500), (5, 298, 700)])
    applied = found.applied_to(cost)
    assert isinstance(applied, TtftCost)
    assert applied.coefficients == found.coefficients
    assert applied.merge_ps_per_byte == 100_000
    assert (applied.decode_step_ps, applied.decode_ps_per_token) == (80_000_000, 200_000)
    assert c.Calibration.none().applied_to(cost) == cost
    assert c.Calibration.none().prefill_us(100, 100) == 0
    assert found.prefill_us(100, 50) == pytest.approx(prefill_ps(TRUE, 100, 50) / PS_PER_US, rel=0.05)


@pytest.mark.parametrize(("slower", "holds"), [(1.0, True), (1.2, True), (1.5, False), (0.1, False)])
def test_a_known_calibration_holds_while_the_machine_is_as_fast(slower: float, holds: bool) -> None:
    known = c.Calibration(coefficients=TRUE)
    now = [(256, 0, round(slower * prefill_ps(TRUE, 256, 0) / PS_PER_US)) for _ in range(3)]
    assert known.still_holds(now) == holds
    assert not c.Calibration.none().still_holds(now)


def test_decoding_costs_by_step_and_by_context() -> None:
    """The planted line comes back through outliers; contexts that seem to speed it up are no reason to go below zero."""
    times = [(4, context, 4 * (30_000 + 10 * (context + 1))) for context in (16, 16, 16, 256, 256, 256)]
    assert c.fit_decode([*times, (4, 16, 900_000), (4, 256, 900_000)]) == (30_000 * PS_PER_US, 10 * PS_PER_US)
    step_ps, per_token_ps = c.fit_decode([(4, 16, 120_000), (4, 256, 118_000)])
    assert per_token_ps == 0
    assert 29_500 * PS_PER_US <= step_ps <= 30_000 * PS_PER_US
    assert c.fit_decode([(4, 64, 120_000)]) == (30_000 * PS_PER_US, 0)
    assert c.fit_decode([]) == (None, 0)


def test_it_survives_the_disk_and_serves_only_its_own_key(tmp_path: Path) -> None:
    found = c.calibrate(**KEY, points=timings(TRUE, noise=0.02, outliers=0, seed=2), transfers=[(0, 40)])
    assert c.load(tmp_path, **KEY) is None
    path = c.save(found, tmp_path)
    assert c.load(tmp_path, **KEY) == found
    assert c.Calibration.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert c.Calibration.from_dict(c.Calibration.none().to_dict()) == c.Calibration.none()
    assert c.load(tmp_path, **(KEY | {"threads": 2})) is None
    c.save(replace(found, model="smol/135M-abc"), tmp_path)  # another model may share the file name, never the value
    assert c.load(tmp_path, **KEY) in (None, found)
    path.write_text("{")
    with pytest.raises(ConfigError, match="broken"):
        c.load(tmp_path, **KEY)


@pytest.mark.parametrize("budget_s", [3.0, 15.0, 60.0])
@pytest.mark.parametrize(("longest", "rough_ps"), [(1024, 2_400_000_000), (4096, 60_000_000), (512, 2_400_000_000)])
def test_the_grid_fits_its_budget_and_identifies_the_model(budget_s: float, longest: int, rough_ps: int) -> None:
    grid = c.prefill_grid(longest, 16, budget_s, rough_ps)
    assert len(set(grid.points)) == len(grid.points) >= 8
    assert all(new > 0 and cached >= 0 and new + cached <= longest and cached % 16 == 0 for new, cached in grid.points)
    seconds = grid.repeats * sum(new for new, _ in grid.points) * rough_ps / 1e12
    assert seconds <= budget_s
    assert seconds >= 0.4 * budget_s or grid.repeats == 8
    assert grid.ranges[0] == (grid.points[0][1], sum(grid.points[0]))
    c.fit_prefill([(s, k, round(prefill_ps(TRUE, s, k) / PS_PER_US)) for s, k in grid.points])
    columns = np.array([[1, s, k, s * k, s * s] for s, k in grid.points], float)
    assert np.linalg.matrix_rank(columns / columns.max(axis=0)) == 5


def test_too_few_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match="shapes"):
        c.calibrate(**KEY, points=[(16, 0, 5), (32, 0, 9)])
    with pytest.raises(ConfigError, match="too short"):
        c.prefill_grid(16, 16, 1.0, 1)
