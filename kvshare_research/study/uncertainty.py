"""How well the measured costs of a run are known: each coefficient with two intervals, for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvshare_research.core.errors import ConfigError
from kvshare_research.cost.calibration import Calibration

Known = dict[str, Any]  # name, unit, value, hessian and bootstrap as [low, high]; None: no upper end
UNITS = {
    "per launch": ("ms", 1e-3),
    "per new token": ("us", 1.0),
    "per cached token": ("us", 1.0),
    "per pair of tokens": ("ns", 1e3),
    "per token": ("ms", 1e-3),
    "per token and token of context": ("ns", 1e3),
    "round trip": ("us", 1.0),
    "per byte": ("ps", 1e6),
}


def known(made: Calibration, links: Mapping[str, Sequence[Sequence[int]]]) -> list[Known]:
    """A row per coefficient of prefill, decode and each measured link setting; what cannot be fitted is left out.

    Fitted by gradient to all measured points, also those that the served coefficients never saw. `links` are samples of
    [source, reader, bytes, us], all directions of one setting pooled.
    """
    import numpy as np

    from kvshare_research.cost.gradient import fit, prefill_columns

    found: list[Known] = []

    def add(what: str, columns: Any, us: Any, names: Sequence[str], shapes: Sequence[Any]) -> None:
        try:
            rows = fit(columns, np.maximum(us, 0.5), names, shapes)
        except ConfigError:  # too few shapes were measured
            return
        for row in rows:
            unit, scale = UNITS[row.name]
            named: Known = {"name": f"{what}, {row.name}", "unit": unit, "value": row.value * scale}
            for kind in ("hessian", "bootstrap"):
                named[kind] = [float(v) * scale if np.isfinite(v) else None for v in getattr(row, kind)]
            found.append(named)

    if made.points:
        new, cached, us = np.array(made.points, np.float64).T
        columns, names = prefill_columns(new, cached)
        add("prefill", columns, us, names, [point[:2] for point in made.points])
    if made.decode_points:
        count, context, us = np.array(made.decode_points, np.float64).T
        columns = np.stack([count, count * (context + (count - 1) / 2)], axis=1)
        add("decode", columns, us, ("per token", "per token and token of context"), range(len(us)))
    for name, samples in links.items():
        size, us = np.array([row[2:] for row in samples], np.float64).reshape(-1, 2).T
        columns = np.stack([np.ones_like(size), size], axis=1)
        add(f"link {name}", columns, us, ("round trip", "per byte"), range(len(us)))
    return found
