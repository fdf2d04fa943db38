"""Numbers and names as people read them: units, three significant digits, intervals in brackets."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from kvshare_research.metrics.records import RECORDED, CaseKey
from kvshare_research.metrics.statistics import Estimate

NOTHING = "–"


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits without exponent between 0.001 and a million; a dash for what is not known."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def count(value: int) -> str:
    """A whole number with separators."""
    return f"{value:,}"


def percent(share: float | None) -> str:
    """A share as percent, one decimal below 10 %, two below 1 %."""
    if share is None or math.isnan(share):
        return NOTHING
    scaled = 100 * share
    decimals = 0 if abs(scaled) >= 10 else 1 if abs(scaled) >= 1 or scaled == 0 else 2
    return f"{scaled:.{decimals}f} %"


def _bracket(estimate: Estimate, low: str, high: str) -> str:
    return f" [{low}, {high}]" if estimate.has_interval else ""


class TimeUnit(NamedTuple):
    """What times in a column are told in."""

    name: str
    us: float


MILLISECONDS, SECONDS = TimeUnit("ms", 1e3), TimeUnit("s", 1e6)
_LONG_US = 1e8  # from here on people count in seconds


def unit_for(times_us: Iterable[float | None]) -> TimeUnit:
    """Seconds where one of the times lies above 10^5 ms."""
    return SECONDS if any(time is not None and time > _LONG_US for time in times_us) else MILLISECONDS


def duration(estimate: Estimate, unit: TimeUnit = MILLISECONDS) -> str:
    """An estimate in us as `value [low, high]` in the unit."""
    if not estimate.known:
        return NOTHING
    value, low, high = (number(x / unit.us) for x in (estimate.value, estimate.low, estimate.high))
    return value + _bracket(estimate, low, high)


def percent_estimate(estimate: Estimate | None) -> str:
    """A share as `% [low, high]`."""
    if estimate is None or not estimate.known:
        return NOTHING
    low, high = (f"{100 * x:.0f}" for x in (estimate.low, estimate.high))
    return percent(estimate.value) + _bracket(estimate, low, high)


def factor(estimate: Estimate | None) -> str:
    """A ratio as `1.8x [1.6, 2.0]`."""
    if estimate is None or not estimate.known:
        return NOTHING
    return f"{number(estimate.value)}x" + _bracket(estimate, number(estimate.low), number(estimate.high))


def load_name(key: CaseKey) -> str:
    """`idle`, that a trace was played as it is, or the utilisation."""
    if key.utilisation is not None:
        return f"ρ {key.utilisation:.2f}"
    return RECORDED if key.recorded else "idle"


def overlap_name(overlap: float | None) -> str:
    """The dialled overlap in percent."""
    return NOTHING if overlap is None else f"{overlap:.0%}".replace("%", " %")


def key_fields(key: CaseKey) -> dict[str, str]:
    """What names a case, by column name, selector last."""
    fields = {"workload": key.workload or NOTHING, "overlap": overlap_name(key.overlap)}
    fields |= {"load": load_name(key), "link": key.link, "tenancy": key.tenancy}
    return fields | dict(key.extra) | {"selector": key.selector}


def varying(keys: list[CaseKey]) -> list[str]:
    """Names of the fields in which these keys differ; the selector always."""
    rows = [key_fields(k) for k in keys]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [n for n in names if n == "selector" or len({row.get(n, NOTHING) for row in rows}) > 1]


def is_number(text: str) -> bool:
    """Whether a label is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def in_order(extra: tuple[tuple[str, str], ...]) -> list[tuple[str, float, str]]:
    """What further labels are sorted by: numbers by their value, the rest by their letters."""
    return [(name, float(value) if is_number(value) else 0.0, value) for name, value in extra]


def setting(key: CaseKey) -> str:
    """A case in words, without its selector."""
    overlap = "" if key.overlap is None else f"{overlap_name(key.overlap)} overlap, "
    load = load_name(key).replace("ρ", "utilisation")
    extra = "".join(f", {name} {value}" for name, value in key.extra)
    return f"{overlap}{load}, link {key.link}, tenancy {key.tenancy}{extra} ({key.label})"
