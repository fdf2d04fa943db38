"""Sharing rate against epsilon: `python -m experiments.privacy_rate [units ...]`.

Composed: units with a few prompt templates each, popularity of templates by Zipf's law (exponent 1.1, 20,000 of them,
about 4 a unit), blocks by a log-normal law. The share of cold starts saved is weighted by blocks; 1 is sharing all
that two units have in common. Releases come from the shipped policies.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.ports import Ballot, Disclosure
from kvshare_research.disclosure.after_k import AfterK
from kvshare_research.disclosure.dp_batch import DpBatch
from kvshare_research.disclosure.dp_optimal import DpOptimal
from kvshare_research.disclosure.noise import SeededNoise
from kvshare_research.disclosure.votes import Votes

TEMPLATES, EXPONENT, MEAN_TEMPLATES = 20_000, 1.1, 4
EPSILONS, DELTA, WORLDS, L0 = (0.5, 1.0, 2.0, 4.0, 8.0), 1e-6, 10, 16


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


def released_by(policy: Disclosure, given: World, seed: int) -> frozenset[int]:
    """The templates that a release names, once every unit has asked as often as it does."""
    state = policy.initial_state()
    for ballot, requests in ballots(given):
        state = policy.observe(state, ballot)
        if isinstance(state, Votes):
            state.by_unit[ballot.unit_id][ballot.names[0]] += requests - 1
    _, names = policy.release(state, SeededNoise(seed))
    return frozenset(int.from_bytes(n, "big") for n in names)


def rates(policy: Disclosure, units: int) -> NDArray[np.float64]:
    """The share saved, of each population."""
    worlds = (world(units, seed) for seed in range(WORLDS))
    return np.array([saved(given, released_by(policy, given, seed)) for seed, given in enumerate(worlds)])


def main(sizes: list[int]) -> int:
    """Prints one row per population size and policy: mean and standard deviation over populations."""
    print(
        f"composed: share of ideal cold starts saved, by blocks; {WORLDS} populations; delta 1e-6, per user and release"
    )
    print("| units | policy | " + " | ".join(f"epsilon {e:g}" for e in EPSILONS) + " |\n" + "|---" * 7 + "|")
    for units in sizes:
        for k in (2, 10, 50):
            found = rates(AfterK(k=k, unit="user"), units)
            print(
                f"| {units} | after_k, k = {k} (no DP) | {found.mean():.2f} +- {found.std():.2f} | | | | |", flush=True
            )
        for title, l0 in (("dp_batch, l0 16", L0), ("dp_optimal, one vote", 1)):
            row = []
            for epsilon in EPSILONS:
                common: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "unit": "user", "period_us": 1}
                found = rates(DpBatch(l0=l0, **common) if l0 > 1 else DpOptimal(**common), units)
                row.append(f"{found.mean():.2f} +- {found.std():.2f}")
            print(f"| {units} | {title} | " + " | ".join(row) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main([int(a) for a in sys.argv[1:]] or [500, 5_000]))
