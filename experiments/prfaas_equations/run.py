"""R19: prefill as a service in another data centre (PrfaaS): what one instance emits, and what offloading gains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.table import show

# Table 5 of the paper: a hybrid model of 1T parameters on one H200 instance.
TOKENS = np.array([1_024, 8_192, 32_768, 131_072], float)
KV_MIB = np.array([190.8, 308.9, 701.3, 2_316.3])
PREFILL_S = np.array([0.44, 0.72, 1.84, 7.40])
BITS_PER_MIB = 8 * 2**20

REMOTE, LOCAL, LINK_BITS_PER_S = 4, 8, 100e9  # instances of H200 and of H20, and the link between them
SLOWER, DECODE_S, BATCH, OUTPUT_TOKENS = 2.5, 0.025, 20, 1_024  # assumed, as a third party did that checked the paper
MEDIAN_TOKENS, MEAN_TOKENS = 6_909, 12_035  # of prompts: published for Mooncake's conversation trace


def lengths() -> NDArray[np.float64]:
    """Uncached lengths: log-normal with that median and mean, at 100,000 equal steps of probability."""
    from scipy.stats import norm

    sigma = np.sqrt(2 * np.log(MEAN_TOKENS / MEDIAN_TOKENS))
    drawn = MEDIAN_TOKENS * np.exp(sigma * norm.ppf((np.arange(100_000) + 0.5) / 100_000))
    return np.clip(drawn, TOKENS[0], TOKENS[-1])


def prefill_s(tokens: float) -> float:
    """On an H200 instance; straight lines between the rows of the table."""
    return float(np.interp(tokens, TOKENS, PREFILL_S))


def kv_bits(tokens: float) -> float:
    return float(np.interp(tokens, TOKENS, KV_MIB)) * BITS_PER_MIB


def decoded_per_s(instances: int) -> float:
    """Equation 5."""
    return instances * BATCH / (DECODE_S * OUTPUT_TOKENS)


def offloaded_per_s(given: NDArray[np.float64], threshold: float, prefilling: int) -> tuple[float, float]:
    """Equations 3, 4 and 6 for one threshold and split of the local instances: (requests per second, link use)."""
    long, short = given[given > threshold], given[given <= threshold]
    share = len(long) / len(given)
    bounds = [decoded_per_s(LOCAL - prefilling)]
    if len(long):
        remote = min(REMOTE / prefill_s(float(long.mean())), LINK_BITS_PER_S / kv_bits(float(long.mean())))
        bounds.append(remote / share)
    if len(short):
        bounds.append(prefilling / (SLOWER * prefill_s(float(short.mean()))) / (1 - share))
    most = min(bounds)
    used = most * share * kv_bits(float(long.mean())) / LINK_BITS_PER_S if len(long) else 0.0
    return most, used


def run() -> dict[str, float]:
    """The best threshold and split, against as many equal instances, and against prefilling everything remotely."""
    given = lengths()
    best, used = max(offloaded_per_s(given, t, n) for t in range(1_024, 65_537, 256) for n in range(LOCAL))
    mean = float(given.mean())
    equal = max(
        min(n / (SLOWER * prefill_s(mean)), decoded_per_s(REMOTE + LOCAL - n)) for n in range(1, REMOTE + LOCAL)
    )
    naive, _ = offloaded_per_s(given, 0.0, 0)
    rates = [kv_bits(tokens) / prefill_s(tokens) / 1e9 for tokens in TOKENS]
    return {f"rate at {int(t) // 1024}K, Gbit/s": rate for t, rate in zip(TOKENS, rates, strict=True)} | {
        "gain over equal machines, %": 100 * (best / equal - 1),
        "gain over prefilling all remotely, %": 100 * (best / naive - 1),
        "share of the link used, %": 100 * used,
    }


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
