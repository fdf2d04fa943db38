"""Bootstrap resamples, drawn once for all that is asked of the same samples.

Two stages (Efron and Tibshirani 1993, chapter 8): which group fills a slot, then samples within it. A resample is kept
as how often each sample was drawn: its k-th smallest value stands where the counts, in the order of the values, add up
to more than k. So a column is sorted once, and not once a resample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
BOOTSTRAP_SEED = 8675309
_DRAWS_AT_ONCE = 2_000_000  # memory bound of one slice of resamples
_DRAWS_KEPT = 48_000_000  # 100 MB: above it, resamples are drawn anew for each question

Floats = NDArray[np.float64]
Counts = NDArray[np.unsignedinteger[Any]]  # [resample, sample]: how often it was drawn


def draws(groups: ArrayLike) -> Iterator[NDArray[np.int64]]:
    """Positions of the samples in `RESAMPLES` resamples, in slices of some; equal for equal groups. A slot keeps its
    group's size; which group fills it is drawn."""
    labels = np.asarray(groups)
    order = np.argsort(labels, kind="stable")
    _, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    slot = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    step = max(1, _DRAWS_AT_ONCE // len(labels))
    for start in range(0, RESAMPLES, step):
        count = min(step, RESAMPLES - start)
        drawn = rng.integers(0, len(sizes), size=(count, len(sizes)))[:, slot]
        within = (rng.random((count, len(labels))) * sizes[drawn]).astype(np.int64)
        yield order[starts[drawn] + within]


def _counted(groups: NDArray[np.int64]) -> Iterator[Counts]:
    size = len(groups)
    for drawn in draws(groups):
        drawn += size * np.arange(len(drawn))[:, np.newaxis]
        counts = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)
        # One sample can be all of a resample: a slot of a large group, filled by a group of one.
        yield counts.astype(np.uint16 if size < 1 << 16 else np.uint32)


@lru_cache(maxsize=2)  # a report asks by turns of the finished requests, and of the pairs among them
def _kept(groups: bytes) -> tuple[Counts, ...]:
    return tuple(_counted(np.frombuffer(groups, dtype=np.int64)))


def _slices(groups: ArrayLike) -> Iterator[Counts]:
    labels = np.unique(np.asarray(groups), return_inverse=True)[1].astype(np.int64)
    return iter(_kept(labels.tobytes())) if RESAMPLES * len(labels) <= _DRAWS_KEPT else _counted(labels)


def order_statistics(columns: Sequence[ArrayLike], ranks: Sequence[int], groups: ArrayLike) -> Floats:
    """[column, rank, resample]: the values that stand at `ranks` (0 is the least) in each resample. The columns are
    drawn together; a column may hold infinities, but nothing that is not a number."""
    values = [np.asarray(c, dtype=np.float64) for c in columns]
    orders = [np.argsort(v, kind="stable") for v in values]
    found = []
    for counts in _slices(groups):
        sums = (np.cumsum(np.take(counts, order, axis=1), axis=1, dtype=np.int32) for order in orders)
        at = [[np.argmax(total > rank, axis=1) for rank in ranks] for total in sums]
        found.append([v[order][rows] for v, order, rows in zip(values, orders, at, strict=True)])
    return np.concatenate(found, axis=-1)


def medians(columns: Sequence[ArrayLike], groups: ArrayLike) -> Floats:
    """[column, resample]: the median of each column in each resample, drawn together."""
    size = len(np.asarray(groups))
    middle = order_statistics(columns, ((size - 1) // 2, size // 2), groups)
    return np.asarray((middle[:, 0] + middle[:, 1]) / 2.0)


def sums(columns: Sequence[ArrayLike], groups: ArrayLike) -> Floats:
    """[column, resample]: the sum of each column in each resample, drawn together."""
    table = np.stack([np.asarray(c, dtype=np.float64) for c in columns], axis=1)
    return np.concatenate([counts.astype(np.float64) @ table for counts in _slices(groups)]).T
