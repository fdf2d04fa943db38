"""The main job on real ranks with a tiny model: everything a person is promised, checked on what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvshare_research.core.nouns import Status
from kvshare_research.metrics.records import BASELINE, CaseResult, load_results
from kvshare_research.study.probe import LOCAL, REMOTE

ROOT = Path(__file__).parents[2]


def job(*overrides: str, env: dict[str, str] | None = None, module: str = "kvshare_research") -> subprocess.CompletedProcess[str]:  # fmt: skip
    """A command of the project, as a person types it."""
    return subprocess.run(
        [sys.executable, "-m", module, *overrides],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | (env or {}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One run of the smoke study; its folder and what it printed."""
    root = tmp_path_factory.mktemp("run")
    done = job("engine=tiny", "study=smoke", f"output_root={root}", f"cache_root={root}/cache", "plots=false")
    assert done.returncode == 0, done.stderr + done.stdout
    (folder,) = [p for p in (root / "kvshare").iterdir() if p.is_dir()]
    return folder, done


@pytest.fixture(scope="module")
def results(played: tuple[Path, object]) -> tuple[CaseResult, ...]:
    return load_results(played[0] / "results.json").cases


def block(results: tuple[CaseResult, ...], name: str) -> dict[str, CaseResult]:
    return {c.selector: c for c in results if dict(c.extra)["block"] == name}


def test_every_request_ended_and_is_explained(results: tuple[CaseResult, ...]) -> None:
    """Nothing is lost, nothing failed, and each computed token has a reason."""
    for case in results:
        assert not case.incomplete
        for outcome in case.outcomes:
            assert outcome.status == Status.DONE, outcome.reason
            assert sum(tokens for _, tokens in outcome.missed) == outcome.computed_tokens


def test_answers_are_identical_however_the_prefix_was_obtained(results: tuple[CaseResult, ...]) -> None:
    """The same request is answered alike under every selector, and in every probe."""
    compared = 0
    for name in ("probe", "idle", "loaded"):
        cases = block(results, name)
        expected = {case_index: o.output_digest for case_index, o in by_index(cases[BASELINE]).items()}
        for case in cases.values():
            for case_index, outcome in by_index(case).items():
                assert outcome.output_digest == expected[case_index] != ""
                # An answer is a tenant's: what is kept says only whether it is equal.
                assert outcome.output_tokens == ()
                compared += case.selector != BASELINE
    assert compared > 50


def by_index(case: CaseResult) -> dict[int, object]:
    return {case.index_of(o): o for o in case.outcomes}  # type: ignore[return-value]


def test_bytes_on_the_wire_are_the_planned_blocks(results: tuple[CaseResult, ...]) -> None:
    """KV really crossed between processes, and exactly as much as planned."""
    pulled = block(results, "probe")[REMOTE]
    assert pulled.counters.wire_bytes > 0
    for case in results:
        assert case.counters.wire_bytes == case.counters.planned_bytes
        assert case.counters.wire_bytes % case.counters.block_bytes == 0


def test_a_probe_compares_like_with_like(results: tuple[CaseResult, ...]) -> None:
    """Local and remote hit reuse equally many tokens, one of them by moving bytes; the third reuses none."""
    cases = block(results, "probe")
    for local, remote, computed in zip(*(cases[n].outcomes for n in (LOCAL, REMOTE, BASELINE)), strict=True):
        assert local.computed_tokens == remote.computed_tokens < computed.computed_tokens == computed.prompt_tokens
        assert local.pulled_tokens == 0 < remote.pulled_tokens
        assert local.cross_tenant_tokens == local.prompt_tokens - local.computed_tokens


def test_recomputing_reuses_nothing_and_sharing_reuses_across_tenants(results: tuple[CaseResult, ...]) -> None:
    """The baseline is one, and what goes to where the prefix is shares. What `cheapest` does is not asked: it weighs
    measured times, and a tiny model on a quick machine may well be cheaper to compute."""
    for name in ("idle", "loaded"):
        assert all(o.computed_tokens == o.prompt_tokens for o in block(results, name)[BASELINE].outcomes)
    shared = block(results, "loaded")["route_to_longest_prefix"]
    assert sum(o.cross_tenant_tokens for o in shared.outcomes) > 0


def test_the_log_replays_in_a_fresh_process_with_another_hash_seed(played: tuple[Path, object]) -> None:
    """From recorded inputs alone, every rank decides every event as it did; a log without tokens, prompts or keys."""
    logs = sorted(str(p) for p in (played[0] / "logs").rglob("*.log"))
    assert len(logs) == 4 * 3
    done = job(*logs, env={"PYTHONHASHSEED": "271828"}, module="kvshare_research.driver.replay")

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" 0 mismatch") == len(logs) or "0 mismatches" in done.stdout


def test_a_matching_result_is_reused_or_run_again(played: tuple[Path, object]) -> None:
    """The folder says how it came about."""
    stored = json.loads((played[0] / "provenance.json").read_text())
    assert {"config_hash", "commit", "hardware", "versions", "seeds"} <= set(stored)
    assert stored["config_hash"] == played[0].name


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["engine.pool_bytes=4096"], "pool"),
        (["engine.block_tokens=0"], "block_tokens"),
        (["engine=huggingface", "engine.model=/nowhere", "engine.device=cpu"], "does not exist"),
        (["engine.device=cuda"], "GPU"),
        (["ranks=1"], "`ranks` is `1`"),
        (["ranks=100000"], "`ranks` is `100000`"),
        (["selector=cheepest"], "did you mean"),
        (["retention=belady"], "needs driver=simulator"),
        (["workload.prompt_tokens=9000"], "context"),
    ],
)
def test_what_cannot_work_is_one_line_and_no_result(overrides: list[str], words: str, tmp_path: Path) -> None:
    """A message that names the cause, an exit code, nothing written, no rank left behind."""
    done = job("engine=tiny", "study=smoke", f"output_root={tmp_path}", f"cache_root={tmp_path}/cache", *overrides)

    assert done.returncode not in (0, -9), done.stdout
    told = [line for line in done.stderr.splitlines() if words in line]
    assert len(told) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("results.json"))


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    """Not after it."""
    done = job("engine=tiny", "study=smoke", "output_root=/proc/nowhere", f"cache_root={tmp_path}")
    assert done.returncode == 2
    assert "`output_root`: nothing can be written" in done.stderr
    assert "measuring" not in done.stdout + done.stderr


def test_a_tampered_log_is_named_in_one_line(tmp_path: Path) -> None:
    """A damaged record is a fault of the file, not of the program."""
    path = tmp_path / "node0.log"
    path.write_bytes(b"\x93\x01\x02")
    done = job(str(path), module="kvshare_research.driver.replay")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{path}: damaged")
    assert "Traceback" not in done.stderr


def test_a_launcher_that_makes_no_ranks_is_refused_and_never_asked_again(tmp_path: Path) -> None:
    """A wrapper that only runs its command must not make the command start itself without end."""
    launcher = tmp_path / "mpiexec"
    launcher.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\nshift 2\nexec "$@"\n')
    launcher.chmod(0o755)
    done = job("engine=tiny", "study=smoke", f"output_root={tmp_path}", f"driver.mpiexec={launcher}")

    assert done.returncode == 2
    assert "did not make it an MPI rank" in done.stderr


def test_every_case_on_ranks_has_a_twin_that_serves_the_same_requests(results: tuple[CaseResult, ...]) -> None:
    """When idle, what recompute does hangs on nothing measured: the same nodes compute the same tokens."""
    streams = [case for case in results if dict(case.extra)["block"] != "probe"]
    assert streams
    for case in streams:
        assert [o.request_id for o in case.simulated] == sorted(o.request_id for o in case.outcomes)
        assert all(o.status == Status.DONE for o in case.simulated)
        assert sum(o.decode_us for o in case.simulated) > 0
    idle = block(results, "idle")
    pairs = list(zip(idle[BASELINE].outcomes, idle[BASELINE].simulated, strict=True))
    assert [(a.executor, a.computed_tokens) for a, _ in pairs] == [(b.executor, b.computed_tokens) for _, b in pairs]
    assert any(o.computed_tokens < o.prompt_tokens for o in idle["cheapest"].simulated)
