"""Robust least squares with coefficients >= 0, in JAX.

Huber's M-estimator of relative residuals by iteratively re-weighted least squares (tuning constant 1.345, scale from
the median absolute deviation). The sign constraint is solved exactly: with five coefficients all 32 supports are solved
at once and the best feasible one is kept.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 60
ROWS_STEP = 64
HUBER_K = 1.345  # 95 % efficient for normal errors
MAD_TO_SIGMA = 1.4826

Floats = NDArray[np.float64]


def fit_relative(columns: Floats, target: Floats) -> tuple[Floats, Floats]:
    """x >= 0 that makes columns @ x / target robustly close to 1, and its covariance (0 where x is held at 0)."""
    import jax

    with jax.enable_x64(True):
        rows = columns / target[:, None]
        scale = np.sqrt((rows * rows).mean(axis=0))
        scale[scale == 0] = 1.0
        supports = np.array(list(itertools.product((0.0, 1.0), repeat=columns.shape[1])))
        # Filled up with rows that do not count, so that a few compiled versions serve all numbers of points.
        count = len(rows)
        room = -(-count // ROWS_STEP) * ROWS_STEP
        filled = np.zeros((room, rows.shape[1]))
        filled[:count] = rows / scale
        values, covariance = _solver()(filled, np.arange(room) < count, supports)
        return np.asarray(values) / scale, np.asarray(covariance) / np.outer(scale, scale)


@cache
def _solver() -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp

    def on_support(gram: jax.Array, moment: jax.Array, support: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Least squares on the chosen coefficients, the others 0, and its loss, infinite if one is negative."""
        system = gram * support[:, None] * support[None, :] + jnp.diag(1.0 - support)
        x = jnp.linalg.solve(system, moment * support)
        loss = x @ gram @ x - 2.0 * moment @ x
        return x, jnp.where(jnp.all(x >= 0.0) & jnp.all(jnp.isfinite(x)), loss, jnp.inf)

    def weighted(rows: jax.Array, weights: jax.Array, supports: jax.Array) -> tuple[jax.Array, jax.Array]:
        gram = (rows * weights[:, None]).T @ rows
        moment = (rows * weights[:, None]).sum(axis=0)
        found, losses = jax.vmap(lambda s: on_support(gram, moment, s))(supports)
        best = jnp.argmin(losses)
        return found[best], supports[best]

    def solve(rows: jax.Array, counts: jax.Array, supports: jax.Array) -> tuple[jax.Array, jax.Array]:
        def sigma(residuals: jax.Array) -> jax.Array:
            middle = jnp.nanmedian(jnp.where(counts, jnp.abs(residuals), jnp.nan))
            return jnp.maximum(MAD_TO_SIGMA * middle, 1e-9)

        def step(_: int, weights: jax.Array) -> jax.Array:
            residuals = rows @ weighted(rows, weights, supports)[0] - 1.0
            return jnp.minimum(1.0, HUBER_K * sigma(residuals) / jnp.maximum(jnp.abs(residuals), 1e-300)) * counts

        weights = jax.lax.fori_loop(0, ROUNDS, step, counts.astype(rows.dtype))
        x, support = weighted(rows, weights, supports)
        residuals = rows @ x - 1.0
        gram = (rows * weights[:, None]).T @ rows
        system = gram * support[:, None] * support[None, :] + jnp.diag(1.0 - support)
        degrees = jnp.maximum(counts.sum() - support.sum(), 1.0)
        variance = (weights * residuals**2).sum() / degrees
        return x, jnp.linalg.inv(system) * variance * support[:, None] * support[None, :]

    return jax.jit(solve)
