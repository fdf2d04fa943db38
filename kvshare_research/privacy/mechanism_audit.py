"""Trying to refute a mechanism's epsilon: many runs in two worlds that differ by one unit, at the worst one found.

A world is the shipped mechanism with `base` votes of others on each name the audited unit holds. A pilot finds where
the mechanism switches on; there, and without others, the event "at least k of its names are released" is counted. An
audit is only as good as this search: without it, planted mistakes pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.ports import Noise
from kvshare_research.disclosure.calibration import analytic_sigma, weighted_threshold
from kvshare_research.disclosure.dp_batch import DpBatch
from kvshare_research.disclosure.dp_optimal import DpOptimal
from kvshare_research.disclosure.dp_svt import DpSvt
from kvshare_research.disclosure.dp_tree import DpTree
from kvshare_research.disclosure.votes import OnlineVotes

from .bounds import epsilon_lower

Counts = NDArray[np.int64]
# (is the unit there, votes of others on each of its names, trials) -> how many of its names are released, per trial
World = Callable[[bool, float, int], Counts]
Kept = Callable[[NDArray[np.float64], Noise], NDArray[np.bool_]]  # which sums of votes are released
QUANTILES = (0.0005, 0.01, 0.1, 0.5, 0.9, 0.99, 0.9995)
PILOT_TRIALS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A mechanism under audit: what it claims, and how it behaves. `bases` are the numbers of others' votes tried."""

    name: str
    epsilon: float
    delta: float
    names: int  # that the audited unit holds
    world: World
    bases: tuple[float, ...]
    planted: bool = False  # wrong on purpose: the audit must find it

    @property
    def online(self) -> bool:
        """Whether a trial takes several releases of real votes, and is slow."""
        return self.name.startswith(("dp_tree", "dp_svt", "sparse"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The largest epsilon ruled out, and where."""

    subject: Subject
    epsilon_lower: float
    base: float
    at_least: int

    @property
    def violated(self) -> bool:
        return self.epsilon_lower > self.subject.epsilon


def audit(subject: Subject, trials: int) -> Finding:
    """The worst neighbour found for this mechanism; deterministic if its noise is."""
    pilot = np.array([subject.world(True, b, PILOT_TRIALS).mean() / subject.names for b in subject.bases])
    at = {0, int(np.argmax(np.diff(pilot)))} | {int(np.searchsorted(pilot, q)) - 1 for q in QUANTILES}
    at = {min(len(pilot) - 1, max(0, i + after)) for i in at for after in (0, 1)}
    best = Finding(subject=subject, epsilon_lower=0.0, base=0.0, at_least=1)
    for base in (subject.bases[i] for i in sorted(at)):
        inside = subject.world(True, base, trials)
        # a name that nobody asked for does not exist
        outside = subject.world(False, base, trials) if base else np.zeros(trials, np.int64)
        for k in range(1, subject.names + 1):
            found = epsilon_lower(int((inside >= k).sum()), int((outside >= k).sum()), trials, subject.delta)
            if found > best.epsilon_lower:
                best = replace(best, epsilon_lower=found, base=base, at_least=k)
    return best


# --------------------------------------------------------------------------- the shipped mechanisms
def batch_world(kept: Kept, names: int, weight: float, noise: Noise) -> World:
    """A release of sums of votes, where the audited unit adds `weight` to each of its names."""

    def world(present: bool, base: float, trials: int) -> Counts:
        sums = np.full((trials, names), base + weight * present)
        counts: Counts = kept(sums, noise).sum(1)
        return counts

    return world


def online_world(policy: DpTree | DpSvt, names: int, voted_at: int, noise: Noise, *, others_at: int) -> World:
    """A horizon of checks. Others vote before check `others_at`, the unit before check `voted_at`; the event looks at
    the moment: a name counts when it is released at that very check."""

    def world(present: bool, base: float, trials: int) -> Counts:
        state = OnlineVotes(names)
        ids = [i.to_bytes(8, "big") for i in range(trials * names)]
        new: frozenset[bytes] = frozenset()
        for check in range(1, voted_at + 1):
            votes = int(base) * (check == others_at) + (present and check == voted_at)
            if votes:
                state.counts = {n: state.counts.get(n, 0) + votes for n in ids}
                state.by_tenant = {n: {0: 1} for n in ids}  # each voter is of a tenant of its own
            state, new = policy.release(state, noise)
        counts: Counts = np.array([n in new for n in ids]).reshape(trials, names).sum(1)
        return counts

    return world


def shipped(epsilon: float, delta: float, l0: int, checks: int, noise: Noise) -> tuple[Subject, ...]:
    """The mechanisms as configured policies run them."""
    common: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "unit": "user", "period_us": 1}
    batch, optimal = DpBatch(l0=l0, **common), DpOptimal(**common)
    tree, svt = DpTree(l0=2, checks=checks, alone=True, **common), DpSvt(l0=2, checks=checks, **common)
    steps = _bases(1 / math.sqrt(l0), 60)
    rows = [
        ("dp_batch", l0, batch_world(batch.kept, l0, 1 / math.sqrt(l0), noise), steps),
        ("dp_batch, one vote", 1, batch_world(batch.kept, 1, 1.0, noise), steps),
        ("dp_optimal", 1, batch_world(optimal.kept, 1, 1.0, noise), _bases(1.0, 40)),
        ("dp_tree", 2, online_world(tree, 2, checks - 1, noise, others_at=checks - 1), _bases(3.0, 40)),
        ("dp_tree, others before", 2, online_world(tree, 2, 2, noise, others_at=1), _bases(3.0, 40)),
        ("dp_svt", 2, online_world(svt, 2, 2, noise, others_at=2), _bases(3.0, 40)),
        ("dp_svt, others before", 2, online_world(svt, 2, 2, noise, others_at=1), _bases(3.0, 40)),
    ]
    return tuple(
        Subject(name=name, epsilon=epsilon, delta=delta, names=n, world=world, bases=bases)
        for name, n, world, bases in rows
    )


# --------------------------------------------------------------------------- mistakes on purpose
def planted(epsilon: float, delta: float, l0: int, noise: Noise) -> tuple[Subject, ...]:
    """Mechanisms with one mistake each, of the kind people make."""
    right = DpBatch(epsilon=epsilon, delta=delta, l0=l0, unit="user", period_us=1)
    sigma, threshold = right.sigma, weighted_threshold(delta / 2, l0, right.sigma)

    def gaussian(spread: float, bar: float) -> Kept:
        return lambda sums, source: sums + source.gaussian(spread, sums.size).reshape(sums.shape) > bar

    def no_noise(sums: NDArray[np.float64], source: Noise) -> NDArray[np.bool_]:
        return sums >= 10

    weight = 1 / math.sqrt(l0)
    single = analytic_sigma(epsilon, delta / 2, 1.0)
    rows: Sequence[tuple[str, Kept, float]] = (
        ("sensitivity ignores l0", gaussian(single, weighted_threshold(delta / 2, 1, single)), 1.0),
        ("threshold without delta", gaussian(sigma, 1 + sigma), weight),
        ("wrong scale: sigma / l0", gaussian(sigma / l0, threshold), weight),
        ("requests counted, five a unit", right.kept, 5 * weight),
        ("no noise: ten units suffice", no_noise, 1.0),
    )
    online = DpSvt(l0=2, checks=8, epsilon=epsilon, delta=delta, unit="user", period_us=1)
    betrayed = online_world(online, 2, 2, _OnceOnly(noise), others_at=1)
    worlds = [(name, l0, batch_world(kept, l0, w, noise), _bases(weight, 120)) for name, kept, w in rows]
    worlds.append(("sparse vector without fresh noise", 2, betrayed, _bases(3.0, 40)))
    return tuple(
        Subject(name=name, epsilon=epsilon, delta=delta, names=n, planted=True, world=world, bases=bases)
        for name, n, world, bases in worlds
    )


class _OnceOnly(Noise):
    """The threshold's noise of a sparse vector, and none at its checks: every second draw is zero."""

    def __init__(self, inner: Noise) -> None:
        self._inner = inner
        self._calls = 0

    def gaussian(self, sigma: float, count: int) -> NDArray[np.float64]:
        return self._inner.gaussian(sigma, count)

    def uniform(self, count: int) -> NDArray[np.float64]:
        return self._inner.uniform(count)

    def laplace(self, scale: float, count: int) -> NDArray[np.float64]:
        self._calls += 1
        drawn = self._inner.laplace(scale, count)
        return drawn if self._calls % 2 else np.zeros(count)


def _bases(step: float, count: int) -> tuple[float, ...]:
    return tuple(step * i for i in range(count))
