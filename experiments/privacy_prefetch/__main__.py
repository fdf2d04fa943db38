"""What prefetch is worth, by predictor, with and without privacy: `python -m experiments.privacy_prefetch`.

Simulated: tenants with habits (composed sessions of public prefixes) ask at a node of their region, mostly the same;
every request is served there, from what is resident, pulled or computed. Each predictor moves prefixes between three
nodes through the shipped router and workers, over links of 1 Gbit/s, as long as no more than its budget of bytes is on
the way to a node. Trained predictors learn from 4,000 other tenants. `metrics/prefetching.py` defines the metrics.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kvshare_research.core.ports import Prefetch
from kvshare_research.disclosure.noise import SeededNoise
from kvshare_research.prefetch.artefact import save, vocabulary_of
from kvshare_research.prefetch.dp_counts import DpCounts
from kvshare_research.prefetch.dp_sgd import DpSgd
from kvshare_research.prefetch.oracle import Oracle
from kvshare_research.prefetch.ppm import Ppm
from kvshare_research.prefetch.queue_lookahead import QueueLookahead
from kvshare_research.prefetch.workflow import Workflow
from kvshare_research.privacy.sessions import followers, make_sessions
from kvshare_research.privacy.training import train_counts, train_network

from .scene import COMMON, NAMES, STEPS, TAUGHT, Arrivals, Play, asked, directory_of, measured, played, saved_ms

PREDICTING: dict[str, Any] = {**COMMON, "proposals_max": 2, "probability_min": 0.15}
COLUMNS = ("coverage", "accuracy", "timeliness", "destination", "waste")
ORACLE_AHEAD_US = 5_000_000


def policies(names: tuple[bytes, ...], seed: int, folder: Path, trained: bool) -> Iterator[tuple[str, Prefetch]]:
    """The whole family but `off`, and without those to train unless `trained`.

    A declared workflow names the three steps that may follow each.
    """
    steps = {f"step {i}": tuple(f"step {j}" for j in row) for i, row in enumerate(followers(NAMES, seed).tolist())}
    yield "queue_lookahead", QueueLookahead(admitted_max=3, **COMMON)
    yield "ppm, per tenant", Ppm(scope="tenant", **PREDICTING)
    yield "ppm, everybody (no DP)", Ppm(scope="everybody", **PREDICTING)
    yield "workflow", Workflow(steps=steps, steps_ahead=1, **PREDICTING)
    taught = make_sessions(TAUGHT, NAMES, STEPS, seed)
    known = {"vocabulary": vocabulary_of(names), **PREDICTING}
    for epsilon in (None, 2.0) if trained else ():
        title = "no DP" if epsilon is None else f"epsilon {epsilon:g}"
        counts, network = folder / f"counts {title}", folder / f"network {title}"
        save(train_counts(taught, names, epsilon=epsilon, delta=1e-5, noise=SeededNoise(seed)), counts)
        yield f"dp_counts, {title}", DpCounts(artefact=str(counts), **known)
        save(train_network(taught, names, epsilon=epsilon, delta=1e-5, epochs=10, batch=256, seed=seed), network)
        yield f"dp_sgd, {title}", DpSgd(artefact=str(network), **known)
    yield "oracle", Oracle(**{**COMMON, "horizon_us": ORACLE_AHEAD_US})


def interval(by_tenant: np.ndarray) -> tuple[float, float]:
    """95 %, by drawing tenants: requests of one tenant are not independent of each other."""
    drawn = np.random.default_rng(0).choice(by_tenant, (2_000, len(by_tenant))).mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def by_tenant(play: Play, plain: Play, rows: Arrivals) -> np.ndarray:
    """The mean TTFT that each tenant was saved, in ms."""
    tenants = np.array([request.tenant_id for request, _ in rows])
    saved = saved_ms(play, plain)
    return np.array([saved[tenants == t].mean() for t in np.unique(tenants)])


def table(
    given: argparse.Namespace, budgets: list[int]
) -> dict[tuple[str, int], tuple[dict[str, np.ndarray], np.ndarray]]:
    """By predictor and budget: each metric by seed, and TTFT saved by tenant over all seeds."""
    out: dict[tuple[str, int], tuple[dict[str, list[float]], list[np.ndarray]]] = {}
    for seed in range(given.seeds):
        directory = directory_of(given.tenants)
        rows, names = asked(directory, seed, given.gap_ms * 1000)
        chains = {request.request_id: chain for request, chain in rows}
        plain = played(directory, rows, None, given.capacity)
        assert plain.prefetched_bytes == 0
        with tempfile.TemporaryDirectory() as folder:
            for title, policy in [("off", None), *policies(names, seed, Path(folder), given.trained)]:
                for budget in budgets:
                    if policy is None:
                        play = plain
                    else:
                        play = played(directory, rows, replace(policy, inflight_bytes_max=budget << 20), given.capacity)
                    found, saved = out.setdefault((title, budget), ({}, []))
                    for name, value in measured(play, plain, chains).items():
                        found.setdefault(name, []).append(value)
                    saved.append(by_tenant(play, plain, rows))
                    print(".", end="", file=sys.stderr, flush=True)
    return {k: ({n: np.array(v) for n, v in f.items()}, np.concatenate(s)) for k, (f, s) in out.items()}


def main(given: argparse.Namespace) -> int:
    """Prints a row per predictor and budget: means over seeds, in brackets 95 %, after +- the deviation of seeds."""
    warnings.filterwarnings("ignore")
    found = table(given, given.budgets)
    print(
        f"\nsimulated: {given.tenants} tenants x {STEPS} requests, {given.gap_ms} ms apart, 3 nodes of {given.capacity}"
        f" blocks, {given.seeds} seeds"
    )
    print(
        "| predictor | budget, MiB | TTFT, ms | saved, ms | net, ms | moved, MiB | "
        + " | ".join(COLUMNS)
        + " | pollution | reordered |"
    )
    print("|---" * (8 + len(COLUMNS)) + "|")
    for (title, budget), (row, saved) in found.items():
        (low, high), mean = interval(saved), {name: value.mean() for name, value in row.items()}
        cells = [title, f"{budget}", f"{mean['TTFT ms']:.1f}", f"{saved.mean():.1f} [{low:.1f}, {high:.1f}]"]
        cells += [f"{saved.mean() - mean['price ms']:.1f}", f"{mean['moved MiB']:.0f}"]
        cells += [f"{mean[c]:.3f} +- {row[c].std():.3f}" if mean["issued"] else "" for c in COLUMNS]
        print("| " + " | ".join([*cells, f"{mean['pollution']:.0f}", f"{mean['reordered']:.0f}"]) + " |", flush=True)
    if given.figure:
        plot({title: saved for (title, _), (_, saved) in found.items()}, given)
    return int(any(row["pollution"].any() for row, _ in found.values()))


def plot(saved: dict[str, np.ndarray], given: argparse.Namespace) -> None:
    """TTFT saved by predictor, with its interval."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.5))
    means = [row.mean() for row in saved.values()]
    low, high = zip(*(interval(row) for row in saved.values()), strict=True)
    spread = np.abs(np.array([low, high]) - means)
    axes.barh(list(saved), means, xerr=spread, capsize=3, color="tab:blue", alpha=0.7)
    axes.invert_yaxis()
    title = f"{given.tenants} tenants, {given.seeds} seeds, {given.gap_ms} ms between requests [simulated]"
    axes.set(xlabel="TTFT saved per request, ms (95 %)", title=title)
    figure.tight_layout()
    figure.savefig(given.figure, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m experiments.privacy_prefetch")
    parser.add_argument("--tenants", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--gap-ms", type=int, default=300, help="mean time between two arrivals")
    parser.add_argument("--capacity", type=int, default=100_000, help="blocks of a node's pool")
    parser.add_argument("--budgets", type=int, nargs="+", default=[256], help="MiB on the way to a node, at most")
    parser.add_argument(
        "--trained", action=argparse.BooleanOptionalAction, default=True, help="predictors to train too"
    )
    parser.add_argument("--figure", type=Path, help="draw what is saved, as a picture of this name")
    sys.exit(main(parser.parse_args()))
