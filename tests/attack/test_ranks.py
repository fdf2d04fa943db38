"""The attack on real ranks: what does not depend on a clock comes out as in the simulator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvshare_research.attack.experiment import CASES
from kvshare_research.attack.ranks import NAMES, Told
from kvshare_research.attack.scores import power

SMALL = ("secrets=5", "secrets_open=5", "secret_blocks=4", "contention_trials=2")


def test_answers_of_one_shape_say_nothing() -> None:
    draw = np.random.default_rng(0)
    seen = Told(ttft_us=draw.uniform(1, 9, (50, 4)), elsewhere=np.eye(50, 4), reused_tokens=np.eye(50, 4))
    shaped = seen.shaped(9.0)
    assert power(-shaped.ttft_us, 0).auc == power(shaped.elsewhere, 0).auc == power(shaped.reused_tokens, 0).auc == 0.5
    assert power(-seen.shaped(0.0).ttft_us, 0).auc == power(-seen.ttft_us, 0).auc, "what is late stays late"


def test_the_cases_are_those_of_the_simulator() -> None:
    known = {case.name: case for case in CASES}
    assert set(NAMES) <= set(known)
    assert {known[name].withstands for name in NAMES} == {True, False, None}


@pytest.mark.mpi
@pytest.mark.xdist_group("mpi")
def test_on_ranks_reuse_tells_the_secret_without_a_guard_and_nothing_with_one(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    out = tmp_path / "rows.json"
    settings = [f"attack.{s}" for s in (*SMALL, f"out={out}")]
    command = [sys.executable, "-m", "kvshare_research.attack.ranks", f"cache_root={tmp_path}", *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert out.exists(), done.stderr
    auc = {(row["guard"], row["signal"]): row["power"]["auc"] for row in json.loads(out.read_text())}
    assert {guard for guard, _ in auc} == set(NAMES)
    reused = {guard: value for (guard, signal), value in auc.items() if signal == "reused tokens"}
    group = "layered, secret in a group's text"
    assert reused["one_group"] == reused[group] == 1
    assert reused["layered"] == reused["layered, constant shape"] == reused[f"{group}, constant shape"] == 0.5
    assert auc["layered, constant shape", "served by"] == 0.5
