"""R17: what wrong estimates cost: at most twice the error; and looking at the cache alone costs without bound."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from statistics import fmean

import numpy as np
from msgspec.structs import replace

from experiments.fleet import counted, play, setting
from experiments.mooncake_bandwidth import run as bandwidth
from experiments.table import show
from kvshare_research.build import build
from kvshare_research.core.nouns import QuoteTable
from kvshare_research.selector.cheapest import Cheapest
from kvshare_research.selector.route_to_longest_prefix import RouteToLongestPrefix
from kvshare_research.study.settings import choice
from kvshare_research.testing.tables import quote_input, random_input

QUADRATIC = ("c3_ps_per_token2", "c4_ps_per_token2")
TABLES, SMALL, REQUESTS = 2_000, 200, 2_500


def wrong_by(table: QuoteTable, error_us: int, rng: random.Random) -> QuoteTable:
    """The table with every quote off by at most `error_us`."""
    noise = np.array([rng.randint(-error_us, error_us) for _ in range(len(table))], np.int64)
    made = replace(table, cells=table.cells.copy())
    made.ttft_us[:] += noise
    return made


def regrets(count: int) -> tuple[float, int]:
    """(most regret over twice the error, choices that were wrong though the best led by more than that)."""
    rng, cost = random.Random("stale"), build(choice("cost", "ttft"), "cost")
    worst, wrong = 0.0, 0
    for seed in range(count):
        table = cost.quote(random_input(seed))
        if not len(table):
            continue
        error_us = rng.choice((100, 10_000, 1_000_000))
        row = Cheapest().select(wrong_by(table, error_us, rng))
        ordered = np.sort(table.ttft_us)
        regret = int(table.ttft_us[row] - ordered[0])
        worst = max(worst, regret / (2 * error_us))
        lead = int(ordered[1] - ordered[0]) if len(ordered) > 1 else 0
        wrong += lead > 2 * error_us and regret > 0
    return worst, wrong


def cache_only_regret_us(tokens: int) -> int:
    """The holder of the whole prompt has as much work waiting as the prompt is; the other node is idle."""
    linear = {"c0_ps": 0, "c1_ps_per_token": 100_000_000, "c2_ps_per_token": 0} | dict.fromkeys(QUADRATIC, 0)
    cost = build(choice("cost", "ttft") | linear, "cost")
    waiting_us = 10 * tokens * 100
    table = cost.quote(
        quote_input(token_count=tokens, depths={0: tokens // 16 - 1}, queued_us=(waiting_us, 0), ps_per_byte=10**9)
    )
    row = RouteToLongestPrefix().select(table)
    return int(table.ttft_us[row] - table.ttft_us.min())


def run(requests_max: int | None = None) -> dict[str, float]:
    """Bounds on tables, then a fleet whose router hears late."""
    worst, wrong = regrets(TABLES if requests_max is None else 200)
    given, means = bandwidth.prompts(min(REQUESTS, requests_max or REQUESTS)), {}
    for name, selector, late_us in (
        ("fresh", "cheapest", 0), ("late", "cheapest", 10_000_000), ("longest", "route_to_longest_prefix", 0),
    ):  # fmt: skip
        late = setting(*bandwidth.FLEET, f"driver.event_delay_us={late_us}")
        means[name] = fmean(o.ttft_us for o in counted(play(late, given, selector)[0]))
        print(f"{name}: mean TTFT {means[name] / 1e3:.0f} ms", file=sys.stderr)
    return {
        "most regret over twice the error of a quote": worst,
        "regret of cache only, 128k over 8k tokens": cache_only_regret_us(131_072) / cache_only_regret_us(8_192),
        "wrong choices where the lead is above twice the error": float(wrong),
        "fleet: mean TTFT with events 10 s late over fresh": means["late"] / means["fresh"],
        "fleet: mean TTFT, longest prefix over cheapest": means["longest"] / means["fresh"],
    }


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
