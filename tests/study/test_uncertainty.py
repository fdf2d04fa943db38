"""The calibration table: a row per coefficient that the points can tell anything about, inside its own interval."""

from __future__ import annotations

import numpy as np

from kvshare_research.cost.calibration import Calibration
from kvshare_research.report.content import calibration_table
from kvshare_research.study.uncertainty import known


def test_what_was_measured_is_told_with_intervals() -> None:
    chance = np.random.default_rng(0)

    def noisy(us: float) -> int:
        return round(us * np.exp(0.03 * chance.standard_normal()))

    points = tuple(
        (s, k, noisy(2_000 + 90 * s + 2 * k)) for s in (16, 64, 256, 512) for k in (0, 128, 512) for _ in range(3)
    )
    decodes = tuple((4, k, noisy(4 * (9_000 + 3 * k))) for k in (16, 2_000) for _ in range(3))
    links = {"wan": [[0, 1, size, noisy(20_000 + size * 0.008)] for size in (0, 1_000_000) for _ in range(6)]}
    rows = known(Calibration(points=points, decode_points=decodes), links)
    found = {row["name"]: row for row in rows}
    assert len(found) == 4 + 2 + 2
    for name, truth in (
        ("prefill, per new token", 90.0),
        ("decode, per token", 9.0),
        ("link wan, round trip", 20_000.0),
        ("link wan, per byte", 8_000.0),
    ):
        assert abs(found[name]["value"] / truth - 1) < 0.2
        assert found[name]["hessian"][0] <= found[name]["value"] <= found[name]["hessian"][1]
    (table,) = calibration_table(rows)
    assert len(table.rows) == 8
    assert calibration_table([]) == []


def test_nothing_measured_gives_no_row() -> None:
    assert known(Calibration(), {}) == []
