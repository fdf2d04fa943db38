"""R8: how fast a link must be so that pulling a prefix beats computing it, and where more of it stops to help."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np

from experiments.fleet import Prompt, counted, play, setting
from experiments.prfaas_equations import run as prfaas
from experiments.table import show
from kvshare_research.core.costing import PrefillCoefficients, fetch_us, prefill_ps

DENSE = PrefillCoefficients(28_930_000_000, 186_000_000, 4_000_000, 2_550, 2_550)  # as conf/driver/simulator.yaml
DENSE_BYTES_PER_TOKEN = 327_680
PREFIX_TOKENS, RTT_US = 8_192, 10
RATES = [float(rate) for rate in np.geomspace(1, 1_000, 301)]  # Gbit/s
BLOCK_TOKENS, REQUESTS, SMALL = 512, 4_000, 200
FLEET = ("driver.node_count=8", f"driver.block_tokens={BLOCK_TOKENS}", "link=rdma_400g")


def gain_us(gbit_per_s: float) -> float:
    """Of pulling the prefix instead of computing it; at most what computing takes."""
    pulled = fetch_us(RTT_US, 0, int(8e3 / gbit_per_s), PREFIX_TOKENS * DENSE_BYTES_PER_TOKEN)
    return prefill_ps(DENSE, PREFIX_TOKENS, 0) / 1e6 - pulled


def hybrid_from_gbit() -> float:
    """Where pulling the same prefix of the 1T hybrid model takes as long as computing it."""
    return prfaas.kv_bits(PREFIX_TOKENS) / prfaas.prefill_s(PREFIX_TOKENS) / 1e9


def prompts(count: int, seed: int = 1) -> list[Prompt]:
    """Conversations of 8 to 40 blocks that begin anywhere and are asked again elsewhere: 8 nodes at about 60 % load."""
    rng = random.Random(f"bandwidth/{seed}")
    talks = [rng.randint(8, 40) for _ in range(200)]
    made, now_s, fresh = [], 0.0, 10**7
    for _ in range(count):
        talk = min(int(rng.expovariate(1 / 50)), 199)
        now_s += rng.expovariate(3.2)
        fresh += 4
        blocks = [1 + talk * 100 + i for i in range(talks[talk])] + [fresh + i for i in range(4)]
        prompt = Prompt(
            arrival_us=int(now_s * 1e6), blocks=blocks, input_tokens=len(blocks) * BLOCK_TOKENS, output_tokens=64,
            ingress=rng.randrange(8),
        )  # fmt: skip
        made.append(prompt)
    return made


def run(requests_max: int | None = None) -> dict[str, float]:
    """The quoted figures, and mean TTFT of a fleet that may pull, at three rates."""
    most = gain_us(1e9)
    given, run_of, means = prompts(min(REQUESTS, requests_max or REQUESTS)), setting(*FLEET), {}
    for gbit in (10, 100, 400):
        link = {"_target_": "kvshare_research.transport.link.UniformLink", "rtt_us": RTT_US, "label": "emulated"}
        done = counted(play(run_of, given, "cheapest", link=link | {"rate_bits_per_s": gbit * 10**9})[0])
        means[gbit] = float(np.mean([o.ttft_us for o in done])) / 1e3
        pulls = sum(o.pulled_tokens > 0 for o in done)
        print(f"{gbit} Gbit/s: mean TTFT {means[gbit]:.0f} ms, {pulls} of {len(done)} pull", file=sys.stderr)
    dense = next(rate for rate in RATES if gain_us(rate) > 0)
    return {
        "dense 70B: pulling pays from, Gbit/s": dense,
        "dense 70B: nine tenths of the gain at, Gbit/s": next(r for r in RATES if gain_us(r) >= 0.9 * most),
        "hybrid 1T: pulling pays from, Gbit/s": hybrid_from_gbit(),
        "dense over hybrid, rate from which pulling pays": dense / hybrid_from_gbit(),
        "fleet: mean TTFT at 10 over 400 Gbit/s": means[10] / means[400],
        "fleet: mean TTFT at 100 over 400 Gbit/s": means[100] / means[400],
    }


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
