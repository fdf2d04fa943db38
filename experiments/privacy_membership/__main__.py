"""Was a tenant in the training set? `python -m experiments.privacy_membership [canaries]`.

A one-run audit: canary tenants with random sessions are each in the training set by a fair coin; how well the trained
predictor fits a session tells in from out. The accountant's epsilon is the upper bound, the audit's the lower one.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np
from numpy.typing import NDArray

from kvshare_research.disclosure.noise import SeededNoise
from kvshare_research.prefetch import dp_counts, dp_sgd
from kvshare_research.prefetch.artefact import Artefact
from kvshare_research.privacy.bounds import one_run_bound
from kvshare_research.privacy.sessions import make_sessions
from kvshare_research.privacy.training import train_counts, train_network

NAMES, STEPS, OTHERS, DELTA = 64, 24, 1_000, 1e-5


def fit(artefact: Artefact, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean log-probability of each session under the predictor."""
    counts = artefact.training.kind == "dp_counts"
    out = np.zeros(len(rows))
    for u, row in enumerate(rows.tolist()):
        for t in range(len(row) - 1):
            last = [row[t]] if counts else row[max(0, t - 2) : t + 1]
            p = (dp_counts if counts else dp_sgd).probabilities(artefact, last)
            out[u] += np.log(max(float(p[row[t + 1]]), 1e-9))
    return out / (rows.shape[1] - 1)


def main(canaries: int) -> int:
    """Prints upper and lower bounds side by side; 1 if a lower bound is above its upper one."""
    warnings.filterwarnings("ignore")
    rng = np.random.default_rng(7)
    names = tuple(i.to_bytes(16, "big") for i in range(NAMES))
    planted = rng.integers(0, NAMES, (canaries, STEPS))
    included = rng.random(canaries) < 0.5
    train = np.vstack([make_sessions(OTHERS, NAMES, STEPS, 0), planted[included]])
    print(f"composed: {OTHERS} tenants and {canaries} canaries; epsilon per tenant, delta {DELTA:g}, audit at 95 %")
    wrong = 0
    for epsilon in (None, 8.0, 2.0, 1.0):
        made = (
            train_counts(train, names, epsilon=epsilon, delta=DELTA, noise=SeededNoise(3)),
            train_network(train, names, epsilon=epsilon, delta=DELTA, epochs=20, batch=128),
        )
        for artefact in made:
            found = one_run_bound(fit(artefact, planted), included, DELTA)
            upper = "infinite" if epsilon is None else f"{artefact.training.epsilon:8.2f}"
            print(
                f"{artefact.training.kind:10} accountant {upper:>9}  audit at least {found.epsilon:5.2f}"
                f"  AUC {found.auc:.3f}  ({found.right} of {found.guesses} guesses right)", flush=True,
            )  # fmt: skip
            wrong += artefact.training.epsilon is not None and found.epsilon > artefact.training.epsilon
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000))
