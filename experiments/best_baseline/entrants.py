"""Who plays: ours, the references, every published policy as it comes, and those with numbers once more, tuned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from experiments.fleet import WARMUP_RATIO
from kvshare_research.config import Run
from kvshare_research.core.nouns import Chain, Outcome, Request
from kvshare_research.study.settings import choice
from kvshare_research.tune.exact import Setting, tails_of
from kvshare_research.tune.main import Judge
from kvshare_research.tune.objective import loss
from kvshare_research.tune.scores import tunable
from kvshare_research.tune.search import cma_es
from kvshare_research.tune.window import window_of

Arrivals = Sequence[tuple[Request, Chain]]
Config = dict[str, Any]
Player = Callable[[Arrivals, Config], list[Outcome]]  # the requests on empty nodes under a selector, by request
BASELINES = (
    "round_robin",  # vLLM's caching as it comes: each node its own, shared by all
    "session_affinity", "power_of_two", "least_request", "aibrix_prefix", "sglang_cache_aware",
    "preble_e2", "llmd_profile", "llmd_p2p", "prodstack_loadaware", "dynamo_kv", "dynamo_lmetric", "skywalker",
    "mooncake", "gorgo", "gorgo_online",
)  # fmt: skip
REFERENCES = ("recompute_always", "bound")  # the worst that is sensible, and what nobody can beat
OURS = {
    "cheapest": choice("selector", "cheapest"),
    "cheapest, first token alone": choice("selector", "cheapest") | {"weigh_delay_permille": 0},
    "cheapest, all answers": choice("selector", "cheapest") | {"weigh_delay_permille": 1_000},
    "cheapest, balanced": choice("selector", "cheapest_balanced"),
}
SEARCHED = ("gorgo", "dynamo_kv", "llmd_profile")  # weights, found on the approximation
TRIED = {  # one number each, tried on the exact fleet beside the published one
    "mooncake": ("balancing_threshold", (1.5, 5.0)),
    "prodstack_loadaware": ("beta", (0.3, 3.0)),
    "cheapest": ("weigh_delay_permille", (0, 100, 1_000)),
}
EVALUATIONS, POPULATION, CONFIRMED, BATCH = 100, 20, 2, 64


def policies(run: Run, training: Arrivals, play: Player, *, tune: bool) -> Iterable[tuple[str, Config]]:
    """(name, configuration); what is tuned is tuned on the training requests when it is asked for."""
    yield from OURS.items()
    for name in (*REFERENCES, *BASELINES):
        yield name, choice("selector", name)
    if not tune:
        return
    for name in SEARCHED:
        best = _least_loss(_searched(run, training, name), training, play)
        yield f"{name}, tuned", best
        if name == "llmd_profile":  # places requests as `llmd_p2p` does
            weights = {key: best[key] for key in tunable(name).names}
            pulls = [choice("selector", "llmd_p2p") | weights | {"pull_tokens_min": least} for least in (1, 13_600)]
            yield "llmd_p2p, tuned", _least_loss([choice("selector", "llmd_p2p"), *pulls], training, play)
    for name, (key, values) in TRIED.items():
        published = choice("selector", name)
        yield f"{name}, tuned", _least_loss([published, *(published | {key: v} for v in values)], training, play)


def _searched(run: Run, training: Arrivals, name: str) -> list[Config]:
    """The published weights, and the best few that a search finds on the approximation of the fleet."""
    setting = Setting(run=run)
    judge = Judge(
        setting=setting, tunable=tunable(name), arrivals=list(training), window=window_of(list(training)),
        model=setting.model(), batch=BATCH, warmup=_warmup(training),
    )  # fmt: skip
    found = cma_es(judge.tunable, judge.approximate, evaluations=EVALUATIONS, population=POPULATION, seed=0)
    rows = [np.array(judge.tunable.published), *found.best(CONFIRMED)]
    return [choice("selector", name) | dict(zip(judge.tunable.names, row.tolist(), strict=True)) for row in rows]


def _least_loss(candidates: Sequence[Config], training: Arrivals, play: Player) -> Config:
    """The candidate of least loss on the training requests, played exactly; the first, as published, wins its ties."""
    played = [tails_of(play(training, selector), _warmup(training)) for selector in candidates]
    losses = [float(loss(tails, played[0])[0]) for tails in played]
    return candidates[losses.index(min(losses))]


def _warmup(training: Arrivals) -> int:
    return int(WARMUP_RATIO * len(training))
