"""Figures for papers of any run: one idea each, units on every axis, readable in black and white."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvshare_research.metrics.summary import Row
from kvshare_research.metrics.verdict import CLAIMS

from .canvas import (
    PART_COLOURS,
    STYLE,
    UNSTEADY,
    WIDTH_IN,
    from_zero,
    grid,
    look,
    looks_of,
    mark,
    marked_name,
    name_of,
    panels_of,
    shared_legend,
    top_us,
    unsteady,
)
from .plots_fleet import against_numbers, load_over_time, ttft_against_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


UNSTEADY_WORDS = f" {UNSTEADY}: not steady, so its figures depend on the run's length (the tables say why)."
SAVED_FLOOR = -50.0  # %: a point far below would press all others together


def ttft_by_policy(rows: Sequence[Row]) -> list[Figure]:
    """Median TTFT per selector with its 95 % interval, a panel per setting."""
    looks = looks_of(rows)

    def draw(axis: Axes, members: list[Row]) -> None:
        for place, row in enumerate(members):
            e, i = row.ttft.p50, looks[row.key.selector]
            ms = [x / 1000 for x in (e.value, e.low, e.high)]
            spread = [[ms[0] - ms[1]], [ms[2] - ms[0]]] if e.has_interval else None
            axis.errorbar(
                ms[0],
                place,
                xerr=spread,
                fmt=look(i).marker,
                color=look(i).colour,
                capsize=3,
                markersize=5,
                linewidth=1.4,
            )
        axis.set_yticks(range(len(members)), [f"{marked_name(r)}  n={r.ttft.samples}" for r in members])
        axis.set_ylim(len(members) - 0.5, -0.5)
        from_zero(axis.xaxis, max(top_us(r.ttft.p50) for r in members) / 1000)

    return list(grid(panels_of(rows), draw, (0.7, 0.17), 2, "TTFT p50, ms (95 % interval)"))


def ttft_cdf(rows: Sequence[Row]) -> list[Figure]:
    """Share of requests whose first token came within a time, a line per selector."""
    looks = looks_of(rows)

    def draw(axis: Axes, members: list[Row]) -> None:
        for row in members:
            i = looks[row.key.selector]
            axis.ecdf(
                np.array(row.ttft_samples_us) / 1000,
                color=look(i).colour,
                linestyle=look(i).dashes,
                label=name_of(row),
                lw=1.4,
            )
            mark(axis, row, row.ttft.p50.value / 1000, 0.36, look(i).colour)  # right of its line
        axis.set_ylabel("share of requests")
        axis.set_ylim(0, 1.03)
        from_zero(axis.xaxis, max(max(r.ttft_samples_us) for r in members) / 1000)

    figures = list(grid(panels_of(rows), draw, (1.8, 0.0), 3, "TTFT, ms"))
    for figure in figures:
        shared_legend(figure)
    return figures


def cost_parts(rows: Sequence[Row]) -> list[Figure]:
    """Where the mean TTFT went, predicted above what came, for every selector."""

    def draw(axis: Axes, members: list[Row]) -> None:
        places, names, most = [], [], 0.0
        for number, row in enumerate(members):
            for shift, parts, hatch in ((-0.2, row.quoted_us, "////"), (0.2, row.components_us, "")):
                left = 0.0
                for part, us in parts:
                    width = max(0.0, us) / 1000
                    axis.barh(
                        number + shift,
                        width,
                        0.36,
                        left=left,
                        color=PART_COLOURS[part],
                        hatch=hatch,
                        edgecolor="white",
                        linewidth=0.4,
                        label=part,
                    )
                    left += width
                most = max(most, left)
            places.append(number)
            names.append(marked_name(row))
        axis.set_yticks(places, names)
        axis.set_ylim(len(members) - 0.45, -0.55)
        from_zero(axis.xaxis, most)

    figures = list(grid(panels_of(rows), draw, (0.7, 0.26), 2, "mean TTFT, ms (hatched: predicted, solid: as run)"))
    for figure in figures:
        shared_legend(figure)
    return figures


def saved_by_overlap(rows: Sequence[Row]) -> list[Figure]:
    """Idle prefill latency saved against the overlap, with the bound and the note's ranges."""
    from matplotlib.figure import Figure

    shown = [r for r in rows if r.key.utilisation is None and r.savings and r.savings.prefill_share.known]
    shown = [r for r in shown if r.key.overlap is not None]
    if not shown:
        return []
    figure = Figure(figsize=(WIDTH_IN, 2.8), layout="constrained")
    axis = figure.subplots()
    for claim in CLAIMS:
        low, high = (100 * x for x in claim.latency)
        label = "the note's claim" if claim is CLAIMS[0] else None
        axis.bar(100 * claim.overlap, high - low, 5, bottom=low, color="#CCCCCC", label=label, zorder=1)
    axis.plot([0, 100], [0, 100], color="#000000", lw=1, label="bound: saved = overlap")
    groups: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in shown:
        groups.setdefault((row.key.selector, row.key.label, row.key.link, row.key.tenancy), []).append(row)
    lowest = min(100 * r.savings.prefill_share.low for r in shown if r.savings)
    floor = max(SAVED_FLOOR, min(0.0, lowest))
    for i, ((selector, label, link, tenancy), members) in enumerate(groups.items()):
        members.sort(key=lambda r: r.key.overlap or 0.0)
        estimates = [r.savings.prefill_share for r in members if r.savings]
        x = [100 * (r.key.overlap or 0.0) + 0.8 * (i - (len(groups) - 1) / 2) for r in members]
        y = [100 * e.value for e in estimates]
        spread = [[100 * (e.value - e.low) for e in estimates], [100 * (e.high - e.value) for e in estimates]]
        name = f"{selector} ({label}, {link}" + (f", {tenancy})" if len({g[3] for g in groups}) > 1 else ")")
        axis.errorbar(
            x,
            y,
            yerr=spread,
            fmt=look(i).marker,
            linestyle=look(i).dashes,
            color=look(i).colour,
            capsize=3,
            label=name,
            lw=1.2,
        )
        for at, saved in zip(x, y, strict=True):
            if saved < floor:
                axis.annotate(
                    f"{saved:.0f} %", (at, floor), xytext=(0, 14), textcoords="offset points", ha="center",
                    color=look(i).colour, fontsize=7, arrowprops={"arrowstyle": "->", "color": look(i).colour},
                )  # fmt: skip
    axis.set_xlabel("overlap, % of the prompt")
    axis.set_ylabel("prefill latency saved when idle, %")
    axis.set_xlim(0, 100)
    axis.set_ylim(floor, 103)
    if floor < 0:
        axis.axhline(0, color="#000000", lw=0.6, zorder=1)
    axis.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    return [figure]


def hit_tokens(rows: Sequence[Row]) -> list[Figure]:
    """Reused prompt tokens as share of all: by where they lay (upper bar) and by whose they were (lower bar)."""
    places = (("resident", "#0072B2"), ("routed", "#56B4E9"), ("pulled", "#E69F00"))
    owners = (("same tenant", "#009E73"), ("cross tenant", "#CC79A7"))

    def draw(axis: Axes, members: list[Row]) -> None:
        for number, row in enumerate(members):
            for shift, kinds in ((-0.2, places), (0.2, owners)):
                left = 0.0
                for kind, colour in kinds:
                    tokens = getattr(row.reuse, kind.replace(" ", "_"))
                    share = 100 * tokens / row.reuse.prompt if row.reuse.prompt else 0.0
                    axis.barh(
                        number + shift, share, 0.36, left=left, color=colour, edgecolor="white", lw=0.4, label=kind
                    )
                    left += share
        axis.set_yticks(range(len(members)), [marked_name(r) for r in members])
        axis.set_ylim(len(members) - 0.45, -0.55)
        axis.set_xlim(0, 100)

    figures = list(grid(panels_of(rows), draw, (0.7, 0.26), 2, "% of prompt tokens reused"))
    for figure in figures:
        shared_legend(figure)
    return figures


FIGURES: tuple[tuple[str, str, Callable[[Sequence[Row]], list[Figure]]], ...] = (
    ("ttft_by_policy", "Time to first token, median with 95 % interval. Lower is better.", ttft_by_policy),
    ("ttft_cdf", "Share of requests whose first token came within a time. Further left is better.", ttft_cdf),
    (
        "cost_parts",
        "Where the mean time to first token went: predicted (hatched) above what came. Fetch is the part that was not "
        "hidden behind prefill; other is what no part explains.",
        cost_parts,
    ),
    (
        "saved_by_overlap",
        "Prefill latency saved when idle. No idle run can lie above the line; the grey boxes are the note's claim. "
        "Below 0 reuse took longer than computing; what lies under the lower edge has its number there.",
        saved_by_overlap,
    ),
    (
        "hit_tokens",
        "Prompt tokens that were reused: by where they lay (upper bar) and by whom they were first computed for "
        "(lower bar).",
        hit_tokens,
    ),
    (
        "load_over_time",
        "Requests on each node (sent there and not ended) over the run, a line per node; of many nodes the least, the "
        "mean and the most. Imbalance: the mean of the busiest node over that of all. First seed.",
        load_over_time,
    ),
    (
        "ttft_against_bytes",
        "What moving bytes bought: median time to first token against bytes moved per request. On the line are those "
        "that none beats in both; further left and lower is better.",
        ttft_against_bytes,
    ),
    (
        "against",
        "Reuse and median time to first token against what a sweep varied, with 95 % intervals.",
        against_numbers,
    ),
)


def draw_all(rows: Sequence[Row]) -> list[tuple[str, str, Figure]]:
    """(file stem, caption, figure) of everything there are numbers for; no figure without finished requests."""
    from matplotlib import rc_context

    drawn = []
    with rc_context(STYLE):
        for stem, words, make in FIGURES:
            figures = make(rows)
            caption = words + UNSTEADY_WORDS if any(unsteady(row) for row in rows) else words
            for number, figure in enumerate(figures, 1):
                drawn.append((stem if len(figures) == 1 else f"{stem}_{number}", caption, figure))
    return drawn
