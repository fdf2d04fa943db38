"""Statistics of the report: quantiles with intervals, paired bootstrap, throughput at an objective, saturation.

Intervals are 95 % percentile intervals of a two-stage bootstrap (`resampling.py`): seeds are drawn first, then requests
within a drawn seed; columns of a paired comparison are drawn together. The generator has a fixed seed, so equal data
give equal intervals. Not a number in, or nothing in, gives NaN out, never an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .resampling import Floats, draws, medians, order_statistics, sums

CONFIDENCE = 0.95
P95_SAMPLES = 100  # fewer samples say nothing about a 95th percentile
P99_SAMPLES = 500
INTERVAL_SAMPLES = 6  # from here on the range of the sample covers the median with 95 % (1 - 2 * 0.5^n)

Statistic = Callable[..., Floats]  # columns with the samples on the last axis -> one value per row


@final
@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval and how many samples are behind it. NaN means: cannot be said."""

    value: float
    low: float
    high: float
    samples: int

    @property
    def known(self) -> bool:
        return bool(np.isfinite(self.value))

    @property
    def has_interval(self) -> bool:
        """Whether there are enough samples to believe the interval."""
        return self.known and self.samples >= INTERVAL_SAMPLES


UNKNOWN = Estimate(float("nan"), float("nan"), float("nan"), 0)


@final
@dataclass(frozen=True, slots=True)
class Quantiles:
    """p50 with interval; p95 and p99 only with enough samples, else None. Same unit as the values."""

    samples: int
    p50: Estimate
    p95: float | None
    p99: float | None
    maximum: float


def floats(values: ArrayLike) -> Floats:
    """The values as an array of float64."""
    return np.asarray(values, dtype=np.float64)


def interval(value: float, replicates: Floats, samples: int) -> Estimate:
    """`value` with the percentile interval of its replicates, widened if need be to contain the value."""
    usable = replicates[~np.isnan(replicates)]
    if not np.isfinite(value) or len(usable) == 0:
        return Estimate(float("nan"), float("nan"), float("nan"), samples)
    tail = (1.0 - CONFIDENCE) / 2.0
    # An order statistic, not an interpolation: replicates may be infinite.
    low, high = np.quantile(usable, [tail, 1.0 - tail], method="closest_observation")
    return Estimate(float(value), float(min(low, value)), float(max(high, value)), samples)


def _finite(columns: Sequence[ArrayLike], groups: ArrayLike | None) -> tuple[list[Floats], NDArray[np.int64]]:
    """The rows in which every column is finite, with their groups; ValueError where columns differ in length."""
    data = [floats(c) for c in columns]
    if any(len(c) != len(data[0]) for c in data):
        raise ValueError(f"paired columns differ in length: {[len(c) for c in data]}")
    keep = np.logical_and.reduce([np.isfinite(c) for c in data])
    labels = np.zeros(len(keep), dtype=np.int64) if groups is None else np.asarray(groups, dtype=np.int64)
    return [c[keep] for c in data], labels[keep]


def bootstrap(statistic: Statistic, *columns: ArrayLike, groups: ArrayLike | None = None) -> Estimate:
    """Estimate of any statistic; rows of `columns` where one is not finite are left out of it."""
    data, seeds = _finite(columns, groups)
    if len(seeds) == 0:
        return UNKNOWN
    with np.errstate(all="ignore"):
        replicates = np.concatenate([statistic(*(c[drawn] for c in data)) for drawn in draws(seeds)])
        return interval(float(statistic(*data)), replicates, len(seeds))


Combine = Callable[..., tuple[Floats, ...]]  # one number per column -> any numbers


def of_medians(combine: Combine, *columns: ArrayLike, groups: ArrayLike | None = None) -> tuple[Estimate, ...]:
    """Estimates of what `combine` makes of the medians of paired columns, one for each of its values."""
    data, seeds = _finite(columns, groups)
    if len(seeds) == 0:
        return (UNKNOWN,) * len(combine(*np.full(len(data), np.nan)))
    return _estimates(combine, [np.median(c) for c in data], medians(data, seeds), len(seeds))


def of_sums(combine: Combine, *columns: ArrayLike, groups: ArrayLike | None = None) -> tuple[Estimate, ...]:
    """Estimates of what `combine` makes of the sums of paired columns, one for each of its values."""
    data, seeds = _finite(columns, groups)
    if len(seeds) == 0:
        return (UNKNOWN,) * len(combine(*np.full(len(data), np.nan)))
    return _estimates(combine, [c.sum() for c in data], sums(data, seeds), len(seeds))


def _estimates(combine: Combine, seen: Sequence[Any], drawn: Floats, samples: int) -> tuple[Estimate, ...]:
    with np.errstate(all="ignore"):
        pairs = zip(combine(*seen), combine(*drawn), strict=True)
        return tuple(interval(float(value), replicates, samples) for value, replicates in pairs)


def median(values: ArrayLike, groups: ArrayLike | None = None) -> Estimate:
    """Median with interval."""
    return of_medians(lambda m: (m,), values, groups=groups)[0]


def quantiles(values: ArrayLike, groups: ArrayLike | None = None) -> Quantiles:
    """Quantiles of the finite values; `samples` counts those."""
    (data,), seeds = _finite([values], groups)
    count = len(data)
    if count == 0:
        return Quantiles(0, UNKNOWN, None, None, float("nan"))
    p95 = float(np.quantile(data, 0.95)) if count >= P95_SAMPLES else None
    p99 = float(np.quantile(data, 0.99)) if count >= P99_SAMPLES else None
    return Quantiles(count, median(data, seeds), p95, p99, float(data.max()))


def ratio_of_medians(numerator: ArrayLike, denominator: ArrayLike, groups: ArrayLike | None = None) -> Estimate:
    """median(numerator) / median(denominator), samples paired. NaN if the denominator's median is 0."""
    return of_medians(lambda a, b: (a / b,), numerator, denominator, groups=groups)[0]


def saved_share(ours: ArrayLike, baseline: ArrayLike, groups: ArrayLike | None = None) -> Estimate:
    """1 - median(ours) / median(baseline), samples paired: 0.4 means 40 % less; identical columns give exactly 0."""
    return of_medians(lambda a, b: (1.0 - a / b,), ours, baseline, groups=groups)[0]


def paired_difference(ours: ArrayLike, baseline: ArrayLike, groups: ArrayLike | None = None) -> Estimate:
    """Median over pairs of baseline - ours: what one request saves, in the unit given."""
    return median(floats(baseline) - floats(ours), groups)


def jain_index(values: ArrayLike) -> float:
    """(sum x)^2 / (n sum x^2): 1 = all equal, 1/n = one has everything (Jain, Chiu, Hawe 1984). NaN if empty."""
    x = floats(values)
    if len(x) == 0:
        return float("nan")
    squares = float(np.square(x).sum())
    return 1.0 if squares == 0.0 else float(x.sum()) ** 2 / (len(x) * squares)


def goodput_per_s(ttft_us: ArrayLike, objective_us: float, duration_us: float) -> float:
    """Requests per second whose first token came within the objective. Rejected requests: give infinity."""
    if duration_us <= 0:
        return float("nan")
    return float(np.count_nonzero(floats(ttft_us) <= objective_us)) * 1e6 / duration_us


@final
@dataclass(frozen=True, slots=True)
class Saturation:
    """Whether the queue kept growing while requests arrived; a saturated median depends on the run's length."""

    saturated: bool
    growth_us: float  # rise of the queueing time over the run, by a robust line
    p_value: float  # of the upward trend, one-sided
    drain_share: float  # time to finish after the last arrival / span of the arrivals


def saturation(arrival_us: ArrayLike, queue_us: ArrayLike, end_us: ArrayLike, service_us: float) -> Saturation:
    """Trend test on batch means: Kendall's tau with p < .05 and a rise of more than two service times (Theil-Sen).

    `end_us` is when each request ended, on the clock of `arrival_us`. Batch means, since queueing times of
    neighbours depend on each other, which a trend test takes for a trend. Needs 16 requests; fewer: not saturated.
    """
    from scipy import stats

    arrival, queue, end = floats(arrival_us), floats(queue_us), floats(end_us)
    span = float(np.ptp(arrival)) if len(arrival) else 0.0
    if len(arrival) < 16 or span <= 0:
        return Saturation(False, float("nan"), float("nan"), float("nan"))
    order = np.argsort(arrival, kind="stable")
    batches = np.array_split(order, min(20, len(order) // 2))
    when = np.array([arrival[b].mean() for b in batches])
    wait = np.array([queue[b].mean() for b in batches])
    drain = float(end.max() - arrival.max()) / span
    if np.all(wait == wait[0]):
        return Saturation(False, 0.0, 1.0, drain)
    p_value = float(stats.kendalltau(when, wait, alternative="greater").pvalue)
    growth = float(stats.theilslopes(wait, when).slope) * span
    return Saturation(p_value < 0.05 and growth > 2.0 * service_us, growth, p_value, drain)


@final
@dataclass(frozen=True, slots=True)
class PredictionError:
    """Absolute percentage errors |predicted - measured| / measured, as shares (0.2 = 20 %)."""

    samples: int
    median: float
    mean: float
    p90: float


def percentage_error(predicted: ArrayLike, measured: ArrayLike) -> PredictionError:
    """Errors of pairs with a positive measurement and a positive prediction (0 = nothing was predicted)."""
    p, m = floats(predicted), floats(measured)
    keep = (m > 0) & (p > 0) & np.isfinite(m) & np.isfinite(p)
    if not keep.any():
        return PredictionError(0, float("nan"), float("nan"), float("nan"))
    error = np.abs(p[keep] - m[keep]) / m[keep]
    return PredictionError(
        int(keep.sum()), float(np.median(error)), float(error.mean()), float(np.quantile(error, 0.9))
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """What was seen at one arrival rate: TTFT of every request offered, infinity where none came."""

    rate_per_s: float
    ttft_us: tuple[float, ...]
    groups: tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class SloThroughput:
    """Highest rate that meets the objective. `at_least`: every tested rate met it; `at_most`: none did."""

    rate_per_s: Estimate
    quantile: float
    at_least: bool
    at_most: bool
    replicates: Floats

    @property
    def bracketed(self) -> bool:
        return not (self.at_least or self.at_most)


def _crossing(rates: Floats, levels: Floats, objective_us: float) -> Floats:
    """Rate where the level crosses the objective, linear between tested rates; `levels` is [replicate, rate]."""
    meets = np.logical_and.accumulate(levels <= objective_us, axis=1)
    last = meets.sum(axis=1) - 1  # -1: the lowest rate already fails
    here, above = np.maximum(last, 0), np.minimum(last + 1, len(rates) - 1)
    row = np.arange(len(levels))
    low, high = levels[row, here], levels[row, above]
    with np.errstate(all="ignore"):
        part = np.where(np.isfinite(high) & (high > low), (objective_us - low) / (high - low), 0.0)
    inside = rates[here] + np.clip(part, 0.0, 1.0) * (rates[above] - rates[here])
    return np.asarray(np.where(last < 0, 0.0, inside), dtype=np.float64)


def throughput_at_slo(points: Sequence[RatePoint], objective_us: float, quantile: float) -> SloThroughput:
    """Highest arrival rate at which the TTFT quantile, there and at every lower tested rate, meets the objective."""
    ordered = sorted(points, key=lambda p: p.rate_per_s)
    if not ordered or any(len(p.ttft_us) == 0 for p in ordered):
        return SloThroughput(UNKNOWN, quantile, False, False, np.empty(0))
    rates = floats([p.rate_per_s for p in ordered])

    ranks = [math.ceil(quantile * (len(p.ttft_us) - 1)) for p in ordered]
    seen = np.array([[np.sort(p.ttft_us)[rank] for p, rank in zip(ordered, ranks, strict=True)]])
    drawn = [order_statistics([p.ttft_us], [rank], p.groups)[0, 0] for p, rank in zip(ordered, ranks, strict=True)]
    replicates = _crossing(rates, np.stack(drawn, axis=1), objective_us)
    value = float(_crossing(rates, seen, objective_us)[0])
    met = seen[0] <= objective_us
    samples = sum(len(p.ttft_us) for p in ordered)
    return SloThroughput(interval(value, replicates, samples), quantile, bool(met.all()), not bool(met[0]), replicates)


def throughput_ratio(ours: SloThroughput, baseline: SloThroughput) -> Estimate:
    """ours / baseline; the high end is infinite where ours met every tested rate; NaN where the baseline is unknown."""
    if not ours.rate_per_s.known or not baseline.rate_per_s.known or not baseline.bracketed:
        return UNKNOWN
    with np.errstate(all="ignore"):
        ratio = interval(
            ours.rate_per_s.value / baseline.rate_per_s.value,
            ours.replicates / baseline.replicates,
            min(ours.rate_per_s.samples, baseline.rate_per_s.samples),
        )
    return Estimate(ratio.value, ratio.low, float("inf"), ratio.samples) if ours.at_least else ratio
