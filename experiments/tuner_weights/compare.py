"""The comparison of README.md: searches at equal evaluations, judged by the exact simulator on held-out windows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from hydra import compose, initialize_config_dir

from kvshare_research.cli import conf_root
from kvshare_research.config import check, plain
from kvshare_research.core.errors import ConfigError, did_you_mean
from kvshare_research.metrics.statistics import Estimate, interval
from kvshare_research.selector.one_plus_one import accepts_published, accepts_repaired
from kvshare_research.tune.main import Judge, judges
from kvshare_research.tune.scores import TUNABLE
from kvshare_research.tune.search import cma_es, one_plus_one_es

NODES, REQUESTS, HELD_OUT, EVALUATIONS, POPULATION, CONFIRMED = 12, 1000, 10, 300, 20, 5
SEEDS = (0, 1, 2)
OUT = Path("outputs") / "tuner_weights"


def windows(selector: str) -> list[Judge]:
    """A judge of the window that is tuned on, then of the held-out ones."""
    with initialize_config_dir(str(conf_root()), version_base="1.3"):
        cfg = compose("tune", [f"selector={selector}", f"driver.node_count={NODES}", "link=wan"])
    return judges(check(cfg, plain(cfg).keys()), selector, 1 + HELD_OUT, REQUESTS, 0, 64)


def ours(training: Judge, seed: int) -> np.ndarray:
    """CMA-ES in the approximation; of its best few and the published weights, the best in the exact simulator."""
    found = cma_es(
        training.tunable, training.approximate, evaluations=EVALUATIONS - CONFIRMED, population=POPULATION, seed=seed
    )
    candidates = [np.array(training.tunable.published), *found.best(CONFIRMED)]  # as the command chooses
    return min(candidates, key=lambda weights: training.exact(weights)[0])


def searched(training: Judge) -> Iterator[tuple[str, int, np.ndarray]]:
    """(method, seed, weights) of every search; all have the same number of evaluations."""
    for seed in SEEDS:
        yield "CMA-ES, confirmed", seed, ours(training, seed)
    rules = {"(1+1)-ES, repaired": accepts_repaired, "(1+1)-ES, published": accepts_published}
    for name, rule in rules.items():
        chains = one_plus_one_es(training.tunable, training.approximate, rule, evaluations=EVALUATIONS, seeds=SEEDS)
        for seed, chain in zip(SEEDS, chains, strict=True):
            yield name, seed, chain.weights[-1]


def mean_over_windows(losses: np.ndarray) -> Estimate:
    """Mean of (seeds, windows) with an interval over windows: they are what varies and what is few."""
    per_window = losses.mean(axis=0)
    drawn = np.random.default_rng(0).integers(0, len(per_window), (10_000, len(per_window)))
    return interval(float(per_window.mean()), per_window[drawn].mean(axis=1), len(per_window))


def line(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def shown(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def gorgo() -> dict[str, object]:
    """The fixed comparison: loss on the held-out windows, 1 being the published weights."""
    training, *held_out = windows("gorgo")
    losses: dict[str, list[list[float]]] = {}
    weights: dict[str, list[list[float]]] = {}
    trained: dict[str, list[float]] = {}
    for method, _, found in searched(training):
        weights.setdefault(method, []).append(found.tolist())
        trained.setdefault(method, []).append(training.exact(found)[0])
        losses.setdefault(method, []).append([judge.exact(found)[0] for judge in held_out])
    line(
        "search", "weights (rtt, queue) per seed", "loss where tuned", "loss held out", "windows better than published"
    )
    line(*["---"] * 5)
    for method, rows in losses.items():
        values = np.array(rows)
        pairs = "; ".join(f"{a:.3g}, {b:.3g}" for a, b in weights[method])
        better = int((values.mean(axis=0) < 1).sum())
        line(
            method,
            pairs,
            f"{np.mean(trained[method]):.3f}",
            shown(mean_over_windows(values)),
            f"{better} of {HELD_OUT}",
        )
    first = np.array(losses["CMA-ES, confirmed"])
    for method in list(losses)[1:]:
        print(f"CMA-ES less {method}: {shown(mean_over_windows(first - np.array(losses[method])))}")
    return {"weights": weights, "held out": losses, "where tuned": trained}


def baselines() -> dict[str, object]:
    """Every selector with weights, published and tuned, in seconds on the held-out windows."""
    line("selector", "weights", "loss held out", "TTFT p95 s: published", "tuned", "E2E p95 s: published", "tuned")
    line(*["---"] * 7)
    kept: dict[str, object] = {}
    for selector in TUNABLE:
        training, *held_out = windows(selector)
        found = ours(training, SEEDS[0])
        published = np.array(training.tunable.published)
        rows = [(judge.exact(found), judge.exact(published)[1]) for judge in held_out]
        losses = mean_over_windows(np.array([[loss for (loss, _), _ in rows]]))
        means = [
            np.mean([float(tail[0]) for tail in tails])
            for tails in (
                [p.ttft_s for _, p in rows],
                [t.ttft_s for (_, t), _ in rows],
                [p.e2e_s for _, p in rows],
                [t.e2e_s for (_, t), _ in rows],
            )
        ]
        named = ", ".join(f"{n} {w:.3g}" for n, w in zip(training.tunable.names, found, strict=True))
        line(f"`{selector}`", named, shown(losses), *(f"{m:.2f}" for m in means))
        kept[selector] = {"weights": found.tolist(), "held out": [loss for (loss, _), _ in rows]}
    return kept


if __name__ == "__main__":
    parts = {"gorgo": gorgo, "baselines": baselines}
    asked = sys.argv[1:] or list(parts)
    if unknown := [name for name in asked if name not in parts]:
        raise ConfigError(f"there is no part `{unknown[0]}`{did_you_mean(unknown[0], parts)}")
    OUT.mkdir(parents=True, exist_ok=True)
    for name in asked:
        (OUT / f"{name}.json").write_text(json.dumps(parts[name](), indent=1) + "\n")
