"""What a run of `experiment=fidelity` says: rows per load and selector, and a figure, measured twice and simulated.

Up to a load of `JUDGED_MAX` TTFT is to be off by at most `ALLOWED`, or by what two runs differ. Above, an error of one
percent in the service time is one of ten in the queue: figures are shown and not judged.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from kvshare_research.metrics.fidelity import PARTS, Fidelity, fidelities, paired
from kvshare_research.metrics.records import CaseResult, load_results

ALLOWED = {"p50": 0.10, "p95": 0.20}
JUDGED_MAX = 0.7


def verdict(first: tuple[float, float], second: tuple[float, float], allowed: float) -> tuple[float, float, str]:
    """(relative error, spread of the two runs, word): the mean of two measured runs against the simulated value."""
    measured = (first[0] + second[0]) / 2
    spread = abs(first[0] - second[0]) / measured
    error = (first[1] + second[1]) / 2 / measured - 1
    return error, spread, "within" if abs(error) <= max(allowed, spread) else "OUTSIDE"


def rows(results: tuple[CaseResult, ...]) -> list[tuple[float, str, Fidelity, Fidelity]]:
    """(load, selector, first run, second run); KeyError where the results are not those of the study `fidelity`."""
    found = {(f.key.utilisation or 0.0, f.key.selector, dict(f.key.extra)["block"]): f for f in fidelities(results)}
    cells = sorted({cell[:2] for cell in found})
    return [(*cell, found[*cell, "first"], found[*cell, "second"]) for cell in cells]


def table(results: tuple[CaseResult, ...]) -> tuple[list[str], bool]:
    """Lines of Markdown, and whether all that is judged is within what is allowed."""
    lines = [
        "| load | selector | quantity | measured, ms | again | simulated | off | two runs differ by | verdict |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    good = True
    for load, name, first, second in rows(results):
        for quantile, allowed in ALLOWED.items():
            a, b = (getattr(run, f"{quantile}_us") for run in (first, second))
            error, spread, word = verdict(a, b, allowed)
            if load > JUDGED_MAX:
                word = "not judged"
            good &= word != "OUTSIDE"
            cells = f"{a[0] / 1e3:.0f} | {b[0] / 1e3:.0f} | {a[1] / 1e3:.0f} | {error:+.0%} | {spread:.0%} | {word}"
            lines.append(f"| {load} | `{name}` | TTFT {quantile} | {cells} |")
        for part, a, b in zip(PARTS, first.parts_us, second.parts_us, strict=True):
            if a[0] + b[0] == 0:
                continue
            error, spread, _ = verdict(a, b, 0.0)
            cells = f"{a[0] / 1e3:.1f} | {b[0] / 1e3:.1f} | {a[1] / 1e3:.1f} | {error:+.0%} | {spread:.0%} |"
            lines.append(f"| {load} | `{name}` | mean {part.removesuffix('_us')} | {cells} |")
    return lines, good


def draw(results: tuple[CaseResult, ...], path: Path) -> None:
    """Shares of requests answered within a time, a panel per load and selector, are at `path`."""
    from matplotlib.figure import Figure

    cells = sorted({(case.utilisation or 0.0, case.selector) for case in results if case.simulated})
    figure = Figure(figsize=(3 * len(cells), 2.6), layout="constrained", dpi=200)
    panels = np.atleast_1d(figure.subplots(1, len(cells), sharey=True))
    for panel, (load, name) in zip(panels, cells, strict=True):
        for case in (c for c in results if (c.utilisation, c.selector) == (load, name) and c.simulated):
            block = dict(case.extra)["block"]
            pairs = paired(case)
            share = (np.arange(len(pairs)) + 1) / len(pairs)
            panel.step(sorted(a.ttft_us / 1e3 for a, _ in pairs), share, label=f"measured, {block} run")
            if block == "first":
                panel.step(sorted(b.ttft_us / 1e3 for _, b in pairs), share, "k--", label="simulated")
        panel.set(title=f"{name}, load {load}", xlabel="TTFT, ms")
        panel.legend(fontsize=7)
    panels[0].set_ylabel("share of requests")
    figure.savefig(path)


def main(folder: Path) -> int:
    """Prints the table, draws beside the results; 1 if anything is outside."""
    results = load_results(folder / "results.json").cases
    lines, good = table(results)
    print("\n".join(lines))
    draw(results, folder / "fidelity.png")
    print(f"\n{folder / 'fidelity.png'}")
    return 0 if good else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m experiments.fidelity.judge outputs/fidelity/<hash>")
    sys.exit(main(Path(sys.argv[1])))
