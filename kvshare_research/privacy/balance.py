"""The one decision of the epsilon ledger, as a total function of numbers: proved in proofs/ (theorem EPS)."""

from __future__ import annotations

from typing import NamedTuple


class Settled(NamedTuple):
    """What is spent and what remains add up to the budget. `ok` False: nothing was spent."""

    ok: bool
    spent: float
    remaining: float


def settle(budget: float, spent: float, after: float) -> Settled:
    """The balance once all charges come to `after`, or as it was if that exceeds the budget."""
    if after <= budget:
        return Settled(True, after, budget - after)
    return Settled(False, spent, budget - spent)
