"""What all figures share: style, colours that stay apart for the colour-blind and in black and white, and panels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kvshare_research.metrics.records import BASELINE, RECORDED, CaseKey, Label
from kvshare_research.metrics.statistics import Estimate
from kvshare_research.metrics.summary import Row

from .text import in_order, is_number, overlap_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A7F00")
PART_COLOURS = {
    "route": "#CC79A7",
    "queue": "#E69F00",
    "fetch": "#56B4E9",
    "prefill": "#0072B2",
    "merge": "#009E73",
    "held": "#D55E00",
    "other": "#999999",
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)))
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7.5,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "figure.dpi": 200,
}
UNSTEADY = "†"
WIDTH_IN = 7.0  # a double column
ROOM = 1.07  # of an axis, over its largest value: half a marker and more
PANELS_AT_MOST = 12  # in one figure; more settings make more figures

Panel = tuple[CaseKey, list[Row]]


def panels_of(rows: Sequence[Row]) -> list[Panel]:
    """Rows by setting (everything but the selector); the baseline first in each."""
    found: dict[CaseKey, list[Row]] = {}
    for row in rows:
        if row.done:
            found.setdefault(row.key._replace(selector=""), []).append(row)
    ordered = sorted(found.items(), key=lambda item: _place(item[0]))
    return [(key, sorted(members, key=lambda r: r.key.selector != BASELINE)) for key, members in ordered]


def _place(key: CaseKey) -> tuple[Any, ...]:
    return (
        list(Label).index(Label(key.label)),
        key.link,
        key.tenancy,
        key.utilisation or 0.0,
        key.overlap or 0.0,
        key.workload,
        in_order(key.extra),
    )


def title_of(key: CaseKey, panels: Sequence[Panel]) -> str:
    """What differs between panels, and always the label; the selector where a panel has one of its own."""
    if key.utilisation is not None:
        load = f"ρ = {key.utilisation:.2f}"
    else:
        idle = all(row.idle for k, members in panels if k == key for row in members)
        load = "idle" if idle else RECORDED
    head = load if key.overlap is None else f"{overlap_name(key.overlap)} overlap, {load}"
    lines = [key.selector] if key.selector else []
    lines += [head, f"{key.label}, {key.link}" if key.link else key.label]
    more = [key.tenancy] if len({k.tenancy for k, _ in panels}) > 1 else []
    more += [key.workload] if len({k.workload for k, _ in panels}) > 1 else []
    for name, value in key.extra:
        if _tells_apart(name, panels):
            more.append(f"{name} {grouped(float(value))}" if is_number(value) else value)
    return "\n".join([*lines, ", ".join(more)] if more else lines)


def _tells_apart(name: str, panels: Sequence[Panel]) -> bool:
    """Whether two panels would have one setting without this label."""
    keys = {k for k, _ in panels}
    return len({k._replace(extra=tuple(pair for pair in k.extra if pair[0] != name)) for k in keys}) < len(keys)


def from_zero(axis: Any, most: float) -> None:
    """An axis from 0 to a little above the largest value, so that no marker is cut. `axis` is an `xaxis` or `yaxis`."""
    axis.axes.set(**{f"{axis.axis_name}lim": (0.0, ROOM * most if most > 0 else 1.0)})


def top_us(estimate: Estimate) -> float:
    """The highest point that is drawn of an estimate."""
    return estimate.high if estimate.has_interval else estimate.value


def grouped(value: float, _position: int = 0) -> str:
    """A number for a label or a tick: thousands apart, no needless digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def plain_numbers(axis: Any, ticks: int) -> None:
    """At most so many ticks, in words that fit beside each other, where the axis is linear and has no names."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=max(2, ticks)))
    axis.set_major_formatter(FuncFormatter(grouped))


class Look(NamedTuple):
    """How a policy is drawn: no two of 64 have colour, marker and dashes alike."""

    colour: str
    marker: str
    dashes: Any


def look(number: int) -> Look:
    """The look of a selector's number (`looks_of`)."""
    turn = number + number // 8
    return Look(COLOURS[number % 8], MARKERS[turn % 8], DASHES[turn % 8])


def looks_of(rows: Sequence[Row]) -> dict[str, int]:
    """A number per selector, the same in every figure."""
    names = dict.fromkeys(r.key.selector for r in rows)
    return {name: i for i, name in enumerate(sorted(names, key=lambda n: n != BASELINE))}


def name_of(row: Row) -> str:
    """The selector, and whether its case is partial."""
    return f"{row.key.selector} (partial)" if row.partial else row.key.selector


def marked_name(row: Row) -> str:
    """`name_of`, with a mark where the case was not steady; for axes, as a legend is of several panels."""
    return f"{name_of(row)} {UNSTEADY}" if unsteady(row) else name_of(row)


def unsteady(row: Row) -> str:
    """Why the figures of this case depend on the run's length; else nothing."""
    return row.steadiness.trouble if row.steadiness else ""


def mark(axis: Axes, row: Row, x: float, y: float, colour: str) -> None:
    """The point has the mark of the tables if the case was not steady."""
    if unsteady(row):
        axis.annotate(
            UNSTEADY, (x, y), xytext=(3, 3), textcoords="offset points", fontsize=8, color=colour, annotation_clip=False
        )  # fmt: skip


def grid(
    panels: Sequence[Panel], draw: Callable[[Axes, list[Row]], None], heights: tuple[float, float], columns: int, x: str
) -> Iterator[Figure]:
    """Figures of panels, filled by `draw`; a line of panels is `heights` = (fixed, per selector) inches high."""
    from matplotlib.figure import Figure

    for start in range(0, len(panels), PANELS_AT_MOST):
        part = panels[start : start + PANELS_AT_MOST]
        across = min(columns, len(part))
        lines = [part[i : i + across] for i in range(0, len(part), across)]
        high = [heights[0] + heights[1] * max(len(members) for _, members in line) for line in lines]
        figure = Figure(figsize=(WIDTH_IN, 0.6 + sum(high)), layout="constrained")
        axes = figure.subplots(len(lines), across, squeeze=False, height_ratios=high)
        for axis in axes.flat[len(part) :]:
            axis.remove()
        for axis, (key, members) in zip(axes.flat, part, strict=False):
            axis.set_title(title_of(key, panels))
            draw(axis, members)
            plain_numbers(axis.xaxis, 6 - across)
        figure.supxlabel(x, fontsize=8)
        yield figure


def shared_legend(figure: Figure) -> None:
    """One legend above all panels, each text once."""
    handles = {text: h for axis in figure.axes for h, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    at_most = 6 if sum(map(len, handles)) < 80 else 4
    across = math.ceil(len(handles) / math.ceil(len(handles) / at_most))  # lines of about equal length
    figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=across, frameon=False)


def render(figure: Figure, kind: str) -> bytes:
    """The figure as `png` or `pdf`, without a time stamp: equal figures give equal bytes."""
    import io

    from matplotlib import rc_context

    out = io.BytesIO()
    metadata = {"CreationDate": None} if kind == "pdf" else {"Software": None}
    with rc_context(STYLE):
        figure.savefig(out, format=kind, metadata=metadata)
    figure.set_layout_engine("none")  # it is laid out now; the next format need not do it again
    return out.getvalue()
