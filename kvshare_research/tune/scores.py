"""What each tunable selector minimises, in JAX: the same sums as in `selector/`, for one candidate and all nodes.

A selector belongs here when its choice is a weighted sum. `bounds` are searched on a logarithmic scale; they are wide,
so that an optimum at a bound is a finding and not a cage (GORGO v3's learned queue weight sat on its box).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, final

from kvshare_research.core.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from jax import Array


class Features(NamedTuple):
    """Of one request on every node, as the router believes it. Times in ms; shape (nodes,) unless said otherwise."""

    rtt_ms: Array
    queue_ms: Array
    fetch_ms: Array  # 0 for a way that moves nothing
    prefill_ms: Array
    uncached_tokens: Array
    queued_tokens: Array
    queued_requests: Array
    token_count: Array  # scalar
    block_tokens: Array  # scalar


Score = Callable[["Array", Features], "Array"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tunable:
    """One selector's weights: their names as configured, where they are searched, and the published values."""

    selector: str
    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    published: tuple[float, ...]
    score: Score
    pulls: bool = False  # whether it may move bytes to the executor


def _gorgo(weights: Array, x: Features) -> Array:
    return weights[0] * x.rtt_ms + x.uncached_tokens + weights[1] * x.queued_tokens


def _weighted(weights: Array, x: Features) -> Array:
    """As `selector/weighted.py`: what overlaps counts once, at the smaller weight."""
    twice = -_larger(-weights[1], -weights[2]) * -_larger(-x.queue_ms, -x.fetch_ms)
    wait = weights[1] * x.queue_ms + weights[2] * x.fetch_ms - twice
    return weights[0] * x.rtt_ms + wait + weights[3] * x.prefill_ms + weights[4] * x.queued_requests


def _dynamo_kv(weights: Array, x: Features) -> Array:
    return weights[0] * x.uncached_tokens / x.block_tokens + x.queued_tokens / x.block_tokens


def _llmd_profile(weights: Array, x: Features) -> Array:
    prefix = 1 - x.uncached_tokens / x.token_count
    low, high = x.queued_requests.min(), x.queued_requests.max()
    rest = (high - x.queued_requests + (high == low)) / (high - low + (high == low))
    kv = 1 - x.queued_tokens / _larger(x.queued_tokens.max(), 1.0)
    return -(weights[0] * prefix + weights[1] * rest + weights[2] * kv)


def _larger(a: Array, b: Array | float) -> Array:
    import jax.numpy as jnp

    return jnp.maximum(a, b)


TUNABLE = {
    row.selector: row
    for row in (
        Tunable(
            selector="gorgo", names=("rtt_weight", "queue_weight"), low=(0.01, 0.001), high=(1000.0, 10.0),
            published=(0.276, 0.5), score=_gorgo,
        ),
        Tunable(
            selector="weighted",
            names=("route_weight", "queue_weight", "fetch_weight", "prefill_weight", "request_ms"),
            low=(0.1, 0.1, 0.1, 0.1, 0.1), high=(10.0, 10.0, 10.0, 10.0, 1000.0),
            published=(1.0, 1.0, 1.0, 1.0, 0.1), score=_weighted, pulls=True,
        ),
        Tunable(
            selector="dynamo_kv", names=("prefill_scale",), low=(0.01,), high=(100.0,), published=(1.0,),
            score=_dynamo_kv,
        ),
        Tunable(
            selector="llmd_profile", names=("prefix_weight", "queue_weight", "kv_weight"), low=(0.01, 0.01, 0.01),
            high=(100.0, 100.0, 100.0), published=(2.0, 1.0, 1.0), score=_llmd_profile,
        ),
    )
}  # fmt: skip


def tunable(selector: str) -> Tunable:
    """The weights of a selector; ConfigError where it has none that are searched."""
    if selector not in TUNABLE:
        raise ConfigError(f"selector `{selector}` has no weights to tune{did_you_mean(selector, TUNABLE)}")
    return TUNABLE[selector]
