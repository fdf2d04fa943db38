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

REQUESTS, SMALL = 2_000, 150
BASELINES = (
    "session_affinity", "aibrix_prefix", "sglang_cache_aware", "preble_e2", "llmd_profile", "dynamo_kv", "skywalker",
    "mooncake", "gorgo", "gorgo_v1", "least_request",
)  # fmt: skip
TIMES = (("ttft_us", 50), ("ttft_us", 95), ("ttft_us", 99), ("end_to_end_us", 95))
ALL_WAYS = "actions=[recompute,resident,route,pull,multi_pull,split]"


def compared(name: str, fleet: Sequence[str], prompts: list[Prompt]) -> dict[str, float]:
    """Ratios to the best baseline of each figure, and the share of the gain that is there to be had."""
    run_of = setting(*fleet, ALL_WAYS)
    found, means = {}, {}
    for selector in ("cheapest", "recompute_always", "bound", *BASELINES):
        outcomes, simulator = play(run_of, prompts, selector)
        done = counted(outcomes)
        found[selector] = [percentile_ms(done, what, p) for what, p in TIMES]
        means[selector] = fmean(o.ttft_us for o in done)
        told = "/".join(f"{time:.0f}" for time in found[selector])
        print(f"{name} {selector}: TTFT p50/p95/p99, E2E p95, ms: {told}; mean TTFT {means[selector] / 1e3:.0f}, reuse "
              f"{reuse(done):.3f}, {simulator.moved_bytes / 1e9:.1f} GB", file=sys.stderr)  # fmt: skip
    ours = {}
    for column, (what, percent) in enumerate(TIMES):
        best = min(BASELINES, key=lambda b: found[b][column])
        title = "TTFT" if what == "ttft_us" else "E2E"
        ours[f"{name}: p{percent} {title} over the best baseline"] = found["cheapest"][column] / found[best][column]
        print(f"{name}: best baseline in p{percent} {title} is {best}", file=sys.stderr)
    gain = means["recompute_always"] - means["cheapest"]
    return ours | {f"{name}: share of the bound's gain": gain / (means["recompute_always"] - means["bound"])}


def run(requests_max: int | None = None) -> dict[str, float]:
    """Two workloads: chats on three regions at 11,000 tokens a second; talks that return anywhere in a data centre."""
    requests = min(REQUESTS, requests_max or REQUESTS)
    chats = art_like.art_like(requests, tokens_per_s=11_300, seed=11)
    ours = compared("chats, 3 regions", art_like.FLEET, chats)
    return ours | compared("returning talks, 8 nodes", bandwidth.FLEET, bandwidth.prompts(requests, seed=2))


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
