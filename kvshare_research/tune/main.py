"""`python -m kvshare_research.tune`: search, confirmation and held-out windows, one after the other."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.errors import ConfigError
from kvshare_research.report import Progress
from kvshare_research.study.settings import name_of
from kvshare_research.workload.trace import Reading

from .approximate import FleetModel, play
from .exact import Setting, tails_of
from .objective import Tails, loss, tails
from .scores import Tunable, tunable
from .search import Found, cma_es
from .window import Arrival, Window, window_of

if TYPE_CHECKING:
    from kvshare_research.config import Run

Floats = NDArray[np.float64]
STAGES = 4  # reading, compiling, searching, confirming; then a stage for each held-out window


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tune:
    """What is searched on what. The first of the driver's `warmup_ratio` of each window count for the slip only."""

    window_requests: int
    skip_requests: int
    held_out_windows: int
    evaluations: int
    population: int
    batch: int
    confirmed: int

    def __post_init__(self) -> None:
        least = {"window_requests": 20, "skip_requests": 0, "held_out_windows": 0}
        for name in self.__dataclass_fields__:
            if getattr(self, name) < least.get(name, 1):
                raise ConfigError(f"`tune.{name}` is `{getattr(self, name)}`, expected {least.get(name, 1)} or more")
        if self.population < 4:
            raise ConfigError(f"`tune.population` is `{self.population}`, expected 4 or more")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Losses of weights on one window, relative to the published weights on it: 1 is alike, less is better."""

    setting: Setting
    tunable: Tunable
    arrivals: list[Arrival]
    window: Window
    model: FleetModel
    batch: int
    warmup: int
    _references: dict[str, Tails] = field(default_factory=dict)

    def approximate(self, weights: Floats) -> Floats:
        """Of each row, in the approximation."""
        if "approximate" not in self._references:
            self._references["approximate"] = self._played(self._published)
        return loss(self._played(weights), self._references["approximate"])

    def exact(self, weights: Floats) -> tuple[float, Tails]:
        """Of one vector, in the exact simulator, and the tails themselves."""
        if "exact" not in self._references:
            self._references["exact"] = self._simulated(self._published[0])
        own = self._references["exact"] if np.array_equal(weights, self._published[0]) else self._simulated(weights)
        return float(loss(own, self._references["exact"])[0]), own

    @property
    def _published(self) -> Floats:
        return np.array([self.tunable.published])

    def _played(self, weights: Floats) -> Tails:
        played = play(self.tunable, weights, self.window, self.model, batch=self.batch)
        return tails(self.window.arrival_ms, played.ttft_ms, played.e2e_ms, self.warmup)

    def _simulated(self, weights: Floats) -> Tails:
        return tails_of(self.setting.play(self.arrivals, self.tunable, weights), self.warmup)


def judges(
    run: Run, selector: str, count: int, requests: int, skip: int, batch: int, *, reading: Reading | None = None,
    progress: Progress | None = None,
) -> list[Judge]:  # fmt: skip
    """A judge for each of `count` consecutive windows of the configured trace; `reading` counts what was no request."""
    setting = Setting(run=run)
    model = setting.model()
    warmup = int(run.parts["driver"].warmup_ratio * requests)
    windows = setting.windows(count, requests, skip, reading, progress)
    return [
        Judge(
            setting=setting, tunable=tunable(selector), arrivals=arrivals, window=window_of(arrivals), model=model,
            batch=batch, warmup=warmup,
        )
        for arrivals in windows
    ]  # fmt: skip


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What a run leaves: the chosen weights, and rows of (window, weights, approximate loss, exact loss, tails)."""

    tunable: Tunable
    weights: Floats
    found: Found
    rows: list[tuple[str, Floats, float, float, Tails]]
    search_s: float
    reading: Reading


def tuned(run: Run, selector: str, progress: Progress) -> Tuned:
    """Searched on the first window, confirmed there exactly, measured on the held-out ones. Equal for equal seeds."""
    asked: Tune = run.parts["tune"]
    names = tunable(selector).names
    progress.say(
        f"searching {', '.join(names)} of `{selector}`: {asked.evaluations:,} evaluations on {asked.window_requests:,} "
        f"requests, the best {asked.confirmed} played exactly; held-out windows: {asked.held_out_windows}"
    )
    reading = Reading()
    training, *held_out = judges(
        run, selector, 1 + asked.held_out_windows, asked.window_requests, asked.skip_requests, asked.batch,
        reading=reading, progress=progress,
    )  # fmt: skip
    began = time.monotonic()
    found = _searched(training, asked, run.values.seed, progress)
    search_s = time.monotonic() - began
    candidates = found.best(asked.confirmed)
    progress.say(f"searched in {search_s:.1f} s")
    published = np.array(training.tunable.published)
    rows = _rows("tuned on", training, (published, *candidates), progress)
    chosen = min(rows, key=lambda row: row[3])[1]  # the published weights, if nothing beats them where it counts
    for number, judge in enumerate(held_out, 1):
        rows += _rows(f"held out {number}", judge, (published, chosen), progress)
    return Tuned(
        tunable=training.tunable, weights=chosen, found=found, rows=rows, search_s=search_s, reading=reading
    )  # fmt: skip


def _searched(on: Judge, asked: Tune, seed: int, progress: Progress) -> Found:
    """CMA-ES, told as it goes; what is compiled first has a stage of its own."""
    progress.stage("compiling the approximation")
    on.approximate(np.array([on.tunable.published]))
    progress.stage("searching", asked.evaluations)
    progress.advance(0, f"compiling for {asked.population} at once")
    least = np.inf

    def losses(weights: Floats) -> Floats:
        nonlocal least
        values = on.approximate(weights)
        least = min(least, float(values.min()))
        progress.advance(len(weights), f"least loss {least:.3f}")
        return values

    return cma_es(on.tunable, losses, evaluations=asked.evaluations, population=asked.population, seed=seed)


def _rows(
    name: str, judge: Judge, asked: Sequence[Floats], progress: Progress
) -> list[tuple[str, Floats, float, float, Tails]]:
    progress.stage(f"{name}, exactly", len(asked))
    rows = []
    for weights in asked:
        rows.append(_row(name, judge, weights))
        progress.advance(1, f"loss {rows[-1][3]:.3f}")
    return rows


def _row(name: str, judge: Judge, weights: Floats) -> tuple[str, Floats, float, float, Tails]:
    exact, own = judge.exact(weights)
    return name, weights, float(judge.approximate(weights[None])[0]), exact, own


def run(cfg: Mapping[str, Any], _comm: Any) -> int:
    """The tuned weights are printed, as overrides of a command, and left beside the run's configuration."""
    from kvshare_research import provenance, report
    from kvshare_research.config import check
    from kvshare_research.report.remarks import in_words

    checked = check(cfg, cfg.keys())
    selector = name_of("selector", checked.resolved["selector"]).rstrip("*")
    with report.progress(STAGES + checked.parts["tune"].held_out_windows) as bar:
        made = tuned(checked, selector, bar)
    table = [_plain(made.tunable, row) for row in made.rows]
    _show(table)
    if made.reading.refused:
        print(in_words(made.reading.refused, made.reading.reasons))
    held_out = [row["exact loss"] for row in table if row["window"].startswith("held") and not row["published"]]
    trained = min(row["exact loss"] for row in table if row["window"] == "tuned on")
    if held_out:
        print(f"loss {trained:.3f} where tuned, {np.mean(held_out):.3f} held out (1: as the published weights)")
    words = [f"selector.{n}={w:.4g}" for n, w in zip(made.tunable.names, made.weights, strict=True)]
    print(f"selector={selector} {' '.join(words)}")
    provenance.write_json(
        checked.folder / "tuned.json",
        {"selector": selector, "weights": dict(zip(made.tunable.names, made.weights.tolist(), strict=True)),
         "rows": table, "config": dict(checked.resolved)},
    )  # fmt: skip
    print(f"written to {checked.folder / 'tuned.json'}")
    return 0


def _plain(tunable: Tunable, row: tuple[str, Floats, float, float, Tails]) -> dict[str, Any]:
    window, weights, approximate, exact, own = row
    return {
        "window": window,
        "published": bool(np.allclose(weights, tunable.published)),
        "weights": [float(w) for w in weights],
        "approximate loss": approximate,
        "exact loss": exact,
        "TTFT p95 s": float(own.ttft_s[0]),
        "E2E p95 s": float(own.e2e_s[0]),
        "slip s": float(own.slip_s[0]),
    }


def _show(table: Sequence[Mapping[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table()
    for name in table[0]:
        shown.add_column(name)
    for row in table:
        cells = [value if isinstance(value, list) else [value] for value in row.values()]
        shown.add_row(*(" ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in cell) for cell in cells))
    Console().print(shown)
