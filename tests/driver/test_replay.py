"""Replay finds out who decides by anything but the recorded inputs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(hash_seed: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize("name", ["Sound", "ReadsTheClock", "IteratesOverASet", "DriverDecides"])
def test_a_machine_that_decides_by_something_else_is_found_out(name: str, tmp_path: Path) -> None:
    """Paired: the shipped router replays without a mismatch in another process with another hash seed; a clock, the
    order of a set, and a driver that decides do not."""
    log = tmp_path / "router.log"
    recorded = run(1, "tests.driver.mutants", name, str(log))
    assert recorded.returncode == 0, recorded.stderr
    replayed = run(2, "kvshare_research.driver.replay", str(log))
    (count,) = re.findall(r"(\d+) mismatches", replayed.stdout)

    assert (int(count) == 0) == (name == "Sound"), replayed.stdout + replayed.stderr
    assert replayed.returncode == (name != "Sound")
