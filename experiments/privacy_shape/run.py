"""What the shape and the time of answers give away, and what hiding it costs in TTFT. Simulated, the shipped machines.

An attacker asks with a public template and one of eight secrets, one of which a victim ran. Denied: the secret is in
the victim's own text, so what is there and what is not must look alike. Granted: it is in text of a group that both
belong to; then a hit shows, unless the router holds it back to the miss, or every answer to what computing everything
on the slowest node would take (constant shape), or all are delayed at random.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.table import show
from kvshare_research.attack.probing import Scene, Seen, play
from kvshare_research.attack.scores import Floats, power
from kvshare_research.core.shaping import Shape, ShapeKind
from kvshare_research.guard.layered import Layered

SCENE = Scene(
    nodes=3, secrets=150, candidates=8, template_blocks=16, secret_blocks=6, gap_us=200_000, others_gap_us=400_000,
    jitter_us=500, us_per_token=200, capacity_blocks=4096, seed=1,
)  # fmt: skip
SHAPES = {
    "padded to the miss": Shape(kind=ShapeKind.PAD),
    "padded to 1.25 of it": Shape(kind=ShapeKind.PAD, margin_permille=1_250),
    "constant shape": Shape(kind=ShapeKind.CONSTANT),
}  # of the router, as `limits.shape` configures them
DELAY_GAPS = 4.0  # a random delay is uniform up to so many times the difference of hit and miss


def split(ttft_us: Floats) -> tuple[float, float]:
    """Mean TTFT in ms of probes with the right secret, and of the others."""
    return float(ttft_us[:, 0].mean()) / 1000, float(ttft_us[:, 1:].mean()) / 1000


def run() -> dict[str, float]:
    """AUC of each case, and what it costs."""
    tenancy = Layered()
    denied: Seen = play(SCENE, tenancy)
    granted = play(SCENE, tenancy, shared_secret=True)
    shaped = {name: play(SCENE, tenancy, shared_secret=True, shape=shape).ttft_us for name, shape in SHAPES.items()}
    hit, miss = split(granted.ttft_us)
    gap_us = (miss - hit) * 1000
    rng = np.random.default_rng(5)
    delayed = granted.ttft_us + rng.uniform(0, DELAY_GAPS * gap_us, granted.ttft_us.shape)
    out: dict[str, float] = {}
    right, wrong = split(denied.ttft_us)
    out["denied against missing: AUC"] = power(-denied.ttft_us, 0).auc
    out["denied against missing: reused tokens, AUC"] = power(denied.reused_tokens, 0).auc
    out["denied less missing, ms"] = right - wrong
    out["group hit: AUC"] = power(-granted.ttft_us, 0).auc
    out["group hit: TTFT, ms"] = hit
    out["group miss: TTFT, ms"] = miss
    for name, seen in {**shaped, "random delay": delayed}.items():
        right, wrong = split(seen)
        out[f"{name}: AUC"] = power(-seen, 0).auc
        out[f"{name}: added to a hit, ms"] = right - hit
        out[f"{name}: added to a miss, ms"] = wrong - miss
    return out


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
