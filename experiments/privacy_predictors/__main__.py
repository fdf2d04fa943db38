"""What predictors are worth, with and without privacy: `python -m experiments.privacy_predictors [tenants]`.

Composed sessions; each predictor prefetches its two likeliest prefixes above 15 %, over a link of 12 blocks a second,
with think times of 4 s. An access is cold unless the tenant used the prefix in its last 8. The metrics, by blocks:
coverage (cold accesses served by a prefetch in time), accuracy (prefetched and used next), timeliness (of the useful,
those in time), waste (moved in vain), net gain (per 1,000 accesses: seconds saved less a tenth of the seconds of
transfer in vain).
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvshare_research.disclosure.noise import SeededNoise
from kvshare_research.prefetch import dp_counts, dp_sgd
from kvshare_research.prefetch.artefact import Artefact
from kvshare_research.prefetch.ppm import Ppm
from kvshare_research.privacy.sessions import make_sessions
from kvshare_research.privacy.training import train_counts, train_network

NAMES, STEPS, HISTORY, TOP, FLOOR, TESTED = 64, 24, 8, 2, 0.15, 300
BLOCKS_PER_S, THINK_S, SAVED_S_PER_BLOCK = 12.0, 4.0, 0.12
Scores = NDArray[np.float64]  # (tenants, steps, names): probability of what comes after the step


def scores_of(artefact: Artefact, by: Callable[[Artefact, list[int]], Scores], rows: NDArray[np.int64]) -> Scores:
    """As the shipped predictor answers, from up to three last prefixes."""
    kept: dict[tuple[int, ...], Scores] = {}
    out = np.zeros((*rows.shape, NAMES))
    for u, row in enumerate(rows.tolist()):
        for t in range(len(row)):
            last = tuple(row[max(0, t - 2) : t + 1])
            key = last[-1:] if artefact.training.kind == "dp_counts" else last
            if key not in kept:
                kept[key] = by(artefact, list(key))
            out[u, t] = kept[key]
    return out


def ppm_scores(train: NDArray[np.int64], rows: NDArray[np.int64]) -> Scores:
    """The shipped global PPM, taught by every training tenant."""
    policy = Ppm(
        scope="everybody",
        price_ps_per_byte=0,
        inflight_bytes_max=0,
        horizon_us=0,
        proposals_max=TOP,
        probability_min=FLOOR,
    )
    state = policy.initial_state()
    for row in train:
        names = [int(x).to_bytes(2, "big") for x in row]
        for t, name in enumerate(names):
            for order in range(min(t, 2) + 1):
                policy._count(state, (0, tuple(names[t - order : t])))[name] += 1
    out = np.zeros((*rows.shape, NAMES))
    for u, row in enumerate(rows):
        names = [int(x).to_bytes(2, "big") for x in row]
        for t in range(len(names)):
            for name, p in policy.ranked(state, 0, tuple(names[max(0, t - 1) : t + 1])):
                out[u, t, int.from_bytes(name, "big")] = p
    return out


def metrics(scores: Scores, rows: NDArray[np.int64], blocks: NDArray[np.int64]) -> dict[str, float]:
    """The metrics named above, by blocks."""
    gaps = np.random.default_rng(0).exponential(THINK_S, rows.shape)
    cold = served = useful = on_time = moved = issued = wasted = hits = 0.0
    for u in range(len(rows)):
        for t in range(rows.shape[1] - 1):
            wanted = rows[u, t + 1]
            recent = set(rows[u, max(0, t - HISTORY + 1) : t + 1].tolist())
            cold += blocks[wanted] * (wanted not in recent)
            arrived_s = 0.0
            for name in np.argsort(-scores[u, t], kind="stable")[:TOP]:
                if scores[u, t, name] < FLOOR or int(name) in recent:
                    continue
                arrived_s += blocks[name] / BLOCKS_PER_S
                issued += 1
                moved += blocks[name]
                hit = name == wanted
                hits += hit
                useful += blocks[name] * hit
                wasted += blocks[name] * (not hit)
                on_time += blocks[name] * (hit and arrived_s <= gaps[u, t])
    served = on_time
    accesses = rows.shape[0] * (rows.shape[1] - 1)
    gain = (served * SAVED_S_PER_BLOCK - wasted / BLOCKS_PER_S * 0.1) * 1000 / accesses
    return {
        "coverage": served / cold, "accuracy": hits / max(issued, 1), "timeliness": on_time / max(useful, 1),
        "waste": wasted / max(moved, 1), "net_gain_s": gain,
    }  # fmt: skip


def main(tenants: int) -> int:
    """Prints one row per predictor."""
    warnings.filterwarnings("ignore")
    every = make_sessions(tenants + TESTED, NAMES, STEPS, 0)
    train, test = every[:tenants], every[tenants:]
    names = tuple(i.to_bytes(16, "big") for i in range(NAMES))
    blocks = np.maximum(1, np.random.default_rng(1).lognormal(3, 1, NAMES).astype(int))
    delta = min(1e-5, 0.5 / tenants)
    print(f"composed: {tenants} tenants, {STEPS} steps, {NAMES} prefixes; epsilon per tenant, delta {delta:g}")

    def show(title: str, scores: Scores, extra: str = "") -> None:
        top = float((scores[:, :-1].argmax(2) == test[:, 1:]).mean())
        row = metrics(scores, test, blocks)
        print(f"{title:28} top-1 {top:.3f}  " + "  ".join(f"{k} {v:.3f}" for k, v in row.items()) + extra, flush=True)

    oracle = np.zeros((*test.shape, NAMES))
    np.put_along_axis(oracle[:, :-1], test[:, 1:, None], 1.0, 2)
    show("oracle", oracle)
    show("ppm, everybody (no DP)", ppm_scores(train, test))
    for epsilon in (None, 8.0, 4.0, 2.0, 1.0):
        made = train_counts(train, names, epsilon=epsilon, delta=delta, noise=SeededNoise(1))
        spent = "" if epsilon is None else f"  spent {made.training.epsilon:.2f} (RDP {made.training.rdp_epsilon:.2f})"
        show(f"dp_counts, epsilon {epsilon}", scores_of(made, dp_counts.probabilities, test), spent)
    for epsilon in (None, 8.0, 2.0):
        began = time.monotonic()
        made = train_network(train, names, epsilon=epsilon, delta=delta, epochs=20, batch=512)
        spent = "" if epsilon is None else f"  spent {made.training.epsilon:.2f} (RDP {made.training.rdp_epsilon:.2f})"
        took = f"{spent}  trained in {time.monotonic() - began:.0f} s"
        show(f"dp_sgd, epsilon {epsilon}", scores_of(made, dp_sgd.probabilities, test), took)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8_000))
