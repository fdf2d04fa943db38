"""What each term of the cost model is worth: the fleet decides without it, and is timed with everything there is."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.art_like import FLEET, art_like
from experiments.fleet import Prompt, counted, play, setting
from experiments.table import show
from kvshare_research.core.nouns import Outcome

REQUESTS, SMALL = 2_500, 250
TERMS = {
    "without round trips": "no_rtt", "without rates": "no_bandwidth", "without load": "no_load",
    "without merging": "no_merge", "from a single source": "single_source",
}  # fmt: skip
ALL_WAYS = "actions=[recompute,resident,route,pull,multi_pull,split]"
MERGE = {"merge_ps_per_byte": 100}  # 10 GB/s, assumed, so that merging is worth a thought
SLOW = {
    "_target_": "kvshare_research.transport.link.UniformLink", "rtt_us": 25_000, "rate_bits_per_s": 100_000_000,
    "label": "emulated",
}  # fmt: skip


def mean_ms(outcomes: list[Outcome], tenant: int | None = None) -> float:
    """Mean TTFT, of one tenant if given."""
    return fmean(o.ttft_us for o in counted(outcomes) if tenant in (None, o.tenant_id)) / 1e3


def scattered(requests: int, seed: int) -> list[Prompt]:
    """The chats of R3, each request from any region."""
    rng = random.Random(f"ablation/{seed}")
    return [replace(p, ingress=rng.randrange(3)) for p in art_like(requests, tokens_per_s=20_000, seed=seed)]


def terms(requests: int) -> dict[str, float]:
    """One term at a time is left out of what the router looks at."""
    run_of, given = setting(*FLEET, ALL_WAYS), scattered(requests, 1)
    cost = dict(run_of.resolved["cost"]) | MERGE
    whole = mean_ms(play(run_of, given, "cheapest", cost=cost)[0])
    found = {}
    for words, name in TERMS.items():
        outcomes, simulator = play(run_of, given, "cheapest", cost=cost | {name: True})
        found[f"mean TTFT {words} over the whole model"] = mean_ms(outcomes) / whole
        regret = mean_ms(outcomes) - whole
        print(f"{words}: regret {regret:.1f} of {whole:.1f} ms, {simulator.moved_bytes / 1e9:.1f} GB", file=sys.stderr)
    return found


def slow_links(requests: int) -> dict[str, float]:
    """100 Mbit/s and 25 ms between all, KV of 320 KiB a token: bytes should stay where they are."""
    patient = ("limits.fetch_deadline_us=600000000", "limits.lease_us=600000000")
    run_of = setting(*FLEET, ALL_WAYS, "driver.kv_bytes_per_token=327680", *patient)
    given = scattered(requests, 2)
    cost = dict(run_of.resolved["cost"])
    recompute = mean_ms(play(run_of, given, "recompute_always", link=SLOW)[0])
    blind = mean_ms(play(run_of, given, "cheapest", link=SLOW, cost=cost | {"no_bandwidth": True, "no_rtt": True})[0])
    whole = mean_ms(play(run_of, given, "cheapest", link=SLOW)[0])
    print(f"slow links, mean ms: recompute {recompute:.0f}, blind {blind:.0f}, whole {whole:.0f}", file=sys.stderr)
    return {
        "slow links: pulling blind to the rate over recomputing": blind / recompute,
        "slow links: the whole model over recomputing": whole / recompute,
    }


def quota(requests: int) -> dict[str, float]:
    """A quiet tenant returns to prompts that fill three quarters of all pools, a scanner asks for nothing twice.

    With quotas, so much is reserved for the quiet one and the scanner is of a weaker class; without, both are alike.
    """
    pool = 262_144
    run_of = setting(*FLEET, f"driver.pool_tokens={pool}", "link=eth_25g")
    rng, given, fresh = random.Random("quota"), [], 10**7
    for i in range(requests):
        scans = rng.random() < 0.5
        fresh += 40
        blocks = [fresh + b for b in range(24)] if scans else [100 * rng.randrange(190) + b for b in range(12)]
        given.append(
            Prompt(arrival_us=int(i * 0.7e6), blocks=blocks, input_tokens=len(blocks) * 256, output_tokens=32,
                   tenant=2 if scans else 1, ingress=rng.randrange(3))
        )  # fmt: skip

    def tenants(reserved_tokens: int, scanner: str) -> dict[str, Any]:
        account = {"reserved_bytes": reserved_tokens * 20_480, "limit_bytes": None, "priority": "standard"}
        return {
            "priorities": {"trial": 0, "standard": 1}, "public": {}, "groups": [],
            "tenants": [
                {"name": "quiet", "users": 1, "account": account},
                {"name": "scanner", "users": 1, "account": account | {"reserved_bytes": 0, "priority": scanner}},
            ],
            "applications": [{"name": "trace", "system": "public", "few_shot": "public", "user": "tenant"}],
        }  # fmt: skip

    cases = (tenants(pool * 3 // 4, "trial"), tenants(0, "standard"))
    kept, lost = (mean_ms(play(run_of, given, "cheapest", tenants=case)[0], 1) for case in cases)
    print(f"quiet tenant, mean ms: {kept:.0f} with a quota, {lost:.0f} without", file=sys.stderr)
    return {"the quiet tenant's mean TTFT without quota over with": lost / kept}


def run(requests_max: int | None = None) -> dict[str, float]:
    """Ratios of mean TTFT; above 1, leaving it out costs."""
    requests = min(REQUESTS, requests_max or REQUESTS)
    return terms(requests) | slow_links(requests // 2) | quota(requests)


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
