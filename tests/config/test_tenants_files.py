"""A wrong party table is refused with its file, key and the nearest valid choice, before any rank starts."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from .conftest import ROOT, environment

GOOD: dict[str, Any] = {
    "priorities": {"standard": 0, "gold": 1},
    "groups": [{"name": "guild"}],
    "tenants": [
        {"name": "acme", "groups": [{"name": "guild"}], "account": {"reserved_bytes": 0}},
        {"name": "bell", "account": {"reserved_bytes": 0}},
    ],
    "applications": [{"name": "a", "system": "public", "few_shot": "tenant", "user": "tenant", "tenants": ["acme"]}],
}


def wrong(change: str) -> dict[str, Any]:
    """The good table with one mistake, written as `path = value`."""
    table = copy.deepcopy(GOOD)
    exec(f"table{change}", {"table": table})
    return table


MISTAKES = {
    "unknown_tenant": (
        '["applications"][0]["tenants"] = ["acmee"]',
        "`applications.a.tenants` names unknown tenant `acmee`; did you mean `acme`?",
    ),
    "negative_bytes": (
        '["tenants"][0]["account"]["reserved_bytes"] = -1',
        "`tenants.acme.account.reserved_bytes` is `-1`, expected a whole number, 0 or more",
    ),
    "broken_bytes": (
        '["tenants"][1]["account"]["limit_bytes"] = 1.5',
        "`tenants.bell.account.limit_bytes` is `1.5`, expected a whole number, 0 or more",
    ),
    "floor_above_limit": (
        '["tenants"][0]["account"] = {"reserved_bytes": 9, "limit_bytes": 5}',
        "`tenants.acme.account.reserved_bytes` is 9, above its `limit_bytes` of 5",
    ),
    "twice": ('["tenants"][1]["name"] = "acme"', "`acme` is defined twice in `tenants`, rows 0 and 1"),
    "unknown_group": (
        '["tenants"][0]["groups"] = [{"name": "gild"}]',
        "`tenants.acme.groups` names unknown group `gild`; did you mean `guild`?",
    ),
    "unknown_priority": (
        '["tenants"][0]["account"] = {"priority": "golden"}',
        "`tenants.acme.account.priority` names unknown priority `golden`; did you mean `gold`?",
    ),
}


def test_every_mistake_is_one_line_before_any_rank_starts(tmp_path: Path) -> None:
    folder, started = tmp_path / "tenants", tmp_path / "started"
    folder.mkdir()
    for name, (change, _) in MISTAKES.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(wrong(change)))
    (folder / "good.yaml").write_text(yaml.safe_dump(GOOD))
    launcher = tmp_path / "launcher"
    launcher.write_text(f"#!/bin/sh\ncase $1 in --version) ;; *) touch {started};; esac\n")
    launcher.chmod(0o755)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kvshare_research", "--config-dir", str(tmp_path), *arguments]
        places = [f"driver.mpiexec={launcher}", f"output_root={tmp_path}/out"]
        return subprocess.run(
            [*command, *places], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=200, check=False
        )

    done = run("--multirun", f"tenants={','.join(MISTAKES)}")
    expected = [f"error: tenants/{name}.yaml: {message}" for name, (_, message) in MISTAKES.items()]
    assert done.stderr.splitlines() == expected
    assert done.returncode == 2
    assert not started.exists()
    run("tenants=good")
    assert started.exists(), "the launcher would have been seen"
