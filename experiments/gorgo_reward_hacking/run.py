"""R4: without a weight for the queue, GORGO sends everything to one replica; TTFT alone may not notice."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from experiments.art_like import FLEET, art_like
from experiments.fleet import counted, percentile_ms, play, setting
from experiments.table import show

GORGO = "kvshare_research.selector.gorgo.Gorgo"
REQUESTS, TOKENS_PER_S, SMALL = 7_630, 17_000, 300


def run(requests_max: int | None = None) -> dict[str, float]:
    """The published learned weights, and the same with nothing for the queue."""
    prompts = art_like(min(REQUESTS, requests_max or REQUESTS), tokens_per_s=TOKENS_PER_S, seed=6)
    run_of, found = setting(*FLEET), []
    for weight in (0.5, 0.0):
        selector = {"_target_": GORGO, "rtt_weight": 0.276, "queue_weight": weight}
        done = counted(play(run_of, prompts, selector)[0])
        busiest = max(Counter(o.executor for o in done).values()) / len(done)
        times = [percentile_ms(done, what, 95) for what in ("ttft_us", "end_to_end_us")]
        found.append((busiest, *times))
        told = f"p95 TTFT {times[0]:.0f} ms, E2E {times[1]:.0f} ms, busiest replica {busiest:.2f}"
        print(f"queue weight {weight}: {told}", file=sys.stderr)
    (_, ttft, e2e), (busiest, hacked_ttft, hacked_e2e) = found
    return {
        "share of the busiest replica, no queue weight": busiest,
        "p95 E2E over the published weights": hacked_e2e / e2e,
        "p95 TTFT over the published weights": hacked_ttft / ttft,
        "objective with E2E prefers the published weights": float(ttft + e2e < hacked_ttft + hacked_e2e),
    }


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
