"""Figures of fleets and sweeps: load over time, what moved bytes bought, and figures against what was varied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvshare_research.metrics.records import CaseKey
from kvshare_research.metrics.statistics import Estimate
from kvshare_research.metrics.summary import Row

from .canvas import (
    STYLE,
    UNSTEADY,
    WIDTH_IN,
    Panel,
    from_zero,
    grid,
    grouped,
    look,
    looks_of,
    mark,
    name_of,
    panels_of,
    plain_numbers,
    shared_legend,
    title_of,
    top_us,
    unsteady,
)
from .text import is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NODE_LINES = 6  # of more nodes, their spread
TICKS_NAMED = 6  # so many values of a sweep are named on its axis
MEGABYTE = 1e6


def load_over_time(rows: Sequence[Row]) -> list[Figure]:
    """Requests on every node over time, a panel per setting and selector; nothing for idle runs."""
    panels = [(row.key, [row]) for _, members in panels_of(rows) for row in members if row.node_load is not None]

    def draw(axis: Axes, members: list[Row]) -> None:
        load = members[0].node_load
        assert load is not None
        requests = np.array(load.requests)
        seconds = (np.arange(requests.shape[1]) + 0.5) * load.step_us / 1e6
        if len(requests) <= NODE_LINES:
            for node, line in enumerate(requests):
                shape = look(node)
                axis.plot(seconds, line, color=shape.colour, ls=shape.dashes, lw=1.1, label=f"node {node}")
        else:
            spread = requests.min(axis=0), requests.max(axis=0)
            axis.fill_between(seconds, *spread, color="#56B4E9", alpha=0.5, lw=0, label="least to most loaded node")
            axis.plot(seconds, requests.mean(axis=0), color="#000000", lw=1.1, label="mean of nodes")
        trouble = unsteady(members[0])
        remark = f"\n{UNSTEADY} {trouble}" if trouble else ""
        axis.text(
            0.98, 0.96, f"imbalance {load.imbalance:.2f}{remark}", transform=axis.transAxes, ha="right", va="top",
            fontsize=7, bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1},
        )  # fmt: skip
        axis.set_ylabel("requests on the node")
        axis.set_xlim(0, seconds[-1])
        axis.set_ylim(0, max(1.0, float(requests.max())) * (1.5 if trouble else 1.25))

    figures = list(grid(panels, draw, (1.7, 0.0), 3, "time, s"))
    for figure in figures:
        shared_legend(figure)
    return figures


def ttft_against_bytes(rows: Sequence[Row]) -> list[Figure]:
    """Median TTFT against bytes moved per request, a point per selector, the best of each on a line.

    Settings in which nobody moved a byte, or with one selector only, are left out.
    """
    panels = [(key, m) for key, m in panels_of(rows) if len(m) > 1 and any(r.wire_bytes for r in m)]
    looks = looks_of(rows)

    def draw(axis: Axes, members: list[Row]) -> None:
        points = [(r.wire_bytes / max(1, r.done) / MEGABYTE, r.ttft.p50.value / 1e3) for r in members]
        front = pareto(points)
        axis.plot(*zip(*front, strict=True), color="#999999", lw=1, drawstyle="steps-post", zorder=1)
        for row, (x, y) in zip(members, points, strict=True):
            shape, e = look(looks[row.key.selector]), row.ttft.p50
            spread = [[y - e.low / 1e3], [e.high / 1e3 - y]] if e.has_interval else None
            axis.errorbar(
                x, y, yerr=spread, fmt=shape.marker, color=shape.colour, capsize=2, markersize=5, lw=1.2,
                label=name_of(row),
            )  # fmt: skip
            mark(axis, row, x, y, shape.colour)
        axis.set_ylabel("TTFT p50, ms")
        axis.margins(x=0.08)
        from_zero(axis.yaxis, max(top_us(r.ttft.p50) for r in members) / 1e3)
        plain_numbers(axis.yaxis, 5)

    figures = list(grid(panels, draw, (2.0, 0.0), 3, "bytes moved per request, MB"))
    for figure in figures:
        shared_legend(figure)
    return figures


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other is at least as good as in both and better in one, by the first coordinate."""
    kept: list[tuple[float, float]] = []
    for point in sorted(set(points)):
        if not kept or point[1] < kept[-1][1]:
            kept.append(point)
    return kept


def varied(rows: Sequence[Row]) -> list[str]:
    """Labels of a sweep whose values are numbers and differ, such as `driver.pool_tokens`."""
    values: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.key.extra:
            values.setdefault(name, set()).add(value)
    return [name for name, found in values.items() if len(found) > 1 and all(map(is_number, found))]


def against_numbers(rows: Sequence[Row]) -> list[Figure]:
    """Per varied number a figure: reused share above, median TTFT below, a line per selector, a column per setting."""
    return [_against(rows, name) for name in varied(rows)]


def _against(rows: Sequence[Row], name: str) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    found: dict[CaseKey, list[Row]] = {}
    for row in rows:
        if row.done and name in dict(row.key.extra):
            rest = tuple(pair for pair in row.key.extra if pair[0] != name)
            found.setdefault(row.key._replace(selector="", extra=rest), []).append(row)
    panels: list[Panel] = list(found.items())
    looks = looks_of(rows)
    figure = Figure(figsize=(max(WIDTH_IN, 2.2 * len(panels)), 4.6), layout="constrained")
    axes = figure.subplots(2, len(panels), squeeze=False, sharex="col", sharey="row")
    for (above, below), (key, members) in zip(axes.T, panels, strict=True):
        above.set_title(title_of(key, panels))
        for selector in dict.fromkeys(r.key.selector for r in members):
            line = sorted((r for r in members if r.key.selector == selector), key=lambda r: _number(r, name))
            at = [_number(r, name) for r in line]
            label = name_of(line[0])
            _line(above, at, [r.reuse_share for r in line], 100.0, looks[selector], label)
            _line(below, at, [r.ttft.p50 for r in line], 1e-3, looks[selector], label)
            for x, row in zip(at, line, strict=True):
                mark(below, row, x, row.ttft.p50.value / 1e3, look(looks[selector]).colour)
        numbers = sorted({_number(r, name) for r in members})
        if numbers[0] > 0 and numbers[-1] / numbers[0] > 8:
            below.set_xscale("log")
            below.xaxis.set_major_formatter(FuncFormatter(grouped))
            if len(numbers) <= TICKS_NAMED:
                below.set_xticks(numbers)
                below.set_xticks([], minor=True)
        else:
            plain_numbers(below.xaxis, 5)
        plain_numbers(below.yaxis, 5)
    done = [row for _, members in panels for row in members]
    from_zero(axes[0, 0].yaxis, max(100 * top_us(r.reuse_share) for r in done))
    from_zero(axes[1, 0].yaxis, max(top_us(r.ttft.p50) for r in done) / 1e3)
    axes[0, 0].set_ylabel("prompt tokens reused, %")
    axes[1, 0].set_ylabel("TTFT p50, ms")
    figure.supxlabel(name, fontsize=STYLE["font.size"])
    shared_legend(figure)
    return figure


def _number(row: Row, name: str) -> float:
    return float(dict(row.key.extra)[name])


def _line(axis: Axes, at: list[float], estimates: list[Estimate], scale: float, number: int, label: str) -> None:
    shape = look(number)
    y = [scale * e.value for e in estimates]
    spread = [
        [scale * (e.value - e.low) if e.has_interval else 0.0 for e in estimates],
        [scale * (e.high - e.value) if e.has_interval else 0.0 for e in estimates],
    ]
    axis.errorbar(
        at, y, yerr=spread, marker=shape.marker, ls=shape.dashes, color=shape.colour, capsize=2, markersize=4, lw=1.2,
        label=label, clip_on=False,  # a marker at 0 is whole
    )  # fmt: skip
