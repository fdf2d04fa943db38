"""What daily releases add up to: `python -m experiments.privacy_budget`. Computed by the ledger; delta 1e-6."""

from __future__ import annotations

import sys
import warnings

from kvshare_research.core.ports import Charge
from kvshare_research.disclosure.calibration import analytic_sigma
from kvshare_research.privacy.ledger import Budget, composed


def main() -> int:
    """Prints PRV (RDP) epsilon by days; a plain sum beside it."""
    warnings.filterwarnings("ignore")
    budget = Budget(epsilon=1e6, delta=1e-6, unit="user", population=50_000)
    print("epsilon per user after so many daily releases: PRV (RDP), plain sum")
    for daily in (0.5, 1.0, 2.0):
        charge = Charge(label="a day", noise_multiplier=analytic_sigma(daily, budget.delta, 1.0))
        cells = []
        for days in (1, 7, 30, 365):
            spent = composed([charge] * days, budget)
            cells.append(f"{days} d {spent.epsilon:6.2f} ({spent.rdp_epsilon:.2f}), {daily * days:g}")
        print(f"{daily:4} a day: " + " | ".join(cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
