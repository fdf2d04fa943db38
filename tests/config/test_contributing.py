"""The worked example of CONTRIBUTING.md, carried out as written: its files are added to a copy, and the suite finds them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT, environment

FILE = re.compile(r"`((?:kvshare_research|conf)/[\w/]+\.(?:py|yaml))`:\n\n```(?:python|yaml)\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the example's files added, and nothing else changed."""
    folder = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__")
    for part in ("kvshare_research", "conf", "tests/core", "tests/selector", "tests/tidy"):
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "tests" / "__init__.py").touch()
    files = dict(FILE.findall((ROOT / "CONTRIBUTING.md").read_text()))
    assert sorted(files) == ["conf/selector/payback.yaml", "kvshare_research/selector/payback.py"]
    for path, text in files.items():
        assert not (folder / path).exists()
        (folder / path).write_text(text)
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**environment(), "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


def test_the_contract_of_the_family_finds_and_passes_it(copy: Path) -> None:
    done = run(
        copy, "-m", "pytest", "tests/selector", "-k", "payback", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"[3-9]\d* passed", done.stdout), done.stdout


def test_the_command_line_offers_checks_and_explains_it(copy: Path) -> None:
    assert "payback" in run(copy, "-m", "kvshare_research", "--help").stdout
    assert (
        "saving_ratio_min: 0.5"
        in run(
            copy, "-m", "kvshare_research", "--cfg", "job", "selector=payback", "selector.saving_ratio_min=0.5"
        ).stdout
    )
    for given, message in (
        ("selector=paybak", "error: `selector` has no choice `paybak`; did you mean `payback`?\n"),
        (
            "selector.saving_ratio=1",
            "error: there is no key `selector.saving_ratio`; did you mean `selector.saving_ratio_min`?\n",
        ),
        ("selector.saving_ratio_min=2", "error: `selector`: `saving_ratio_min` is `2.0`, expected 0 to 1\n"),
        ("selector.saving_ratio_min=much", "error: `selector.saving_ratio_min` is `much`, expected a number\n"),
    ):
        chosen = () if given.startswith("selector=") else ("selector=payback",)
        done = run(copy, "-m", "kvshare_research", *chosen, given)
        assert (done.stderr, done.returncode) == (message, 2)


def test_it_is_typed_and_tidy(copy: Path) -> None:
    for command in (
        ("-m", "ruff", "check", "kvshare_research/selector"),
        ("-m", "pytest", "tests/tidy", "-q", "-k", "selector"),
    ):
        done = run(copy, *command)
        assert done.returncode == 0, done.stdout
