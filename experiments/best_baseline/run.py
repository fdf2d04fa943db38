"""`cheapest` against the best published policy of each workload, and how near it comes to what nobody can beat."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from experiments import art_like
from experiments.fleet import Prompt, counted, percentile_ms, play, reuse, setting
from experiments.mooncake_bandwidth import run as bandwidth
from experiments.table import show
from kvshare_research.core.costing import PrefillCoefficients, prefill_ps, up_to_us

REQUESTS, SMALL = 2_000, 150
BASELINES = (
    "session_affinity", "aibrix_prefix", "sglang_cache_aware", "preble_e2", "llmd_profile", "dynamo_kv", "skywalker",
    "mooncake", "gorgo", "gorgo_v1", "least_request",
)  # fmt: skip
TIMES = (("ttft_us", 50), ("ttft_us", 95), ("ttft_us", 99), ("end_to_end_us", 95))
ALL_WAYS = "actions=[recompute,resident,route,pull,multi_pull,split]"


def bound_us(prompts: Sequence[Prompt], coefficients: PrefillCoefficients, block_tokens: int) -> list[int]:
    """What no policy can beat, per request: no queue, no distance, and every block asked for before is at hand.

    A relaxation of the simulated fleet: an engine never computes a request in less than its uncached part alone, and
    nothing is cached that no earlier request contained. The last token is always computed.
    """
    seen: set[tuple[int, ...]] = set()
    out = []
    for prompt in prompts:
        known, chain = 0, hash(())
        full = (prompt.input_tokens - 1) // block_tokens
        fresh = []
        for i, block in enumerate(prompt.blocks[: prompt.input_tokens // block_tokens]):
            chain = hash((chain, block))
            if known == i and i < full and (chain, i) in seen:
                known = i + 1
            fresh.append((chain, i))
        seen.update(fresh)
        cached = known * block_tokens
        out.append(up_to_us(prefill_ps(coefficients, prompt.input_tokens - cached, cached)))
    return out


def compared(name: str, fleet: Sequence[str], prompts: list[Prompt]) -> dict[str, float]:
    """Ratios to the best baseline of each figure, and the share of the gain that is there to be had."""
    run_of = setting(*fleet, ALL_WAYS)
    found, means = {}, {}
    for selector in ("cheapest", "recompute_always", *BASELINES):
        outcomes, simulator = play(run_of, prompts, selector)
        done = counted(outcomes)
        found[selector] = [percentile_ms(done, what, p) for what, p in TIMES]
        means[selector] = fmean(o.ttft_us for o in done)
        told = "/".join(f"{time:.0f}" for time in found[selector])
        print(f"{name} {selector}: TTFT p50/p95/p99, E2E p95, ms: {told}; mean TTFT {means[selector] / 1e3:.0f}, reuse "
              f"{reuse(done):.3f}, {simulator.moved_bytes / 1e9:.1f} GB", file=sys.stderr)  # fmt: skip
        coefficients, tokens = simulator.engine.prefill, int(run_of.parts["driver"].block_tokens)
    bounds = bound_us(prompts, coefficients, tokens)
    bound = fmean(bounds[len(bounds) // 10 :])
    print(f"{name} bound: mean TTFT {bound / 1e3:.0f} ms", file=sys.stderr)
    ours = {}
    for column, (what, percent) in enumerate(TIMES):
        best = min(BASELINES, key=lambda b: found[b][column])
        title = "TTFT" if what == "ttft_us" else "E2E"
        ours[f"{name}: p{percent} {title} over the best baseline"] = found["cheapest"][column] / found[best][column]
        print(f"{name}: best baseline in p{percent} {title} is {best}", file=sys.stderr)
    gain = means["recompute_always"] - means["cheapest"]
    return ours | {f"{name}: share of the bound's gain": gain / (means["recompute_always"] - bound)}


def run(requests_max: int | None = None) -> dict[str, float]:
    """Two workloads: chats on three regions at 11,000 tokens a second; talks that return anywhere in a data centre."""
    requests = min(REQUESTS, requests_max or REQUESTS)
    chats = art_like.art_like(requests, tokens_per_s=11_300, seed=11)
    ours = compared("chats, 3 regions", art_like.FLEET, chats)
    return ours | compared("returning talks, 8 nodes", bandwidth.FLEET, bandwidth.prompts(requests, seed=2))


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
