"""The command line as a person meets it: what runs, what is refused in one line, and that no rank stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.cli import ordered

from .conftest import Probe, environment

MPIEXEC = Path(sys.executable).parent / "mpiexec"
needs_mpi = pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec beside this Python")


def test_values_groups_and_presets_reach_the_job(probe: Probe) -> None:
    assert "seed 0 tenancy Layered" in probe().stdout
    assert "seed 7 tenancy Shard" in probe("experiment=sharded").stdout
    assert "seed 1 tenancy Isolated" in probe("experiment=sharded", "tenancy=isolated", "seed=1").stdout


def test_a_sweep_runs_every_combination_and_goes_on_after_a_failure(probe: Probe) -> None:
    done = probe("--multirun", "name=raise,ok", "seed=1,2")
    assert [line.split()[5] for line in done.stdout.splitlines()] == ["1", "2", "1", "2"]
    assert done.returncode == 1
    assert (
        done.stderr.splitlines()
        == ["error: the model folder `x` is empty; give `engine.model` a folder with config.json"] * 2
    )


@given(st.permutations(["seed=1,2", "--multirun", "tenancy=shard,layered", "--config-dir", "name=a=b", "+actions=[x]"]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_flags_come_first_and_nothing_else_changes_place(words: list[str]) -> None:
    at = words.index("--config-dir")
    words.insert(at + 1, "/my/conf")
    sorted_ = ordered(words)
    overrides = [word for word in words if not word.startswith("-") and word != "/my/conf"]
    assert sorted_[-4:] == overrides
    assert sorted_[sorted_.index("--config-dir") + 1] == "/my/conf"
    assert sorted(sorted_) == sorted(words)
    assert ordered(sorted_) == sorted_


def test_flags_and_overrides_in_any_order_mean_the_same(probe: Probe) -> None:
    orders = (
        ("seed=1,2", "-m", "tenancy=shard"),
        ("-m", "tenancy=shard", "seed=1,2"),
        ("tenancy=shard", "seed=1,2", "-m"),
    )
    for words in orders:
        lines = [line.partition(" pid")[0] for line in probe(*words).stdout.splitlines()]
        assert [line.partition(" seed ")[2] for line in lines] == ["1 tenancy Shard", "2 tenancy Shard"]
    assert "seed: 7" in probe("seed=7", "--cfg", "job", "tenancy=shard").stdout
    assert ordered(["-i", "seed=1"]) == ["--info=all", "seed=1"]


REFUSED = {
    ("sed=1",): "error: there is no key `sed`; did you mean `seed`?",
    ("tenanci=shard",): "error: there is no key `tenanci`; did you mean `tenancy`?",
    ("tenancy=layerd",): "error: `tenancy` has no choice `layerd`; did you mean `layered`?",
    ("tenancy=one_group", "tenancy.grup=x"): "error: there is no key `tenancy.grup`; did you mean `tenancy.group`?",
    ("tenancy=one_group", "+tenancy.grup=x"): "error: `tenancy` has no field `grup`; did you mean `group`?",
    ("tenancy=one_group", "tenancy.group=3"): "error: `tenancy.group` is `3`, expected text",
    ("experiment=shard",): "error: `experiment` has no choice `shard`; did you mean `sharded`?",
    ("+fore=1",): "error: nothing reads `fore`; did you mean `force`?",
    ("~seed",): "error: `config` needs a value for `seed` (an integer)",
    ("seed=abc",): "error: `seed` is `abc`, expected an integer",
    ("seed=-1",): "error: `seed` is `-1`, expected 0 to 4294967295",
    (
        "seed=1,2",
    ): "error: `seed=1,2` has several values: add --multirun for one run each, or write `seed=[1,2]` for a list",
    ("force=1",): "error: `force` is `1`, expected true or false",
    ("actions=[recompute,pul]",): "error: `actions[1]` is `pul`; did you mean `pull`?",
    ("actions=[pull]",): "error: `actions` leaves out `recompute`, which must always remain possible",
    ("ranks=1",): "error: `ranks` is `1`, expected 2 or more: one router and at least one worker",
    ("name=a/b",): "error: `name` is `a/b`, expected the name of a folder",
    (
        "retention._target_=os.system",
    ): "error: `retention._target_` is `os.system`, expected a class inside `kvshare_research`",
    (
        "tenancy._target_=kvshare_research.retention.lru.LruRetention",
    ): "error: `tenancy` is a `LruRetention`, expected a `Tenancy`",
    ("driver=mpi", "driver.mpiexec=nowhere"): "error: `driver.mpiexec` is `nowhere`, expected an executable launcher",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_a_mistake_is_one_line_with_the_nearest_valid_thing(probe: Probe, arguments: tuple[str, ...]) -> None:
    done = probe(*arguments)
    assert done.stderr == REFUSED[arguments] + "\n"
    assert done.stdout == ""
    assert done.returncode == 2


def test_an_argument_that_cannot_be_read_is_shown(probe: Probe) -> None:
    done = probe("seed=[1")
    assert done.stderr.startswith("error: cannot read the argument `seed=[1`")
    assert len(done.stderr.splitlines()) == 1
    assert done.returncode == 2


def test_a_bug_of_ours_is_one_line_unless_asked(probe: Probe) -> None:
    short = probe("name=bug")
    line = next(
        i
        for i, text in enumerate(Path(__file__).with_name("probe.py").read_text().splitlines(), 1)
        if "surprise" in text
    )
    assert short.stderr == f"internal error: KeyError: 'surprise' at probe.py:{line}; `debug=true` shows more\n"
    assert short.returncode == 1
    assert "Traceback" in probe("name=bug", "debug=true").stderr
    assert "Traceback" in probe("name=bug", HYDRA_FULL_ERROR="1").stderr


def test_the_exit_code_of_the_job_is_the_commands(probe: Probe) -> None:
    assert probe("name=three").returncode == 3


def test_nothing_is_written_for_a_run_that_writes_nothing(probe: Probe, tmp_path: Path) -> None:
    probe("seed=3")
    assert list((tmp_path / "work").iterdir()) == []


def test_help_and_cfg_answer_without_running(probe: Probe) -> None:
    text = probe("--help").stdout
    assert "isolated [layered] one_group per_user shard" in text
    assert "who shares with whom" in text
    shown = probe("--cfg", "job", "seed=4").stdout
    assert "seed: 4" in shown
    assert "rank" not in shown.replace("ranks", "")


HEAVY = {"torch", "jax", "transformers", "matplotlib", "z3", "opacus", "scipy", "numba", "mpi4py", "polars"}


@pytest.mark.parametrize("arguments", [("--help",), ("--cfg", "job")])
def test_asking_loads_nothing_heavy(arguments: tuple[str, ...]) -> None:
    """What makes `--help` answer at once, checked on what is imported rather than on a clock."""
    script = f"import sys; sys.argv[1:] = {arguments!r}\nfrom kvshare_research.__main__ import command\ncommand()\nprint('LOADED', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert not HEAVY & loaded


def test_without_mpiexec_the_message_says_what_to_install(
    probe: Probe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from kvshare_research import launch
    from kvshare_research.core.errors import ConfigError

    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"needs `mpiexec`, .* pip install 'kvshare_research\[mpi\]'"):
        launch.find_mpiexec(None)


@pytest.mark.mpi
@needs_mpi
class TestRanks:
    def test_started_alone_it_starts_its_ranks(self, probe: Probe) -> None:
        done = probe("driver=mpi", "seed=5", "tenancy=shard")
        assert sorted(line.partition(" pid")[0] for line in done.stdout.splitlines()) == [
            f"rank {rank} of 3 seed 5 tenancy Shard" for rank in range(3)
        ]
        assert (done.stderr, done.returncode) == ("", 0)

    def test_started_by_mpiexec_it_uses_what_it_is_given(self, probe: Probe) -> None:
        done = probe("--multirun", "driver=mpi", "seed=1,2", under=(str(MPIEXEC), "-n", "2"))
        assert sorted(line.partition(" ten")[0] for line in done.stdout.splitlines()) == [
            f"rank {rank} of 2 seed {seed}" for rank in range(2) for seed in (1, 2)
        ]
        pids = {line.rpartition(" ")[2] for line in done.stdout.splitlines()}
        assert len(pids) == 2, "one set of ranks runs the whole sweep"
        assert (done.stderr, done.returncode) == ("", 0)

    def test_a_sweep_from_outside_starts_ranks_for_each_job(self, probe: Probe) -> None:
        done = probe("--multirun", "driver=mpi", "ranks=2", "seed=1,2")
        assert [line.split()[5] for line in done.stdout.splitlines()] == ["1", "1", "2", "2"]
        assert done.returncode == 0

    @pytest.mark.parametrize(
        ("ranks", "arguments", "message"),
        [
            (3, ("driver=mpi", "sed=1"), "there is no key `sed`; did you mean `seed`?"),
            (1, ("driver=mpi",), "started with 1 rank, expected 2 or more: one router and at least one worker"),
            (2, ("driver=one",), "this driver runs in one process; start it without mpiexec, or choose `driver=mpi`"),
            (2, ("driver=mpi", "ranks=3"), "`ranks` is `3`, but mpiexec started 2; leave `ranks` out"),
        ],
    )
    def test_a_mistake_ends_every_rank_with_one_line(
        self, probe: Probe, ranks: int, arguments: tuple[str, ...], message: str
    ) -> None:
        done = probe(*arguments, under=(str(MPIEXEC), "-n", str(ranks)))
        assert (done.stdout, done.stderr, done.returncode) == ("", f"error: {message}\n", 2)

    def test_an_unknown_flag_ends_every_rank(self, probe: Probe) -> None:
        done = probe("--mutlirun", "driver=mpi", under=(str(MPIEXEC), "-n", "2"))
        assert "--mutlirun" in done.stderr
        assert done.returncode == 2

    def test_a_rank_that_fails_says_so_once_and_takes_the_others_along(self, probe: Probe) -> None:
        done = probe("driver=mpi", "name=raise")
        assert (
            done.stderr
            == "error (rank 2): the model folder `x` is empty; give `engine.model` a folder with config.json\n"
        )
        assert done.returncode == 1
        assert not _alive(done.stdout)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_leaves_no_rank_behind(self, conf: Path, tmp_path: Path, number: signal.Signals) -> None:
        command = [sys.executable, "-m", "tests.config.probe", "--config-dir", str(conf), "driver=mpi", "name=hang"]
        with subprocess.Popen(
            command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(3)]
            child.send_signal(number)
            child.communicate(timeout=60)
        assert child.returncode == 128 + number
        assert not _alive("".join(lines))

    def test_open_mpi_gets_the_flags_it_needs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from kvshare_research import launch

        launcher = tmp_path / "bin" / "mpirun"
        launcher.parent.mkdir()
        launcher.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n")
        launcher.chmod(0o755)
        library = tmp_path / "lib" / "libmpi.so.40"
        library.parent.mkdir()
        library.touch()
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        command, env = launch.rank_command(launch.MpiDriver(mpiexec=str(launcher)), 4, "m", ["seed=1"])
        assert command[0] == str(launcher)
        assert "--oversubscribe" in command
        assert command[-7:] == ["4", sys.executable, "-m", "mpi4py", "-m", "m", "seed=1"]
        assert env["MPI4PY_LIBMPI"] == str(library)
        assert env["OMPI_ALLOW_RUN_AS_ROOT"] == "1"


def _alive(output: str) -> list[int]:
    """Processes named in the output that still run, after they had time to be collected."""
    pids = [int(line.rpartition(" ")[2]) for line in output.splitlines() if "pid" in line]
    assert len(pids) >= 2
    for _ in range(100):
        left = [
            pid for pid in pids if Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text()
        ]
        if not left:
            return []
        time.sleep(0.05)
    return left


def test_a_config_that_is_no_yaml_is_named_with_its_line(probe: Probe, conf: Path) -> None:
    (conf / "tenancy").mkdir()
    (conf / "tenancy" / "mine.yaml").write_text("# mine\n_target_: {a: b\n")
    done = probe("tenancy=mine")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {conf}/tenancy/mine.yaml, line ")
    assert len(done.stderr.splitlines()) == 1
