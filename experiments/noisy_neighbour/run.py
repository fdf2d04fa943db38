"""One tenant floods cache, queue and links of a fleet: what the others keep, by protection, over several seeds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.table import show
from kvshare_research.attack.noisy_neighbour import GUARDS, NoisyNeighbour, Suffered
from kvshare_research.metrics.statistics import bootstrap

PROTECTIONS = {
    "no aggressor": "no aggressor", "none": "shared pool, fcfs", "floors": "floors, fcfs",
    "schedule": "shared pool, vtc", "both": "floors, vtc",
}  # fmt: skip
SHORT = NoisyNeighbour(
    nodes=2, capacity_blocks=96, us_per_token=200, hot_prefixes=2, prefix_blocks=8, victim_gap_us=120_000,
    aggressor_gap_us=9_000, aggressor_blocks=10, aggressor_pulls=True, objective_us=200_000, calm_us=2_000_000,
    flood_us=6_000_000, seed=0,
)  # fmt: skip
LONG = replace(SHORT, capacity_blocks=240, hot_prefixes=6, victim_gap_us=60_000, calm_us=5_000_000, flood_us=20_000_000)


def suffered(scene: NoisyNeighbour, seeds: Sequence[int]) -> dict[str, list[Suffered]]:
    """A row per seed, by protection."""
    guards = {guard.name: guard for guard in GUARDS}
    return {
        protection: [replace(scene, seed=seed).suffered(guards[name]) for seed in seeds]
        for protection, name in PROTECTIONS.items()
    }


def run() -> dict[str, float]:
    """Means over three seeds of a short flood."""
    rows = suffered(SHORT, range(3))
    ours = {}
    for protection, found in rows.items():
        ours[f"victim hit ratio, {protection}"] = float(np.mean([r.hit_ratio for r in found]))
    calm = np.mean([r.ttft_p99_us for r in rows["no aggressor"]])
    for protection in ("none", "floors", "schedule", "both"):
        found = rows[protection]
        ours[f"victim p99 TTFT over calm, {protection}"] = float(np.mean([r.ttft_p99_us for r in found]) / calm)
        ours[f"Jain index, {protection}"] = float(np.mean([r.jain for r in found]))
        ours[f"victim goodput share, {protection}"] = float(np.mean([r.goodput_ratio for r in found]))
    ours["MB moved over links, both"] = float(np.mean([r.moved_bytes for r in rows["both"]]) / 1e6)
    return ours


def intervals(seeds: int) -> None:
    """The longer flood, with 95 % bootstrap intervals of the mean over seeds."""
    print("| protection | victim hits | p99 TTFT, ms | goodput share | Jain |\n|---|---|---|---|---|")
    for protection, found in suffered(LONG, range(seeds)).items():
        cells = []
        for name, unit, digits in (
            ("hit_ratio", 1, 3),
            ("ttft_p99_us", 1e3, 0),
            ("goodput_ratio", 1, 3),
            ("jain", 1, 3),
        ):
            value = bootstrap(lambda x: x.mean(axis=-1), [getattr(r, name) / unit for r in found])
            cells.append(f"{value.value:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]")
        print(f"| {protection} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    if "--full" in sys.argv:
        intervals(8)
    raise SystemExit(show(Path(__file__).parent, run()))
