"""Two defences that do not work, with figures: `python -m experiments.privacy_negative`.

1. Noise on KV tensors. Adjacency: a token's vector is replaced; clipped to norm C, sensitivity 2C. Noise that leaves
   attention usable buys an epsilon that means nothing, and it hides content, which a reader must present anyway.
2. Random delay. Hit and miss differ by one unit of time (jitter 0.15); padding every hit to the miss costs that unit on
   hits and leaks nothing, while random delay costs more, on both, and is averaged away.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import NDArray

from kvshare_research.disclosure.calibration import analytic_sigma, gaussian_delta

DELTA, DIM, TOKENS, QUERIES, LAYERS, HEADS, BLOCK = 1e-6, 128, 512, 64, 32, 8, 16
Array = NDArray[np.float64]


def epsilon_of(multiplier: float) -> float:
    """Epsilon of one Gaussian release with this noise multiplier; the tail bound where the exact one overflows."""
    if multiplier < 0.01:
        return 1 / (2 * multiplier**2) + math.sqrt(2 * math.log(1 / DELTA)) / multiplier
    low, high = 0.0, 1e7
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, multiplier, 1.0) > DELTA else (low, middle)
    return high


def attention(queries: Array, keys: Array, values: Array) -> tuple[Array, NDArray[np.int64]]:
    scores = queries @ keys.T / math.sqrt(DIM)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    return weights @ values, scores.argmax(1)


def kv_noise() -> None:
    """A table of noise against utility and epsilon."""
    rng = np.random.default_rng(0)
    keys, values = rng.normal(size=(TOKENS, DIM)), rng.normal(size=(TOKENS, DIM))
    queries = keys[rng.integers(0, TOKENS, QUERIES)] * 0.6 + rng.normal(size=(QUERIES, DIM)) * 0.8
    exact, chosen = attention(queries, keys, values)
    sizes = (DIM, DIM * LAYERS * HEADS * 2, DIM * LAYERS * HEADS * 2 * BLOCK)
    print("noise per element / its size | attention error | argmax kept | epsilon: a head's vector, a token, a block")
    for ratio in (0.01, 0.1, 1.0, 10.0):
        noisy, picked = attention(
            queries, keys + ratio * rng.normal(size=keys.shape), values + ratio * rng.normal(size=values.shape)
        )
        error = np.linalg.norm(noisy - exact) / np.linalg.norm(exact)
        epsilons = "  ".join(f"{epsilon_of(ratio / (2 * math.sqrt(n))):10.3g}" for n in sizes)
        print(f"{ratio:28} | {error:15.3f} | {np.mean(picked == chosen):11.2f} | {epsilons}")
    for epsilon in (1.0, 8.0):
        multiplier = analytic_sigma(epsilon, DELTA, 1.0)
        needed = "  ".join(f"{2 * multiplier * math.sqrt(n):.0f}" for n in sizes)
        print(f"for epsilon {epsilon:g} the noise is this many times an element: {needed}")


def delays() -> None:
    """A table of what each delay costs on a hit and on a miss, and what one probe and many still tell."""
    from scipy.special import ndtri

    rng = np.random.default_rng(0)
    count = 200_000
    zero = np.zeros(count)
    schemes: list[tuple[str, Array, Array]] = [("none", zero, zero)]
    for width in (4, 10, 40):
        schemes.append((f"uniform to {width}", rng.uniform(0, width, count), rng.uniform(0, width, count)))
    mean = 1 + math.log(1 / 2e-3)
    drawn = [np.maximum(0, mean + rng.laplace(0, 1, count)) for _ in range(2)]
    schemes += [("shifted Laplace, epsilon 1", drawn[0], drawn[1]), ("pad every hit to the miss", zero + 1, zero)]
    print(f"{'delay':28} {'hit +':>7} {'miss +':>7} {'TV of a probe':>14} {'probes for 95 %':>16}")
    for title, on_hit, on_miss in schemes:
        hit, miss = rng.normal(0, 0.15, count) + on_hit, 1 + rng.normal(0, 0.15, count) + on_miss
        edges = np.linspace(min(hit.min(), miss.min()), max(hit.max(), miss.max()), 200)
        a, b = np.histogram(hit, edges)[0], np.histogram(miss, edges)[0]
        distance = 0.5 * np.abs(a / count - b / count).sum()
        gap, spread = miss.mean() - hit.mean(), (hit.std() + miss.std()) / 2
        unseen = gap < 0.01
        probes = "never" if unseen else str(max(1, math.ceil((2 * float(ndtri(0.95)) * spread / gap) ** 2)))
        print(f"{title:28} {on_hit.mean():7.2f} {on_miss.mean():7.2f} {distance:14.3f} {probes:>16}")


if __name__ == "__main__":
    kv_noise()
    print()
    delays()
    sys.exit(0)
