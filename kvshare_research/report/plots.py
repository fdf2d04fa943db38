"""Figures for papers: one idea each, units on every axis, colours of Okabe and Ito, readable in black and white."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kvshare_research.metrics.records import BASELINE, CaseKey, Label
from kvshare_research.metrics.summary import Row
from kvshare_research.metrics.verdict import CLAIMS

from .text import overlap_name

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
WIDTH_IN = 7.0  # a double column
PANELS_AT_MOST = 12  # in one figure; more settings make more figures

Panel = tuple[CaseKey, list[Row]]


def _panels(rows: Sequence[Row]) -> list[Panel]:
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
        key.extra,
    )


def _title(key: CaseKey, panels: Sequence[Panel]) -> str:
    """What differs between panels, and always the label."""
    load = "idle" if key.utilisation is None else f"ρ = {key.utilisation:.2f}"
    head = load if key.overlap is None else f"{overlap_name(key.overlap)} overlap, {load}"
    lines = [head, f"{key.label}, {key.link}" if key.link else key.label]
    more = [key.tenancy] if len({k.tenancy for k, _ in panels}) > 1 else []
    more += [value for name, value in key.extra if len({dict(k.extra).get(name) for k, _ in panels}) > 1]
    return "\n".join([*lines, ", ".join(more)] if more else lines)


def _looks(rows: Sequence[Row]) -> dict[str, int]:
    """A number per selector, the same in every figure."""
    names = dict.fromkeys(r.key.selector for r in rows)
    return {name: i for i, name in enumerate(sorted(names, key=lambda n: n != BASELINE))}


def _name(row: Row) -> str:
    return f"{row.key.selector} (partial)" if row.partial else row.key.selector


def _grid(
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
            axis.set_title(_title(key, panels))
            draw(axis, members)
        figure.supxlabel(x, fontsize=8)
        yield figure


def ttft_by_policy(rows: Sequence[Row]) -> list[Figure]:
    """Median TTFT per selector with its 95 % interval, a panel per setting."""
    looks = _looks(rows)

    def draw(axis: Axes, members: list[Row]) -> None:
        for place, row in enumerate(members):
            e, i = row.ttft.p50, looks[row.key.selector]
            ms = [x / 1000 for x in (e.value, e.low, e.high)]
            spread = [[ms[0] - ms[1]], [ms[2] - ms[0]]] if e.has_interval else None
            axis.errorbar(
                ms[0],
                place,
                xerr=spread,
                fmt=MARKERS[i % 8],
                color=COLOURS[i % 8],
                capsize=3,
                markersize=5,
                linewidth=1.4,
            )
        axis.set_yticks(range(len(members)), [f"{_name(r)}  n={r.ttft.samples}" for r in members])
        axis.set_ylim(len(members) - 0.5, -0.5)
        axis.set_xlim(left=0)

    return list(_grid(_panels(rows), draw, (0.7, 0.17), 2, "TTFT p50, ms (95 % interval)"))


def ttft_cdf(rows: Sequence[Row]) -> list[Figure]:
    """Share of requests whose first token came within a time, a line per selector."""
    looks = _looks(rows)

    def draw(axis: Axes, members: list[Row]) -> None:
        for row in members:
            i = looks[row.key.selector]
            axis.ecdf(
                np.array(row.ttft_samples_us) / 1000,
                color=COLOURS[i % 8],
                linestyle=DASHES[i % 8],
                label=_name(row),
                lw=1.4,
            )
        axis.set_ylabel("share of requests")
        axis.set_xlim(left=0)

    figures = list(_grid(_panels(rows), draw, (1.8, 0.0), 3, "TTFT, ms"))
    for figure in figures:
        _shared_legend(figure)
    return figures


def _shared_legend(figure: Figure) -> None:
    handles = {text: h for axis in figure.axes for h, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(
        list(handles.values()), list(handles), loc="outside upper center", ncols=min(6, len(handles)), frameon=False
    )


def cost_parts(rows: Sequence[Row]) -> list[Figure]:
    """Where the mean TTFT went, predicted above measured, for every selector."""

    def draw(axis: Axes, members: list[Row]) -> None:
        places, names = [], []
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
            places.append(number)
            names.append(_name(row))
        axis.set_yticks(places, names)
        axis.set_ylim(len(members) - 0.45, -0.55)

    figures = list(_grid(_panels(rows), draw, (0.7, 0.26), 2, "mean TTFT, ms (hatched: predicted, solid: as run)"))
    for figure in figures:
        _shared_legend(figure)
    return figures


def saved_by_overlap(rows: Sequence[Row]) -> list[Figure]:
    """Idle prefill latency saved against the dialled overlap, with the bound and the note's ranges."""
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
            fmt=MARKERS[i % 8],
            linestyle=DASHES[i % 8],
            color=COLOURS[i % 8],
            capsize=3,
            label=name,
            lw=1.2,
        )
    axis.set_xlabel("overlap dialled, % of the prompt")
    axis.set_ylabel("prefill latency saved when idle, %")
    axis.set_xlim(0, 100)
    axis.set_ylim(min(0.0, *(100 * r.savings.prefill_share.low for r in shown if r.savings)), 100)
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
        axis.set_yticks(range(len(members)), [_name(r) for r in members])
        axis.set_ylim(len(members) - 0.45, -0.55)
        axis.set_xlim(0, 100)

    figures = list(_grid(_panels(rows), draw, (0.7, 0.26), 2, "% of prompt tokens reused"))
    for figure in figures:
        _shared_legend(figure)
    return figures


FIGURES: tuple[tuple[str, str, Callable[[Sequence[Row]], list[Figure]]], ...] = (
    ("ttft_by_policy", "Time to first token, median with 95 % interval. Lower is better.", ttft_by_policy),
    ("ttft_cdf", "Share of requests whose first token came within a time. Further left is better.", ttft_cdf),
    (
        "cost_parts",
        "Where the mean time to first token went: predicted (hatched) above measured. Fetch is the part that was not "
        "hidden behind prefill; other is what no part explains.",
        cost_parts,
    ),
    (
        "saved_by_overlap",
        "Prefill latency saved when idle. No idle run can lie above the line; the grey boxes are the note's claim.",
        saved_by_overlap,
    ),
    (
        "hit_tokens",
        "Prompt tokens that were reused: by where they lay (upper bar) and by whom they were first computed for "
        "(lower bar).",
        hit_tokens,
    ),
)


def draw_all(rows: Sequence[Row]) -> list[tuple[str, str, Figure]]:
    """(file stem, caption, figure) of everything there are numbers for; no figure without finished requests."""
    from matplotlib import rc_context

    drawn = []
    with rc_context(STYLE):
        for stem, caption, make in FIGURES:
            figures = make(rows)
            for number, figure in enumerate(figures, 1):
                drawn.append((stem if len(figures) == 1 else f"{stem}_{number}", caption, figure))
    return drawn


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
