"""Every simulated case of an experiment says whether it was steady, and the table says it of all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments import table
from experiments.fleet import play, setting
from experiments.mooncake_bandwidth.run import FLEET, prompts


def test_an_overloaded_fleet_is_flagged_and_one_at_half_load_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, recomputed, that ask for 1.28 of what 8 nodes can do: once slower, once faster."""
    monkeypatch.setattr(table, "CONDITIONS", [])
    monkeypatch.setattr("experiments.fleet.CONDITIONS", table.CONDITIONS)
    given, run_of = prompts(400), setting(*FLEET)
    for speed in (0.4, 2.0):
        play(run_of, [replace(p, arrival_us=int(p.arrival_us / speed)) for p in given], "recompute_always")
    half, over = (steady for _, steady in table.CONDITIONS)
    assert half is not None
    assert over is not None
    assert half.left_out == over.left_out == 40
    assert half.trouble == ""
    assert over.trouble == "saturated"
    assert table.conditions() == "Of 2 simulated cases 1 were steady; 2 (RecomputeAlways) saturated."
