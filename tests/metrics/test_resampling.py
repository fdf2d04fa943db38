"""What is read off counts is what sorting every resample would give, to the last bit."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.metrics import resampling as r
from kvshare_research.report.artefacts import build

from .synthetic import SELECTORS, make_case

column = st.lists(st.one_of(st.floats(-1e9, 1e9), st.sampled_from([0.0, 1.0, math.inf])), min_size=1, max_size=30)


@settings(max_examples=40, deadline=None)
@given(values=column, seeds=st.integers(1, 4), quantile=st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_order_statistics_are_those_of_each_resample(values: list[float], seeds: int, quantile: float) -> None:
    groups = [i % seeds for i in range(len(values))]
    x = np.array(values)
    resamples = x[np.concatenate(list(r.draws(groups)))]
    assert resamples.shape == (r.RESAMPLES, len(x))
    got = r.order_statistics([x, -x], [math.ceil(quantile * (len(x) - 1))], groups)
    assert np.array_equal(got[0, 0], np.quantile(resamples, quantile, axis=1, method="higher"))
    assert np.array_equal(got[1, 0], np.quantile(-resamples, quantile, axis=1, method="higher"))


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=30), seeds=st.integers(1, 4))
def test_medians_and_sums_are_those_of_each_resample(values: list[int], seeds: int) -> None:
    groups = [i % seeds for i in range(len(values))]
    x = np.array(values, dtype=float)
    resamples = x[np.concatenate(list(r.draws(groups)))]
    assert np.array_equal(r.medians([x], groups)[0], np.median(resamples, axis=1))
    assert np.array_equal(r.sums([x], groups)[0], resamples.sum(axis=1))


def test_slices_kept_or_drawn_anew_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(2).lognormal(10.0, 1.0, 3_000)
    groups = np.repeat([4, 9, 1], 1_000)
    whole = r.medians([x], groups)
    monkeypatch.setattr(r, "_DRAWS_KEPT", 0)
    assert np.array_equal(r.medians([x], groups), whole)


def test_one_sample_may_fill_the_slot_of_a_large_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(r, "RESAMPLES", 40)
    size = (1 << 16) + 1
    x, groups = np.arange(size + 1.0), np.append(np.zeros(size), 1)
    resamples = x[np.concatenate(list(r.draws(groups)))]
    assert (resamples[:, :size] == size).all(axis=1).any()
    assert np.array_equal(r.medians([x], groups)[0], np.median(resamples, axis=1))


def test_a_report_draws_once_for_all_cases_of_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def counted(groups: np.ndarray) -> Iterator[np.ndarray]:
        drawn.append(len(groups))
        return draws(groups)

    draws = r.draws
    monkeypatch.setattr(r, "draws", counted)
    r._kept.cache_clear()
    report = build([make_case(name, utilisation=0.7, count=23) for name in SELECTORS])
    assert len(report.rows) == len(SELECTORS)
    assert drawn == [23]
