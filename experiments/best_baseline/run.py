"""`cheapest` against the best published policy on chats of three regions, and how near it comes to the bound."""

from __future__ import annotations

from pathlib import Path

from experiments import art_like
from experiments.best_baseline.contest import ALL_WAYS, SEEDS, TRAINING, compared, of_prompts
from experiments.fleet import Prompt, setting
from experiments.table import show

REQUESTS, SMALL = 2_000, 150


def run(requests_max: int | None = None) -> dict[str, float]:
    """Chats on three regions at 11,300 tokens a second."""
    requests = min(REQUESTS, requests_max or REQUESTS)
    whole = requests_max is None

    def chats(seed: int) -> list[Prompt]:
        return art_like.art_like(requests, tokens_per_s=11_300, seed=seed)

    seeds = [chats(seed) for seed in (SEEDS if whole else SEEDS[:1])]
    workload = of_prompts("chats, 3 regions", setting(*art_like.FLEET, ALL_WAYS), seeds, chats(TRAINING))
    return compared(workload, tune=whole)


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
