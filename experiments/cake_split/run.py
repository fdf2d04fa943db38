"""R9: computing the front while loading the back (Cake) is as fast as the harmonic mean, where work is linear."""

from __future__ import annotations

from pathlib import Path

from experiments.table import show
from kvshare_research.core.costing import PrefillCoefficients, fetch_ps, prefill_ps
from kvshare_research.core.splitting import front_of, meet_ps

BLOCKS, BLOCK_TOKENS = 512, 16
KV_BYTES_PER_TOKEN = 131_072  # Llama-3-8B in bf16
LINEAR = PrefillCoefficients(0, 60_000_000, 0, 0, 0)  # .06 ms a token
QUADRATIC = PrefillCoefficients(5_000_000_000, 18_000_000, 100_000, 800, 400)  # H100, 8B: derived kernel sums
RTT_PS = 25_000_000_000


def times_ps(coefficients: PrefillCoefficients, gbit_per_s: float, setup_ps: int) -> tuple[int, int, int]:
    """(compute all, load all, split at the best block), for 8,192 tokens."""
    per_block = int(BLOCK_TOKENS * KV_BYTES_PER_TOKEN * 8e3 / gbit_per_s)
    front = front_of(coefficients, 0, BLOCK_TOKENS, BLOCKS, setup_ps, per_block)
    split = meet_ps(coefficients, 0, BLOCK_TOKENS, BLOCKS, setup_ps, per_block, front)
    return prefill_ps(coefficients, BLOCKS * BLOCK_TOKENS, 0), fetch_ps(setup_ps, BLOCKS, per_block), split


def run() -> dict[str, float]:
    """Against the harmonic mean on linear work; gains over either alone where both take about equally long."""
    ratios, gains = [], []
    for gbit in (1, 2, 5, 10, 17.5, 25, 50, 100):
        compute, load, split = times_ps(LINEAR, gbit, 0)
        ratios.append(split / (1 / (1 / compute + 1 / load)))
        compute, load, split = times_ps(QUADRATIC, gbit, RTT_PS)
        gains.append((load / split, compute / split, min(load, compute) / split))
    return {
        "split over harmonic mean, least, linear": min(ratios),
        "split over harmonic mean, most, linear": max(ratios),
        "most gain over loading alone": max(g[0] for g in gains),
        "most gain over computing alone": max(g[1] for g in gains),
        "most gain over the better of both": max(g[2] for g in gains),
        "least gain over the better of both": min(g[2] for g in gains),
    }


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
