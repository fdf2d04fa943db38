"""What identifies a result, when an old one may be reused, and that a written file is whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvshare_research import provenance
from kvshare_research.config import PLACE_KEYS, config_hash
from kvshare_research.provenance import (
    Provenance,
    may_reuse,
    read,
    repository_state,
    to_plain,
    write_atomic,
    write_json,
)

from .conftest import environment

CONFIG: dict[str, Any] = {"seed": 1, "selector": {"a": 1, "b": [1, 2]}, "driver": {"mpiexec": None}, "output_root": "x"}
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4)
)
configs = st.dictionaries(
    st.text(min_size=1, max_size=4),
    st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=5,
)


@given(configs, st.randoms(use_true_random=False))
def test_the_hash_does_not_depend_on_order(config: dict[str, Any], random: Any) -> None:
    items = list(config.items())
    random.shuffle(items)
    assert config_hash(dict(items)) == config_hash(config)


@given(configs, configs)
def test_different_settings_have_different_hashes(one: dict[str, Any], two: dict[str, Any]) -> None:
    def kept(config: dict[str, Any]) -> str:
        return json.dumps({k: v for k, v in config.items() if k not in PLACE_KEYS}, sort_keys=True)

    assert (config_hash(one) == config_hash(two)) == (kept(one) == kept(two))


def test_the_hash_is_the_same_in_every_process() -> None:
    script = f"from kvshare_research.config import config_hash; print(config_hash({CONFIG!r}))"
    seen = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**environment(), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1", "4711")
    }
    assert seen == {config_hash(CONFIG)}


def test_where_and_how_to_run_is_no_part_of_what_is_run() -> None:
    moved = {**CONFIG, "output_root": "elsewhere", "force": True, "plots": False, "driver": {"mpiexec": "mpirun"}}
    assert config_hash(moved) == config_hash(CONFIG)
    assert config_hash({**CONFIG, "seed": 2}) != config_hash(CONFIG)
    assert moved["driver"]["mpiexec"] == "mpirun", "hashing changes nothing"


@pytest.fixture
def now() -> Provenance:
    return replace(provenance.collect(CONFIG, seeds=(1,), mpi_library="MPICH 5"), commit="c" * 40, clean=True)


def test_only_an_exact_match_is_reused(now: Provenance) -> None:
    stored = to_plain(now)
    assert may_reuse(stored, now)
    assert may_reuse(stored | {"versions": {}, "system": "other", "python": "3.14"}, now), (
        "these explain, they do not decide"
    )
    for change in (
        {"config_hash": "0"},
        {"commit": "d" * 40},
        {"clean": False},
        {"constraints_hash": "0"},
        {"mpi_library": "Open MPI"},
        {"hardware": {**stored["hardware"], "cores": stored["hardware"]["cores"] + 1}},
    ):
        assert not may_reuse(stored | change, now), change
    assert not may_reuse(stored, replace(now, clean=False))
    assert not may_reuse(stored | {"commit": ""}, replace(now, commit=""))
    assert not may_reuse(None, now)


def test_a_stored_provenance_is_read_back(tmp_path: Path, now: Provenance) -> None:
    assert read(tmp_path) is None
    write_json(tmp_path / provenance.FILE_NAME, to_plain(now))
    assert may_reuse(read(tmp_path), now)
    (tmp_path / provenance.FILE_NAME).write_text('{"config_hash": ')
    assert read(tmp_path) is None


def test_the_state_of_the_repository_is_seen(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e", *arguments],
            check=True,
            capture_output=True,
        )

    assert repository_state(tmp_path) == ("", False)
    git("init")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "one")
    commit, clean = repository_state(tmp_path)
    assert len(commit) == 40
    assert clean
    (tmp_path / "b").write_text("new")
    assert repository_state(tmp_path) == (commit, False)
    inside = tmp_path / "inside"
    inside.mkdir()
    assert repository_state(inside) == ("", False), "a copy inside somebody else's repository has no commit of its own"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    write_atomic(path, "old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_not_a_number_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"p50": float("nan")})
    assert list(tmp_path.iterdir()) == []
