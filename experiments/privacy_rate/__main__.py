"""Sharing rate against epsilon: `python -m experiments.privacy_rate [units ...]`.

Composed: units with a few prompt templates each, popularity of templates by Zipf's law (exponent 1.1, 20,000 of them,
about 4 a unit), blocks by a log-normal law. The share of cold starts saved is weighted by blocks; 1 is sharing all
that two units have in common. Releases come from the shipped policies.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.ports import Ballot
from kvshare_research.disclosure.after_k import AfterK
from kvshare_research.disclosure.dp_batch import DpBatch
from kvshare_research.disclosure.dp_optimal import DpOptimal
from kvshare_research.disclosure.noise import SeededNoise

TEMPLATES, EXPONENT, MEAN_TEMPLATES = 20_000, 1.1, 4
EPSILONS, DELTA, SEEDS, L0 = (0.5, 1.0, 2.0, 4.0, 8.0), 1e-6, 5, 16


@dataclass(frozen=True)
class World:
    """Who uses which template how often, and what a template weighs in blocks."""

    owner: NDArray[np.int64]
    template: NDArray[np.int64]
    requests: NDArray[np.int64]
    blocks: NDArray[np.int64]


def world(units: int, seed: int = 0) -> World:
    """Equal for equal arguments."""
    rng = np.random.default_rng(seed)
    popularity = 1 / np.arange(1, TEMPLATES + 1) ** EXPONENT
    popularity /= popularity.sum()
    blocks = np.maximum(1, rng.lognormal(3.0, 1.0, TEMPLATES).astype(int))
    counts = rng.geometric(1 / MEAN_TEMPLATES, units)
    drawn = rng.choice(TEMPLATES, counts.sum(), p=popularity)
    pairs = np.unique(np.stack([np.repeat(np.arange(units), counts), drawn]), axis=1)
    requests = np.maximum(1, rng.lognormal(2.0, 1.2, pairs.shape[1]).astype(int))
    return World(pairs[0], pairs[1], requests, blocks)


def saved(given: World, released: frozenset[int]) -> float:
    """Blocks of cold starts that the released templates save, of those that sharing everything saves."""
    users = np.bincount(given.template, minlength=TEMPLATES)
    worth = given.blocks * np.maximum(users - 1, 0)
    return float(worth[sorted(released)].sum() / worth.sum())


def ballots(given: World) -> list[tuple[Ballot, int]]:
    """Every unit's templates, and how often it asks."""
    names = [int(t).to_bytes(16, "big") for t in range(TEMPLATES)]
    rows = zip(given.owner, given.template, given.requests, strict=True)
    return [(Ballot(unit_id=int(o) + 1, names=(names[t],), blocks=(1,)), int(r)) for o, t, r in rows]


def released_by(policy: DpBatch | DpOptimal, state: object, seed: int) -> frozenset[int]:
    _, names = policy.release(state, SeededNoise(seed))
    return frozenset(int.from_bytes(n, "big") for n in names)


def main(sizes: list[int]) -> int:
    """Prints one row per population and policy."""
    print("composed: share of ideal cold starts saved, by blocks; epsilon per user and release, delta 1e-6")
    print(f"{'units':>6} {'policy':24}" + "".join(f"{'eps ' + str(e):>9}" for e in EPSILONS))
    for units in sizes:
        given = world(units)
        asked = ballots(given)
        for k in (2, 10, 50):
            online = AfterK(k=k, unit="user")
            state = online.initial_state()
            for ballot, _ in asked:
                state = online.observe(state, ballot)
            _, names = online.release(state, SeededNoise(0))
            rate = saved(given, frozenset(int.from_bytes(n, "big") for n in names))
            print(f"{units:6} {f'after_k, k = {k} (no DP)':24}{rate:9.2f}", flush=True)
        for title, l0 in (("dp_batch, l0 = 16", L0), ("dp_optimal, one vote", 1)):
            row = []
            for epsilon in EPSILONS:
                common = {"epsilon": epsilon, "delta": DELTA, "unit": "user", "period_us": 1}
                policy = DpBatch(l0=l0, **common) if l0 > 1 else DpOptimal(**common)  # type: ignore[arg-type]
                state = policy.initial_state()
                for ballot, requests in asked:
                    state = policy.observe(state, ballot)
                    state.by_unit[ballot.unit_id][ballot.names[0]] += requests - 1
                rates = [saved(given, released_by(policy, state, seed)) for seed in range(SEEDS)]
                row.append(float(np.mean(rates)))
            print(f"{units:6} {title:24}" + "".join(f"{r:9.2f}" for r in row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main([int(a) for a in sys.argv[1:]] or [500, 5_000]))
