"""Calibration by gradients, with uncertainty: coefficients >= 0 fitted in JAX, intervals by Hessian and by bootstrap.

A time is modelled as a sum of columns times coefficients. Logarithms of the coefficients are fitted to logarithms of
the times by damped Gauss-Newton steps (Levenberg-Marquardt; the Jacobian is JAX's), with Huber weights. At the optimum
the Hessian of the loss, JAX's too, gives a log-normal interval for each coefficient; resampling whole shapes and
fitting all resamples at once (`vmap`) gives a second one, which assumes nothing of the noise. Used beside `robust.py`,
whose exact solution sets the coefficients that are served by: the two must agree, and a test says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.errors import ConfigError

ROUNDS = 120
RESAMPLES = 200
HUBER_K = 1.345
MAD_TO_SIGMA = 1.4826
SIGMA_MIN = 1e-4
NORMAL_95 = 1.96
FAINT = 1e-3  # of the mean time: a coefficient that explains less than this share is not told from 0

Floats = NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One coefficient with two 95 % intervals, in the unit of its column.

    One that is not told from 0 is 0, with an interval from 0; the Hessian then gives no upper end.
    """

    name: str
    value: float
    hessian: tuple[float, float]
    bootstrap: tuple[float, float]


def fit(columns: Floats, times: Floats, names: Sequence[str], shapes: Sequence[Any], seed: int = 0) -> list[Fitted]:
    """The coefficients of `columns` that explain `times` (> 0), row by row; equal inputs give equal values.

    `shapes` says which rows are repeats of one shape: the bootstrap draws whole shapes. ConfigError for fewer shapes
    than columns.
    """
    import jax

    kinds = sorted(set(shapes))
    if len(kinds) < columns.shape[1] or times.min() <= 0:
        raise ConfigError(f"{len(kinds)} shapes with times above 0 cannot fit {columns.shape[1]} coefficients")
    number = {kind: i for i, kind in enumerate(kinds)}
    of = np.array([number[shape] for shape in shapes])
    drawn = np.random.default_rng(seed).integers(0, len(kinds), (RESAMPLES, len(kinds)))
    counts = np.stack([np.bincount(row, minlength=len(kinds))[of] for row in drawn]).astype(np.float64)
    weights = np.concatenate([np.ones((1, len(times))), counts])
    with jax.enable_x64(True):
        share = columns.mean(axis=0)
        scale = times.mean() / np.where(share > 0, share, 1.0)
        logs, widths = (np.asarray(part) for part in _solver()(columns * scale, times, weights))
    values = np.where(np.exp(logs) < FAINT, 0.0, np.exp(logs)) * scale
    low, high = np.quantile(values[1:], [0.025, 0.975], axis=0)
    spread = np.exp(NORMAL_95 * np.where(np.isfinite(widths[0]), widths[0], 0.0))
    return [
        Fitted(
            name=name,
            value=float(values[0, j]),
            hessian=(float(values[0, j] / spread[j]), float(values[0, j] * spread[j] or np.inf)),
            bootstrap=(float(min(low[j], values[0, j])), float(max(high[j], values[0, j]))),
        )
        for j, name in enumerate(names)
    ]


@cache
def _solver() -> Callable[..., Any]:
    """(columns, times, weights by resample) -> logs of the coefficients, and their standard errors, by resample."""
    import jax
    import jax.numpy as jnp

    def residuals(logs: Any, columns: Any, times: Any) -> Any:
        return jnp.log(columns @ jnp.exp(logs)) - jnp.log(times)

    def sigma_of(gaps: Any) -> Any:
        return jnp.maximum(MAD_TO_SIGMA * jnp.median(jnp.abs(gaps)), SIGMA_MIN)

    def huber(gaps: Any, sigma: Any) -> Any:
        size = jnp.abs(gaps) / sigma
        return jnp.where(size <= HUBER_K, size**2 / 2, HUBER_K * (size - HUBER_K / 2))

    def loss(logs: Any, columns: Any, times: Any, weights: Any, sigma: Any) -> Any:
        return jnp.sum(weights * huber(residuals(logs, columns, times), sigma))

    def step(columns: Any, times: Any, weights: Any, state: Any) -> Any:
        logs, damping = state
        gaps = residuals(logs, columns, times)
        sigma = sigma_of(gaps)
        slopes = jax.jacfwd(residuals)(logs, columns, times)
        trust = weights * jnp.minimum(1.0, HUBER_K * sigma / jnp.maximum(jnp.abs(gaps), 1e-300))
        curve = (slopes * trust[:, None]).T @ slopes
        move = jnp.linalg.solve(curve + damping * jnp.eye(len(logs)), (slopes * trust[:, None]).T @ gaps)
        tried = jnp.clip(logs - jnp.clip(move, -2.0, 2.0), -14.0, 14.0)
        better = loss(tried, columns, times, weights, sigma) < loss(logs, columns, times, weights, sigma)
        return jnp.where(better, tried, logs), jnp.where(better, damping / 3, damping * 4).clip(1e-9, 1e6)

    def solve(columns: Any, times: Any, weights: Any) -> tuple[Any, Any]:
        start = jnp.full(columns.shape[1], -jnp.log(columns.shape[1])), jnp.asarray(1e-2)
        logs, _ = jax.lax.fori_loop(0, ROUNDS, lambda _, s: step(columns, times, weights, s), start)
        sigma = sigma_of(residuals(logs, columns, times))
        curvature = jax.hessian(loss)(logs, columns, times, weights, sigma)
        inverse = jnp.linalg.pinv((curvature + curvature.T) / 2)
        known = jnp.exp(logs) >= FAINT  # flat directions: the width is that of not knowing
        return logs, jnp.where(known, jnp.sqrt(jnp.maximum(jnp.diag(inverse), 0.0)), jnp.inf)

    return jax.jit(jax.vmap(solve, in_axes=(None, None, 0)))


def prefill_columns(new: Floats, cached: Floats) -> tuple[Floats, tuple[str, ...]]:
    """Columns of the prefill polynomial of `core/costing.py`, and the names of its coefficients.

    Pairs of new tokens count half as much as pairs of a new and a cached one: what a causal mask leaves to compute.
    """
    columns = np.stack([np.ones_like(new), new, cached, new * cached + new * new / 2], axis=1)
    return columns, ("per launch", "per new token", "per cached token", "per pair of tokens")
