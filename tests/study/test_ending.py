"""A run that is told to end, at any moment, leaves nothing half-written behind; a real process and real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvshare_research.metrics.records import load_results

ROOT = Path(__file__).parents[2]
JOB = """
import os, signal, sys
from kvshare_research import __main__
from kvshare_research.report import artefacts
from kvshare_research.study import simulated

def struck(where, name, number, count):
    real, seen = getattr(where, name), []
    def call(*given, **named):
        seen.append(name)
        if len(seen) == count:
            os.kill(os.getpid(), number)
        return real(*given, **named)
    setattr(where, name, call)

where, name, number, count = sys.argv.pop(1).split(",")
if where:
    struck({"artefacts": artefacts, "simulated": simulated, "os": os}[where], name, int(number), int(count))
sys.exit(__main__.command())
"""


def run(
    out: Path, where: str = "", name: str = "", number: int = 0, count: int = 1
) -> subprocess.CompletedProcess[str]:
    """A small simulated study; the `count`-th call of that function is when the signal comes."""
    words = ["driver=simulator", "engine=tiny", "workload=generated", "study=smoke", "driver.pool_tokens=20000"]
    return subprocess.run(
        [sys.executable, "-c", JOB, f"{where},{name},{number},{count}", *words, f"output_root={out}", "plots=false"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def left(out: Path) -> list[str]:
    """What is neither a result nor its folder."""
    return sorted(p.name for p in out.rglob("*") if p.name.startswith("."))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_while_it_writes_it_leaves_nothing(number: int, tmp_path: Path) -> None:
    done = run(tmp_path, "artefacts", "render_html", number)
    assert done.returncode == 128 + number, done.stderr
    assert done.stderr.splitlines()[-1] in ("told to end (SIGTERM)", "interrupted")
    assert "Traceback" not in done.stderr
    assert not left(tmp_path)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_told_to_end_while_it_renames_it_ends_after(tmp_path: Path) -> None:
    """The signal comes between the first file and the last: all are there."""
    done = run(tmp_path, "os", "replace", signal.SIGTERM, 2)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    (path,) = tmp_path.rglob("results.json")
    assert {"report.html", "tables.txt", "results.parquet"} <= {p.name for p in path.parent.iterdir()}
    assert not left(tmp_path)


def test_told_to_end_between_cases_it_keeps_those_that_were_whole(tmp_path: Path) -> None:
    done = run(tmp_path, "simulated", "build_fleet", signal.SIGTERM, 2)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    (path,) = tmp_path.rglob("results.json")
    assert path.parent.name.endswith("-partial")
    assert len(load_results(path).cases) == 1
    assert not left(tmp_path)


def test_what_a_killed_writer_left_is_gone_after_the_next_run(tmp_path: Path) -> None:
    assert run(tmp_path, "artefacts", "render_html", signal.SIGKILL).returncode == -signal.SIGKILL
    assert [name[:9] for name in left(tmp_path) if name.startswith(".writing-")] == [".writing-"]
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert not left(tmp_path)
