"""`cheapest` against the best published policy on made-up chats and talks, and how near it comes to the bound."""

from __future__ import annotations

from pathlib import Path

from experiments import art_like
from experiments.best_baseline.contest import ALL_WAYS, SEEDS, TRAINING, compared, of_prompts
from experiments.fleet import setting
from experiments.mooncake_bandwidth import run as bandwidth
from experiments.table import show

REQUESTS, SMALL = 2_000, 150


def run(requests_max: int | None = None) -> dict[str, float]:
    """Chats on three regions at 11,300 tokens a second, and talks that return to any of 8 nodes in one place (R8's)."""
    requests = min(REQUESTS, requests_max or REQUESTS)
    whole = requests_max is None
    drawn = {
        "chats, 3 regions": (
            art_like.FLEET,
            lambda seed: art_like.art_like(requests, tokens_per_s=11_300, seed=seed),
        ),
        "returning talks, 8 nodes": (
            bandwidth.FLEET,
            lambda seed: bandwidth.prompts(requests, seed=seed),
        ),
    }
    ours: dict[str, float] = {}
    for name, (fleet, prompts) in drawn.items():
        seeds = [prompts(seed) for seed in (SEEDS if whole else SEEDS[:1])]
        ours |= compared(of_prompts(name, setting(*fleet, ALL_WAYS), seeds, prompts(TRAINING)), tune=whole)
    return ours


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
