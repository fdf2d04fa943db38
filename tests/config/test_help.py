"""What `--help` says is what the configs hold: no empty heading, every own value, nothing that cannot be set."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvshare_research.cli import conf_root
from kvshare_research.help import help_text

ROOT = Path(__file__).parents[2]
COMMANDS = {
    path.stem: found[1]
    for path in sorted(conf_root().glob("*.yaml"))
    if (found := re.match(r"# python -m (\S+):", path.read_text()))
}
BENCHMARKS = sorted(p.stem for p in (ROOT / "benchmarks").glob("*.py") if "__main__" in p.read_text())


def leaves(value: Any, path: str) -> list[str]:
    if not isinstance(value, dict):
        return [path]
    return [leaf for key, inner in value.items() if key != "_target_" for leaf in leaves(inner, f"{path}.{key}")]


@pytest.mark.parametrize("name", [*COMMANDS, "config"])
def test_every_heading_has_something_under_it_and_every_own_value_is_there(name: str) -> None:
    text = help_text([conf_root()], name, COMMANDS.get(name, "kvshare_research"))
    for part in text.split("\n\n"):
        head, *rest = part.splitlines()
        assert not head.endswith(":") or rest, f"nothing under `{head}`"
    data = yaml.safe_load((conf_root() / f"{name}.yaml").read_text())
    own = {key: value for key, value in data.items() if isinstance(value, dict) and "_target_" in value}
    for key, value in own.items():
        for leaf in leaves(value, key):
            assert f"\n  {leaf}=" in text
    set_by = re.findall(r"^  ([a-z_.]+)=", text, re.MULTILINE)
    assert {key.partition(".")[0] for key in set_by} <= set(data)
    assert {"seed", "debug"} <= set(set_by)
    groups = [key for entry in data["defaults"] if isinstance(entry, dict) for key in entry if " " not in key]
    assert ("Groups" in text) == bool(groups)
    assert ("real ranks" in text.partition("Flags:")[2]) == ("driver" in groups)


def test_there_are_commands() -> None:
    assert {"attack", "tune", "privacy_audit", "privacy_train", "observe"} <= set(COMMANDS)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_says_what_it_does_and_what_can_be_set(name: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert f"benchmarks.{name}" in done.stdout + done.stderr or name == "engine_prefill"
    if "settings.given" in (ROOT / "benchmarks" / f"{name}.py").read_text():
        assert done.returncode == 0
        assert re.search(r"^  out=outputs/", done.stdout, re.MULTILINE)


def test_a_mistyped_setting_of_a_benchmark_is_one_line() -> None:
    for word, told in (
        ("round=2", "did you mean `rounds`"),
        ("--rounds", "did you mean `rounds`"),
        ("rounds=x", "rounds"),
    ):
        command = [sys.executable, "-m", "benchmarks.hashing", word]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert told in done.stderr
