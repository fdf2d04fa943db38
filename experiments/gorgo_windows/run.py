"""R3: GORGO v3 against its baselines in three windows of chats, on three regions."""

from __future__ import annotations

import sys
from pathlib import Path

from experiments.art_like import FLEET, art_like
from experiments.fleet import counted, percentile_ms, play, reuse, setting
from experiments.table import show

WINDOWS = (("34k", 34_000, 7_195, 5), ("17k", 17_000, 7_630, 6), ("11k", 11_300, 8_663, 7))  # requests, seed
BASELINES = {
    "session affinity": "session_affinity", "least load": "least_loaded", "least request": "least_request",
    "prefix cache": "aibrix_prefix",
}  # fmt: skip
FURTHER = ("cheapest", "random")
SMALL = 300


def run(requests_max: int | None = None) -> dict[str, float]:
    """GORGO's p95 over each baseline's; `requests_max` shortens every window."""
    setup = setting(*FLEET)
    ours: dict[str, float] = {}
    for name, tokens_per_s, requests, seed in WINDOWS:
        prompts = art_like(min(requests, requests_max or requests), tokens_per_s=tokens_per_s, seed=seed)
        found = {}
        for selector in ("gorgo", *BASELINES.values(), *(FURTHER if requests_max is None else ())):
            done = counted(play(setup, prompts, selector)[0])
            times = [percentile_ms(done, what, p) for what in ("ttft_us", "end_to_end_us") for p in (50, 95, 99)]
            found[selector] = (times[1], times[4], reuse(done))
            told = "/".join(f"{time:.0f}" for time in times)
            print(f"{name} {selector}: TTFT and E2E p50/p95/p99, ms: {told}; reuse {reuse(done):.3f}", file=sys.stderr)
        for title, selector in BASELINES.items():
            ours[f"{name} tok/s: p95 TTFT over {title}"] = found["gorgo"][0] / found[selector][0]
        ours[f"{name} tok/s: p95 E2E over session affinity"] = found["gorgo"][1] / found["session_affinity"][1]
        if name == "17k":
            ours["17k tok/s: reuse over session affinity"] = found["gorgo"][2] / found["session_affinity"][2]
    return ours


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
