"""A temporary conf/ and a way to run the probe command over it, as a person would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEFAULTS = """\
# The probe.
defaults:
  - driver: one          # who runs it
  - tenancy: layered     # who shares with whom
  - retention: lru       # what a full pool keeps
  - _self_
  - experiment: null     # a preset
  - override hydra/job_logging: none
  - override hydra/hydra_logging: none

name: probe
"""
Probe = Callable[..., "subprocess.CompletedProcess[str]"]


def environment() -> dict[str, str]:
    """This environment without what an MPI launcher or a test runner put there, with the checkout importable."""
    hidden = ("PMI_", "PMIX_", "OMPI_", "HYDRA_FULL_ERROR")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    return {**kept, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A folder of configs for the probe: a driver without ranks, one with, and a preset."""
    folder = tmp_path / "conf"
    for group, stem, text in (
        ("driver", "one", "_target_: kvshare_research.retention.lru.LruRetention\n"),  # any component without ranks
        ("driver", "mpi", (ROOT / "conf/driver/mpi.yaml").read_text()),
        ("experiment", "sharded", "# @package _global_\ndefaults:\n  - override /tenancy: shard\nseed: 7\n"),
    ):
        (folder / group).mkdir(parents=True, exist_ok=True)
        (folder / group / f"{stem}.yaml").write_text(text)
    run_level = (ROOT / "conf/config.yaml").read_text().partition("\nname:")[2].partition("\n")[2]
    (folder / "probe.yaml").write_text(DEFAULTS + run_level)
    return folder


@pytest.fixture
def probe(conf: Path, tmp_path: Path) -> Probe:
    """Runs the probe in an empty working folder; `under` puts a launcher in front."""

    def run(*arguments: str, under: tuple[str, ...] = (), **extra: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, *(["-m", "mpi4py"] if under else []), "-m", "tests.config.probe"]
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        return subprocess.run(
            [*under, *program, "--config-dir", str(conf), *arguments],
            cwd=work,
            env={**environment(), **extra},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run
