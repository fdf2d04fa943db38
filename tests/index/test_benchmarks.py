"""The benchmarks of a decision still fit the code that they time; what they find is not looked at."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SMALL = {
    "decision": ("blocks=2000", "nodes=4", "rounds=1"),
    "guard": ("nodes=4", "requests=20"),
    "metadata": ("requests=50",),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_small_run_ends_well(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", *SMALL[name], f"out={tmp_path / 'out'}"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
