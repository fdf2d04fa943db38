"""What a link class is worth: gain of pulling a prefix over computing it, and the length from which pulling pays."""

from __future__ import annotations

from pathlib import Path

from experiments.table import show
from kvshare_research.build import build
from kvshare_research.core.costing import PrefillCoefficients, fetch_us, prefill_ps
from kvshare_research.study.settings import choice
from kvshare_research.transport.link import Link

CLASSES = ("nvlink", "pcie", "rdma_400g", "eth_25g", "wan")
PREFIX_TOKENS, SUFFIX_TOKENS, LONGEST = 8_192, 256, 1 << 17
# Llama-3-70B on H100s as Preble fitted it, 320 KiB a token; an 8B model on one H100 from the same shape, 128 KiB.
MODELS = {
    "70B": (PrefillCoefficients(28_930_000_000, 186_000_000, 4_000_000, 2_550, 2_550), 327_680),
    "8B": (PrefillCoefficients(5_000_000_000, 18_000_000, 100_000, 800, 400), 131_072),
}


def times_us(link: Link, model: str, tokens: int) -> tuple[float, float]:
    """(computing a prefix of so many tokens and the suffix, pulling the prefix over the idle link instead)."""
    coefficients, token_bytes = MODELS[model]
    rate = link.bits_per_s(0, 1)
    assert rate is not None
    pulled_us = fetch_us(link.rtt_between_us(0, 1), 0, int(8e12 / rate), tokens * token_bytes)
    suffix_us = prefill_ps(coefficients, SUFFIX_TOKENS, tokens) / 1e6
    return prefill_ps(coefficients, tokens + SUFFIX_TOKENS, 0) / 1e6, pulled_us + suffix_us


def run() -> dict[str, float]:
    """Per class and model: time of computing over that of pulling; the least length that pays (-1: none to 128k)."""
    ours: dict[str, float] = {}
    for name in CLASSES:
        link = build(choice("link", name), "link")
        for model in MODELS:
            computed_us, pulled_us = times_us(link, model, PREFIX_TOKENS)
            ours[f"{name}, {model}: gain at 8,192 tokens"] = computed_us / pulled_us
            pays = (t for t in range(1, LONGEST + 1) if (both := times_us(link, model, t))[1] < both[0])
            ours[f"{name}, {model}: pays from, tokens"] = float(next(pays, -1))
    return ours


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
