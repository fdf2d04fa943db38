"""The epsilon ledger: what has been spent, on what, for which unit; it refuses before the budget is exceeded.

A charge is written to disk *before* what it pays for is released, so a crash can waste budget and never overspend it.
Gaussian mechanisms, subsampled or not, compose by the PRV accountant (Gopi, Lee and Wutschitz 2021, as implemented in
Opacus); RDP is printed beside it. Mechanisms known by (epsilon, delta) only are added (basic composition).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from kvshare_research.core.errors import ConfigError, KvShareError
from kvshare_research.core.ports import Charge

from .balance import settle

_VERSION: Final = 1
ROUNDED: Final = 1 + 1e-9  # sums of floating-point charges that mean just the budget do not exceed it
UNITS: Final = ("tenant", "user")


class BudgetSpent(KvShareError):
    """The charge would exceed the budget: nothing was written, nothing may be released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What may be spent in all. `population` is the number of units protected: delta must stay below 1/population."""

    epsilon: float
    delta: float
    unit: str
    population: int

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ConfigError(f"privacy unit is `{self.unit}`, expected one of {', '.join(f'`{u}`' for u in UNITS)}")
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ConfigError(f"budget `epsilon` is `{self.epsilon}`, expected a number above 0")
        if self.population < 1:
            raise ConfigError(f"`population` is `{self.population}`, expected at least 1 {self.unit}")
        if not 0 < self.delta < 1 / self.population:
            raise ConfigError(
                f"budget `delta` is `{self.delta}`, expected above 0 and below 1/{self.population}:"
                f" one {self.unit} in {self.population} may not be given away whole"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Epsilon at the budget's delta after some charges; `rdp_epsilon` is the looser figure of the RDP accountant."""

    epsilon: float
    rdp_epsilon: float
    delta: float
    unit: str
    charges: int

    def __str__(self) -> str:
        return (
            f"epsilon {self.epsilon:.3f} (RDP {self.rdp_epsilon:.3f}) at delta {self.delta:g}"
            f" per {self.unit}, {self.charges} charges"
        )


def check_charge(charge: Charge) -> None:
    """Nothing, if the charge is one: a mechanism gives no budget back. Else a ConfigError that names it."""
    gaussian = charge.noise_multiplier is None or charge.noise_multiplier > 0
    sound = gaussian and charge.epsilon >= 0 and charge.delta >= 0 and charge.steps >= 1
    if not (sound and 0 < charge.sample_rate <= 1):
        raise ConfigError(
            f"{charge} is no charge: expected an epsilon and delta of 0 or more, noise, rate and steps above 0"
        )


def composed(charges: Sequence[Charge], budget: Budget) -> Spent:
    """What these charges add up to; infinite where their deltas alone exceed the budget's."""
    gaussian = [c for c in charges if c.noise_multiplier is not None]
    plain = [c for c in charges if c.noise_multiplier is None]
    rest_delta = budget.delta - sum(c.delta for c in charges)
    added = sum(c.epsilon for c in plain)
    row = Spent(epsilon=added, rdp_epsilon=added, delta=budget.delta, unit=budget.unit, charges=len(charges))
    if rest_delta < -1e-12 * budget.delta or (gaussian and rest_delta <= 0):
        return replace(row, epsilon=math.inf, rdp_epsilon=math.inf)
    if not gaussian:
        return row
    prv, rdp = _gaussian_epsilon(gaussian, rest_delta)
    return replace(row, epsilon=added + prv, rdp_epsilon=added + rdp)


def _gaussian_epsilon(charges: Sequence[Charge], delta: float) -> tuple[float, float]:
    """(PRV, RDP) epsilon of subsampled Gaussian steps at `delta`."""
    import numpy as np
    from opacus.accountants import PRVAccountant, RDPAccountant

    history: dict[tuple[float, float], int] = {}
    for c in charges:
        assert c.noise_multiplier is not None
        key = (c.noise_multiplier, c.sample_rate)
        history[key] = history.get(key, 0) + c.steps
    rows = [(sigma, rate, steps) for (sigma, rate), steps in sorted(history.items())]
    prv, rdp = PRVAccountant(), RDPAccountant()
    prv.history, rdp.history = list(rows), list(rows)
    loose = float(rdp.get_epsilon(delta))
    with np.errstate(divide="ignore", over="ignore"):  # log(0) where every unit takes part: minus infinity is meant
        try:
            return min(float(prv.get_epsilon(delta)), loose), loose
        except (RuntimeError, ValueError):  # so little noise that its grid cannot hold it: the other bound is valid too
            return loose, loose


@final
class Ledger:
    """The charges of one budget, in one file (or in memory, for a simulation). One process at a time writes it."""

    def __init__(self, budget: Budget, path: Path | None) -> None:
        """Goes on where the file stops. Raises ConfigError if it is damaged or belongs to another budget."""
        self.budget = budget
        self.refused = 0
        self._path = path
        self._charges = () if path is None else _read(path, budget)
        self._spent = composed(self._charges, budget)

    @property
    def charges(self) -> tuple[Charge, ...]:
        return self._charges

    @property
    def spent(self) -> Spent:
        return self._spent

    def spend(self, charge: Charge) -> Spent:
        """The charge is on disk and counted; BudgetSpent (and nothing changed) if it would exceed the budget.

        ConfigError for a charge that would give budget back, and where the file has lost what was spent.
        """
        check_charge(charge)
        with self._locked():
            known = self._charges if self._path is None else _read(self._path, self.budget)
            if known[: len(self._charges)] != self._charges:
                raise ConfigError(
                    f"the epsilon ledger `{self._path}` has lost charges since it was read; restore it, what was spent"
                    " stays spent"
                )
            if known != self._charges:  # another process has spent since
                self._charges, self._spent = known, composed(known, self.budget)
            after = composed((*self._charges, charge), self.budget)
            settled = settle(self.budget.epsilon * ROUNDED, self._spent.epsilon, after.epsilon)
            if not settled.ok:
                self.refused += 1
                raise BudgetSpent(
                    f"`{charge.label}` would bring the {self.budget.unit}'s epsilon to {after.epsilon:.3f}, the budget"
                    f" is {self.budget.epsilon:g} at delta {self.budget.delta:g}, of which {settled.remaining:.3f}"
                    " remains: nothing is released"
                )
            charges = (*self._charges, charge)
            if self._path is not None:
                _write(self._path, self.budget, charges)
            self._charges, self._spent = charges, after
        return after

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._path is None:
            yield
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path.with_suffix(".lock"), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _content(budget: Budget, charges: Sequence[Charge]) -> dict[str, Any]:
    return {"version": _VERSION, "budget": asdict(budget), "charges": [asdict(c) for c in charges]}


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _write(path: Path, budget: Budget, charges: Sequence[Charge]) -> None:
    """The file holds these charges, or the ones before: never a part."""
    content = _content(budget, charges)
    data = json.dumps(content | {"sha256": _digest(content)}, indent=1)
    temporary = path.with_suffix(".new")
    with open(temporary, "w") as file:
        file.write(data + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read(path: Path, budget: Budget) -> tuple[Charge, ...]:
    """The charges on file; a missing file is an empty ledger, a damaged one is never taken for one."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ConfigError(f"the epsilon ledger `{path}` cannot be read: {error.strerror}") from None
    try:
        content = json.loads(text)
        digest = content.pop("sha256")
        sound = digest == _digest(content) and content["version"] == _VERSION
        charges = tuple(Charge(**row) for row in content["charges"])
    except (ValueError, KeyError, TypeError, AttributeError):
        sound, content, charges = False, {}, ()
    if not sound:
        raise ConfigError(f"the epsilon ledger `{path}` is damaged; restore it, what it says was spent stays spent")
    if content["budget"] != asdict(budget):
        raise ConfigError(
            f"the epsilon ledger `{path}` is of another budget ({content['budget']}), expected {asdict(budget)}"
        )
    return charges
