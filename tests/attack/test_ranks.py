"""The attack on real ranks: what does not depend on a clock comes out as in the simulator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvshare_research.attack.experiment import CASES
from kvshare_research.attack.ranks import NAMES

SMALL = ("secrets=5", "secrets_open=5", "secrets_group=5", "secret_blocks=4", "contention_trials=2")


def test_the_cases_are_those_of_the_simulator() -> None:
    known = {case.name: case for case in CASES}
    assert set(NAMES) <= set(known)
    assert {known[name].withstands for name in NAMES} == {True, False, None}


@pytest.mark.mpi
@pytest.mark.xdist_group("mpi")
def test_on_ranks_reuse_tells_the_secret_without_a_guard_and_nothing_with_one(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    out = tmp_path / "rows.json"
    settings = [
        "selector=route_to_longest_prefix",
        *(f"attack.{s}" for s in (*SMALL, f"out={out}")),
    ]  # no clock decides
    command = [sys.executable, "-m", "kvshare_research.attack.ranks", f"cache_root={tmp_path}", *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert out.exists(), done.stderr
    auc = {(row["guard"], row["signal"]): row["power"]["auc"] for row in json.loads(out.read_text())}
    assert {guard for guard, _ in auc} == set(NAMES)
    reused = {guard: value for (guard, signal), value in auc.items() if signal == "reused tokens"}
    group = "layered, secret in a group's text"
    assert reused["one_group"] == reused[group] == 1
    shaped = [guard for guard in NAMES if guard.endswith(("constant shape", "padded"))]
    assert len(shaped) == 3
    assert [reused[guard] for guard in ("layered", *shaped)] == [0.5] * 4
    assert [auc[guard, "served by"] for guard in shaped] == [0.5] * 3
