"""One workload, every policy on the very same requests: what a contest is, and how its figures are told apart."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from experiments.fleet import WARMUP_RATIO, Prompt, arrivals_of, reuse
from kvshare_research.config import Run
from kvshare_research.core.nouns import Chain, Outcome, Request, Status
from kvshare_research.metrics.statistics import Estimate, interval
from kvshare_research.metrics.steady import steadiness
from kvshare_research.study.settings import choice
from kvshare_research.study.simulated import build_fleet
from kvshare_research.tune.exact import Setting
from kvshare_research.tune.main import Judge
from kvshare_research.tune.scores import tunable
from kvshare_research.tune.search import cma_es
from kvshare_research.tune.window import window_of

Arrivals = Sequence[tuple[Request, Chain]]
BASELINES = (
    "session_affinity", "aibrix_prefix", "sglang_cache_aware", "preble_e2", "llmd_profile", "dynamo_kv", "skywalker",
    "mooncake", "gorgo", "gorgo_v1", "least_request",
)  # fmt: skip
REFERENCES = ("recompute_always", "bound")  # the worst that is sensible, and what nobody can beat
TUNED = ("gorgo", "dynamo_kv", "llmd_profile")
ALL_WAYS = "actions=[recompute,resident,route,pull,multi_pull,split]"
SEEDS, TRAINING = (21, 22, 23), 20  # the weight of `cheapest` was set on seeds 2, 3 and 11 to 13
OURS = {"cheapest": 300, "cheapest, first token alone": 0, "cheapest, all answers": 1_000}  # weigh_delay_permille
FIGURES = tuple((what, percent) for what in ("ttft_us", "end_to_end_us") for percent in (50, 95, 99))
EVALUATIONS, POPULATION, CONFIRMED, BATCH, DRAWS = 100, 20, 3, 64, 500


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
        fleet = build_fleet(workload.run, dict(workload.run.resolved) | {"selector": dict(selector)})
        fleet.simulator.feed(iter(arrivals))
        rows = sorted(fleet.simulator.run(), key=lambda o: o.request_id)
        first = int(WARMUP_RATIO * len(rows))
        found = steadiness(rows, first)
        troubles.append("" if found is None else found.trouble)
        outcomes.append(tuple(rows[first:]))
        moved += fleet.simulator.moved_bytes
        evicted += sum(worker.ledger.evicted_blocks for worker in fleet.simulator.workers)
    return Played(
        policy=policy, outcomes=tuple(outcomes), moved_bytes=moved, evicted_blocks=evicted, troubles=tuple(troubles)
    )


def tuned(workload: Workload, name: str) -> dict[str, Any]:
    """The selector with the weights a search finds on the training requests; the published ones, if none beats them."""
    judge = Judge(
        setting=Setting(run=workload.run), tunable=tunable(name), arrivals=list(workload.training),
        window=window_of(workload.training), model=Setting(run=workload.run).model(), batch=BATCH,
        warmup=int(WARMUP_RATIO * len(workload.training)),
    )  # fmt: skip
    found = cma_es(judge.tunable, judge.approximate, evaluations=EVALUATIONS, population=POPULATION, seed=0)
    candidates = [np.array(judge.tunable.published), *found.best(CONFIRMED)]
    best = min(candidates, key=lambda weights: judge.exact(weights)[0])
    return choice("selector", name) | dict(zip(judge.tunable.names, best.tolist(), strict=True))


def policies(workload: Workload, *, tune: bool) -> Iterable[tuple[str, dict[str, Any]]]:
    """(name, configuration): ours, recomputing, the published ones, and those with weights once more, tuned."""
    for name, weight in OURS.items():
        yield name, choice("selector", "cheapest") | {"weigh_delay_permille": weight}
    for name in (*REFERENCES, *BASELINES):
        yield name, choice("selector", name)
    for name in TUNED if tune else ():
        yield f"{name}, tuned", tuned(workload, name)


def ratio(ours: Played, theirs: Played, what: str, percent: float) -> Estimate:
    """A percentile of ours over theirs, requests paired; the interval is what seeds, and requests of each, give.

    Seeds are drawn with repetition, then as many requests of each: few draws, since there are few seeds.
    """
    chance = np.random.default_rng(0)
    a, b = ours.times(what), theirs.times(what)
    members = [np.flatnonzero(ours.groups == seed) for seed in range(len(ours.outcomes))]
    found = []

    def of(times: NDArray[np.float64]) -> float:
        return float(np.percentile(times, percent, method="higher"))  # infinite where a request was not served

    for _ in range(DRAWS):
        drawn = [members[seed] for seed in chance.integers(0, len(members), len(members))]
        rows = np.concatenate([chance.choice(seed, len(seed)) for seed in drawn])
        found.append(of(a[rows]) / of(b[rows]))
    return interval(of(a) / of(b), np.array(found), len(a))


def compared(workload: Workload, *, tune: bool = True) -> dict[str, float]:
    """Ratios of ours to the best baseline in each figure, and the share of the gain over recomputing; all to stderr."""

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    say(f"\n| {workload.name} | TTFT p50/p95/p99, ms | E2E p50/p95/p99, ms | reuse, GB, blocks evicted | trouble |")
    say("|---|---|---|---|---|")
    found: dict[str, Played] = {}
    for name, selector in policies(workload, tune=tune):
        found[name] = play(workload, name, selector)
        say(found[name].told())
    others = [name for name in found if name not in OURS and name not in REFERENCES]
    say(f"\n| {workload.name}: over the best baseline | the best | {' | '.join(OURS)} |\n|---|---|{'---|' * len(OURS)}")
    ours: dict[str, float] = {}
    for what, percent in FIGURES:
        best = min(others, key=lambda name: found[name].percentile_ms(what, percent))
        title = f"p{percent} {'TTFT' if what == 'ttft_us' else 'E2E'}"
        ratios = [ratio(found[name], found[best], what, percent) for name in OURS]
        say(f"| {title} | {best} | {' | '.join(f'{r.value:.3f} [{r.low:.3f}, {r.high:.3f}]' for r in ratios)} |")
        ours[f"{workload.name}: {title} over the best baseline"] = ratios[0].value
    share = gain_share(found)
    say(f"| share of the bound's gain | - | {' | '.join(f'{share[name]:.4f}' for name in OURS)} |")
    return ours | {f"{workload.name}: share of the bound's gain": share["cheapest"]}


def gain_share(found: Mapping[str, Played]) -> dict[str, float]:
    """Of the gain in mean TTFT over recomputing that is there to be had, what each policy reaches."""
    means = {name: float(played.times("ttft_us").mean()) for name, played in found.items()}
    most = means["recompute_always"] - means["bound"]
    return {name: (means["recompute_always"] - mean) / most for name, mean in means.items()}


def of_prompts(name: str, run: Run, seeds: Sequence[Sequence[Prompt]], training: Sequence[Prompt]) -> Workload:
    """A workload of prompts made here."""
    fleet = build_fleet(run, dict(run.resolved))
    return Workload(
        name=name, run=run, seeds=[list(arrivals_of(fleet, prompts)) for prompts in seeds],
        training=list(arrivals_of(fleet, training)),
    )  # fmt: skip


def of_trace(name: str, run: Run, windows: int, requests: int) -> Workload:
    """Consecutive windows of a trace, each from its own beginning and on empty nodes; the first is tuned on."""

    def moved(window: Arrivals) -> Arrivals:
        start_us = window[0][0].arrival_us
        return [(replace(r, arrival_us=r.arrival_us - start_us, request_id=i), c) for i, (r, c) in enumerate(window)]

    training, *seeds = [moved(window) for window in Setting(run=run).windows(1 + windows, requests)]
    return Workload(name=name, run=run, seeds=seeds, training=training)
