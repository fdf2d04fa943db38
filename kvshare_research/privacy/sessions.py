"""Composed sessions of prefixes: classes of tenants with second-order habits over a Zipf background."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def followers(names: int, seed: int) -> NDArray[np.int64]:
    """(names, 3): what may follow each prefix in the sessions of this seed, the likeliest first."""
    drawn: NDArray[np.int64] = np.random.default_rng(seed).integers(0, names, (names, 3))
    return drawn


def make_sessions(tenants: int, names: int, steps: int, seed: int) -> NDArray[np.int64]:
    """(tenants, steps) of prefix numbers. Habits belong to the seed's first draws, so they are the same for any count:
    45 % follow the last prefix, 30 % the last two, 10 % repeat one of one's own, the rest is popularity."""
    rng = np.random.default_rng(seed)
    popularity = 1 / np.arange(1, names + 1)
    popularity /= popularity.sum()
    after_one = rng.integers(0, names, (names, 3))
    after_two = rng.integers(0, names, 997)
    out = np.zeros((tenants, steps), np.int64)
    a, b = (rng.choice(names, tenants, p=popularity) for _ in range(2))
    for step in range(steps):
        kind = rng.random(tenants)
        follow = after_one[b, rng.choice(3, tenants, p=(0.8, 0.15, 0.05))]
        second = after_two[(a * 31 + b * 7) % 997]
        own = out[np.arange(tenants), rng.integers(0, max(step, 1), tenants)] if step else b
        fresh = rng.choice(names, tenants, p=popularity)
        new = np.select([kind < 0.45, kind < 0.75, kind < 0.85], [follow, second, own], fresh)
        out[:, step], a, b = new, b, new
    return out
