"""R5: the published (1+1)-ES accepts a worse candidate, because a relative tolerance turns over for negative scores."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

from experiments.art_like import FLEET, art_like
from experiments.fleet import counted, percentile_ms, play, setting
from experiments.table import show
from kvshare_research.build import build
from kvshare_research.core.nouns import Outcome
from kvshare_research.selector.gorgo_online import GorgoOnline
from kvshare_research.selector.one_plus_one import TOLERANCE, accepts_published, accepts_repaired
from kvshare_research.study.settings import choice

REQUESTS, TOKENS_PER_S, SEEDS, SMALL = 7_630, 17_000, range(3), 300


def climbed(selector: GorgoOnline, outcomes: list[Outcome]) -> tuple[int, int, float]:
    """Steps, those accepted for the worse, and the p95 in s that the search stands on, from the same answers."""
    state, steps, worse, best = selector.initial_state(), 0, 0, 0.0
    for outcome in sorted(outcomes, key=lambda o: o.arrival_us + o.ttft_us):
        before, state = state, selector.answered(state, outcome.ttft_us)
        if state.step > before.step and state.climb is not None:
            if before.climb is not None:
                steps, worse = steps + 1, worse + (state.climb.best < before.climb.best)
            best = state.climb.best
    return steps, worse, -best


def online(requests: int) -> dict[str, float]:
    """The search inside a serving fleet, by either rule and with three seeds, against weights that stand still."""
    prompts, setup = art_like(requests, tokens_per_s=TOKENS_PER_S, seed=6), setting(*FLEET)

    def p95(name: str, **values: float | int) -> tuple[float, float, list[Outcome], GorgoOnline]:
        chosen = choice("selector", name) | values
        outcomes, simulator = play(setup, prompts, chosen)
        ttft, e2e = (percentile_ms(counted(outcomes), what, 95) for what in ("ttft_us", "end_to_end_us"))
        ends = simulator.router.choosing.policy.now(simulator.router.choosing.state)
        print(f"{name} {values}: p95 TTFT {ttft:.0f} ms, E2E {e2e:.0f} ms, ends with {ends}", file=sys.stderr)
        return ttft, e2e, outcomes, build(chosen, "selector")

    learned, start = p95("gorgo"), p95("gorgo", rtt_weight=0.5, queue_weight=0.1)
    ours = {"start weights over learned ones, both standing still: p95 TTFT": start[0] / learned[0]}
    found = {}
    for rule, name in (("published", "gorgo_online"), ("repaired", "gorgo_online_repaired")):
        rows = [p95(name, seed=seed) for seed in SEEDS]
        found[rule] = [fmean(row[column] for row in rows) for column in (0, 1)]
        steps = [climbed(selector, outcomes) for _, _, outcomes, selector in rows]
        print(f"{rule}: (steps, for the worse, best p95 in s) {steps}", file=sys.stderr)
        worse = sum(row[1] for row in steps) / max(1, sum(row[0] for row in steps))
        ours[f"online, {rule} rule: share of steps accepted for the worse"] = worse
        ours[f"online, {rule} rule: p95 TTFT over static weights"] = found[rule][0] / learned[0]
    for column, title in enumerate(("TTFT", "E2E")):
        ours[f"online, repaired over published rule: p95 {title}"] = (
            found["repaired"][column] / found["published"][column]
        )
    return ours


def run(requests_max: int | None = None) -> dict[str, float]:
    """The step of their own trace (-1.548 after -1.547), how far such steps could drift, and the search at work."""
    best = drifted = -1.547
    for _ in range(100):
        worse = drifted * (1 + 0.99 * TOLERANCE)
        drifted = worse if accepts_published(worse, drifted) else drifted
    rules = {
        "published rule accepts -1.548 over -1.547": float(accepts_published(-1.548, best)),
        "repaired rule accepts -1.548 over -1.547": float(accepts_repaired(-1.548, best)),
        "repaired rule accepts -1.5 over -1.547": float(accepts_repaired(-1.5, best)),
        "p95 in s after 100 accepted steps from 1.547": -drifted,
    }
    return rules | online(min(REQUESTS, requests_max or REQUESTS))


if __name__ == "__main__":
    raise SystemExit(show(Path(__file__).parent, run()))
