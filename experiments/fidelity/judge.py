"""What a run of `experiment=fidelity` says: a table per selector and a figure of TTFT, measured twice and simulated."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from kvshare_research.metrics.fidelity import PARTS, Fidelity, fidelities, paired
from kvshare_research.metrics.records import CaseResult, load_results

ALLOWED = {"p50": 0.10, "p95": 0.20}


def verdict(first: tuple[float, float], second: tuple[float, float], allowed: float) -> tuple[float, float, str]:
    """(relative error, spread of the two runs, word): the mean of two measured runs against the simulated value."""
    measured = (first[0] + second[0]) / 2
    spread = abs(first[0] - second[0]) / measured
    error = (first[1] + second[1]) / 2 / measured - 1
    return error, spread, "within" if abs(error) <= max(allowed, spread) else "OUTSIDE"


def rows(results: tuple[CaseResult, ...]) -> list[tuple[str, Fidelity, Fidelity]]:
    """(selector, first run, second run); KeyError where the results are not those of the study `fidelity`."""
    found = {(f.key.selector, dict(f.key.extra)["block"]): f for f in fidelities(results)}
    return [(name, found[name, "first"], found[name, "second"]) for name in dict.fromkeys(s for s, _ in found)]


def table(results: tuple[CaseResult, ...]) -> tuple[list[str], bool]:
    """Lines of Markdown, and whether all is within what is allowed."""
    lines = [
        "| selector | quantity | measured, ms | again | simulated | off | two runs differ by | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    good = True
    for name, first, second in rows(results):
        for quantile, allowed in ALLOWED.items():
            a, b = (getattr(run, f"{quantile}_us") for run in (first, second))
            error, spread, word = verdict(a, b, allowed)
            good &= word == "within"
            cells = f"{a[0] / 1e3:.0f} | {b[0] / 1e3:.0f} | {a[1] / 1e3:.0f} | {error:+.0%} | {spread:.0%} | {word}"
            lines.append(f"| `{name}` | TTFT {quantile} | {cells} |")
        for part, a, b in zip(PARTS, first.parts_us, second.parts_us, strict=True):
            cells = f"{a[0] / 1e3:.1f} | {b[0] / 1e3:.1f} | {a[1] / 1e3:.1f} | | |"
            lines.append(f"| `{name}` | mean {part.removesuffix('_us')} | {cells} |")
    return lines, good


def draw(results: tuple[CaseResult, ...], path: Path) -> None:
    """Shares of requests answered within a time, a panel per selector, is at `path`."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(case.selector for case in results if case.simulated))
    figure = Figure(figsize=(3.5 * len(names), 2.6), layout="constrained", dpi=200)
    panels = np.atleast_1d(figure.subplots(1, len(names), sharey=True))
    for panel, name in zip(panels, names, strict=True):
        for case in (c for c in results if c.selector == name and c.simulated):
            block = dict(case.extra)["block"]
            pairs = paired(case)
            share = (np.arange(len(pairs)) + 1) / len(pairs)
            panel.step(sorted(a.ttft_us / 1e3 for a, _ in pairs), share, label=f"measured, {block} run")
            if block == "first":
                panel.step(sorted(b.ttft_us / 1e3 for _, b in pairs), share, "k--", label="simulated")
        panel.set(title=name, xlabel="TTFT, ms")
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
