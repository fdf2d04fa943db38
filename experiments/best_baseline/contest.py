"""One workload, every policy on the very same requests: what a contest is, and how its figures are told apart."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TextIO, final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from experiments.best_baseline.entrants import REFERENCES, Arrivals, policies
from experiments.fleet import WARMUP_RATIO, Prompt, arrivals_of, reuse
from kvshare_research.config import Run
from kvshare_research.core.nouns import Outcome, Status
from kvshare_research.metrics.statistics import Estimate, interval
from kvshare_research.metrics.steady import steadiness
from kvshare_research.study.simulated import build_fleet
from kvshare_research.tune.exact import Setting

ALL_WAYS = "actions=[recompute,resident,route,pull,multi_pull,split]"
SEEDS, TRAINING = (21, 22, 23), 20  # the weight of `cheapest` was set on seeds 2, 3 and 11 to 13
FIGURES = tuple((what, percent) for what in ("ttft_us", "end_to_end_us") for percent in (50, 95, 99))
DRAWS = 500


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests of several seeds (or windows), which are compared, and of one more, on which weights are tuned."""

    name: str
    run: Run
    seeds: Sequence[Arrivals]
    training: Arrivals


@final
@dataclass(frozen=True, kw_only=True)
class Played:
    """What came of one policy on all seeds of a workload: outcomes by seed, warm-up left out."""

    policy: str
    outcomes: tuple[tuple[Outcome, ...], ...]
    moved_bytes: int
    evicted_blocks: int
    troubles: tuple[str, ...]  # of each seed: why its percentiles mean little, empty where they do

    @cached_property
    def groups(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self.outcomes)), [len(rows) for rows in self.outcomes])

    def times(self, what: str) -> NDArray[np.float64]:
        """Of all requests of all seeds; one that was not served never came."""
        return np.array(
            [getattr(o, what) if o.status == Status.DONE else np.inf for rows in self.outcomes for o in rows], float
        )

    def percentile_ms(self, what: str, percent: float) -> float:
        return float(np.percentile(self.times(what), percent, method="higher")) / 1e3

    def told(self) -> str:
        """A row of the table of policies."""
        parts = [
            "/".join(f"{self.percentile_ms(what, p):,.0f}" for w, p in FIGURES if w == what)
            for what in ("ttft_us", "end_to_end_us")
        ]
        done = [o for rows in self.outcomes for o in rows if o.status == Status.DONE]
        kinds = Counter(trouble.partition(" of ")[0] for trouble in self.troubles if trouble)
        trouble = ", ".join(f"{kind} {count} of {len(self.troubles)}" for kind, count in sorted(kinds.items())) or "-"
        moved = f"{reuse(done):.3f}, {self.moved_bytes / 1e9:,.0f}, {self.evicted_blocks:,}"
        return f"| {self.policy} | {parts[0]} | {parts[1]} | {moved} | {trouble} |"


def play(workload: Workload, policy: str, selector: Mapping[str, Any]) -> Played:
    """Every seed on empty nodes."""
    outcomes, moved, evicted, troubles = [], 0, 0, []
    for arrivals in workload.seeds:
        rows, moved_bytes, evicted_blocks = one(workload.run, arrivals, selector)
        first = int(WARMUP_RATIO * len(rows))
        found = steadiness(rows, first)
        troubles.append("" if found is None else found.trouble)
        outcomes.append(tuple(rows[first:]))
        moved, evicted = moved + moved_bytes, evicted + evicted_blocks
    return Played(
        policy=policy, outcomes=tuple(outcomes), moved_bytes=moved, evicted_blocks=evicted, troubles=tuple(troubles)
    )


def one(run: Run, arrivals: Arrivals, selector: Mapping[str, Any]) -> tuple[list[Outcome], int, int]:
    """The requests on empty nodes under a selector: outcomes by request, bytes moved, blocks evicted."""
    simulator = build_fleet(run, dict(run.resolved) | {"selector": dict(selector)}).simulator
    simulator.feed(iter(arrivals))
    rows = sorted((replace(o, output_tokens=()) for o in simulator.run()), key=lambda o: o.request_id)
    return rows, simulator.moved_bytes, sum(worker.ledger.evicted_blocks for worker in simulator.workers)


def resampled(played: Sequence[Played], of: Callable[..., float], what: str) -> Estimate:
    """A figure of the times of some policies on the same requests, with what seeds, and requests of each, make of it.

    Seeds are drawn with repetition, then as many requests of each: few draws, since there are few seeds.
    """
    chance = np.random.default_rng(0)
    times, groups = [row.times(what) for row in played], played[0].groups
    members = [np.flatnonzero(groups == seed) for seed in range(len(played[0].outcomes))]
    found = []
    for _ in range(DRAWS):
        drawn = [members[seed] for seed in chance.integers(0, len(members), len(members))]
        rows = np.concatenate([chance.choice(seed, len(seed)) for seed in drawn])
        found.append(of(*(row[rows] for row in times)))
    return interval(of(*times), np.array(found), len(groups))


def ratio(ours: Played, theirs: Played, what: str, percent: float) -> Estimate:
    """A percentile of ours over theirs, requests paired."""

    def of(*columns: NDArray[np.float64]) -> float:  # infinite where a request was not served
        a, b = (float(np.percentile(times, percent, method="higher")) for times in columns)
        return a / b

    return resampled((ours, theirs), of, what)


def gain_share(ours: Played, recomputing: Played, bound: Played) -> Estimate:
    """Of the gain in mean TTFT over recomputing that is there to be had, what ours reaches."""

    def of(*columns: NDArray[np.float64]) -> float:
        own, worst, best = (float(times.mean()) for times in columns)
        return (worst - own) / (worst - best)

    return resampled((ours, recomputing, bound), of, "ttft_us")


def told(estimate: Estimate) -> str:
    """With its interval."""
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def compared(workload: Workload, *, tune: bool = True, to: TextIO | None = None) -> dict[str, float]:
    """Ratios of ours to the best baseline in each figure, and the share of the gain over recomputing; all is told."""

    def say(text: str) -> None:
        print(text, file=sys.stderr if to is None else to, flush=True)

    columns = ("TTFT p50/p95/p99, ms", "E2E p50/p95/p99, ms", "reuse, GB, blocks evicted", "trouble", "tuned")
    say(f"| {workload.name} | {' | '.join(columns)} |\n|---|---|---|---|---|---|")
    found: dict[str, Played] = {}
    fleet = workload.run
    for name, selector in policies(fleet, workload.training, lambda asked, s: one(fleet, asked, s)[0], tune=tune):
        found[name] = play(workload, name, selector)
        say(f"{found[name].told()} {numbers(selector) if name.endswith('tuned') else '-'} |")
    say("")
    return judged(workload.name, found, say)


def judged(workload: str, found: Mapping[str, Played], say: Callable[[str], None]) -> dict[str, float]:
    """A row per figure: ours over the best baseline in it, then over recomputing; and the share of the gain."""
    ours = [name for name in found if name.startswith("cheapest")]
    others = [name for name in found if name not in ours and name not in REFERENCES]
    say(f"| {workload}: over | | {' | '.join(ours)} |\n|---|---|{'---|' * len(ours)}")
    titles = [f"p{percent} {'TTFT' if what == 'ttft_us' else 'E2E'}" for what, percent in FIGURES]
    bests = [min(others, key=lambda name: found[name].percentile_ms(*f)) for f in FIGURES]
    figures: dict[str, float] = {}
    for kind, rivals in (("the best baseline", bests), ("recomputing", [REFERENCES[0]] * len(FIGURES))):
        for title, rival, (what, percent) in zip(titles, rivals, FIGURES, strict=True):
            ratios = {name: ratio(found[name], found[rival], what, percent) for name in ours}
            say(f"| {title} over {kind} | {rival} | {' | '.join(told(r) for r in ratios.values())} |")
            if kind == "the best baseline":
                figures[f"{workload}: {title} over {kind}"] = ratios["cheapest"].value
    means = {name: float(found[name].times("ttft_us").mean()) for name in others}
    best = min(others, key=means.__getitem__)
    shares = {name: gain_share(found[name], *(found[r] for r in REFERENCES)) for name in (best, *ours)}
    row = " | ".join(told(shares[name]) for name in ours)
    say(f"| share of the bound's gain | {best} {told(shares[best])} | {row} |\n")
    return figures | {f"{workload}: share of the bound's gain": shares["cheapest"].value}


def numbers(selector: Mapping[str, Any]) -> str:
    """What is configured of a selector, in short."""
    return ", ".join(f"{key} {value:.3g}" for key, value in selector.items() if isinstance(value, int | float))


def of_prompts(name: str, run: Run, seeds: Sequence[Sequence[Prompt]], training: Sequence[Prompt]) -> Workload:
    """A workload of prompts made here."""
    fleet = build_fleet(run, dict(run.resolved))
    return Workload(
        name=name, run=run, seeds=[list(arrivals_of(fleet, prompts)) for prompts in seeds],
        training=list(arrivals_of(fleet, training)),
    )  # fmt: skip


def of_trace(name: str, run: Run, *, windows: int, requests: int, skip: int = 0) -> Workload:
    """Consecutive windows of a trace, each from its own beginning and on empty nodes; the first is tuned on."""

    def moved(window: Arrivals) -> Arrivals:
        start_us = window[0][0].arrival_us
        return [(replace(r, arrival_us=r.arrival_us - start_us, request_id=i), c) for i, (r, c) in enumerate(window)]

    training, *seeds = [moved(window) for window in Setting(run=run).windows(1 + windows, requests, skip)]
    return Workload(name=name, run=run, seeds=seeds, training=training)
