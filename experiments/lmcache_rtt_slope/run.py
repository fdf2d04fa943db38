"""R20: how many round trips a hit costs: LMCache over Redis against a pull of ours, as TTFT per ms of round trip."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.table import show
from kvshare_research.core.costing import fetch_us

RTT_MS = (0, 10, 20, 30, 40, 50)
THEIR_P50_MS = (13.3, 23.5, 34.7, 47.8, 60.2, 72.3)  # nadongjun/LMCache-Network-Perf: 130 tokens, Qwen3-0.6B
TOKENS, KV_BYTES_PER_TOKEN = 128, 114_688
PS_PER_BYTE = 8_000  # 1 Gbit/s


def slope(rtt_ms: tuple[int, ...], ttft_ms: tuple[float, ...]) -> tuple[float, float]:
    """(intercept, ms of TTFT per ms of round trip), by least squares."""
    gradient, intercept = np.polyfit(rtt_ms, ttft_ms, 1)
    return float(intercept), float(gradient)


def run() -> dict[str, float]:
    """Their fit, and the slope of our quoted fetch, which asks once and streams."""
    ours = tuple(fetch_us(rtt * 1_000, 0, PS_PER_BYTE, TOKENS * KV_BYTES_PER_TOKEN) / 1_000 for rtt in RTT_MS)
    intercept, gradient = slope(RTT_MS, THEIR_P50_MS)
    return {
        "their intercept, ms": intercept,
        "their round trips per hit": gradient,
        "our round trips per pull": round(slope(RTT_MS, ours)[1], 6),  # 1 but for the rounding of the fit
    }


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
