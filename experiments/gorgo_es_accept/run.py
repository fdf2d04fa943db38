"""R5: the published (1+1)-ES accepts a worse candidate, because a relative tolerance turns over for negative scores."""

from __future__ import annotations

from pathlib import Path

from experiments.table import show
from kvshare_research.selector.one_plus_one import TOLERANCE, accepts_published, accepts_repaired


def run() -> dict[str, float]:
    """The step of their own trace (-1.548 after -1.547), and how far a run of such steps could drift."""
    best = drifted = -1.547
    for _ in range(100):
        worse = drifted * (1 + 0.99 * TOLERANCE)
        drifted = worse if accepts_published(worse, drifted) else drifted
    return {
        "published rule accepts -1.548 over -1.547": float(accepts_published(-1.548, best)),
        "repaired rule accepts -1.548 over -1.547": float(accepts_repaired(-1.548, best)),
        "repaired rule accepts -1.5 over -1.547": float(accepts_repaired(-1.5, best)),
        "p95 in s after 100 accepted steps from 1.547": -drifted,
    }


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
