"""A run whose ranks are killed leaves what it had measured, marked partial; whatever the moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvshare_research.core.nouns import Outcome, Status
from kvshare_research.metrics.records import CaseResult, Label, load_results
from kvshare_research.study.salvage import KILLED, BeingRun, Diary, alone, read_diary

ROOT = Path(__file__).parents[2]
MPIEXEC = Path(sys.executable).parent / "mpiexec"


def case(seed: int, count: int) -> CaseResult:
    ended = tuple(
        Outcome(request_id=i, tenant_id=1, application="a", status=Status.DONE, prompt_tokens=9, computed_tokens=9,
                ttft_us=100 + i, output_tokens=(i, 2), logit_fingerprint=(1.5, 0.1 + i))
        for i in range(count)
    )  # fmt: skip
    return CaseResult(
        label=Label.MEASURED, selector="cheapest", tenancy="layered", link="loopback", seed=seed, outcomes=ended,
        expected_requests=count,
    )  # fmt: skip


def test_a_diary_cut_off_anywhere_tells_what_was_whole(tmp_path: Path) -> None:
    """Every prefix of the file, to the byte: no error, no half request, and never more than was said."""
    first, second = case(1, 2), case(2, 3)
    diary = Diary(tmp_path / "diary", {"seed": 7}, "python -m kvshare_research")
    for whole in (first, second):
        diary.begin(replace(whole, outcomes=()))
        for outcome in whole.outcomes:
            diary.outcome(outcome)
        if whole is first:
            diary.end(first)
    data = (tmp_path / "diary").read_bytes()
    kept = []
    for end in range(len(data) + 1):
        cases, provenance, command = read_diary(data[:end])
        assert (provenance, command) in (({}, ""), ({"seed": 7}, "python -m kvshare_research"))
        for found, whole in zip(cases, (first, second), strict=False):
            assert found.outcomes == whole.outcomes[: len(found.outcomes)]
            assert found == whole or (found.incomplete and found.partial_reason == KILLED)
        kept.append(sum(len(found.outcomes) for found in cases))
    assert kept == sorted(kept)
    assert kept[-1] == 5
    assert cases == [first, replace(second, partial=True, partial_reason=KILLED)]
    diary.close()
    assert not (tmp_path / "diary").exists()


def test_one_setting_is_run_by_one_process_at_a_time(tmp_path: Path) -> None:
    """The second is told who runs it; other settings are free; after the first, and after one that died, it may run."""
    folder = tmp_path / "kvshare" / "0123"
    with alone(folder):
        with pytest.raises(BeingRun, match=f"being run by process {os.getpid()} on "), alone(folder):
            pass
        with alone(folder.with_name("4567")):
            pass
    assert not list(folder.parent.iterdir())
    folder.with_name(".0123.lock").write_text("process 1 on elsewhere")  # its holder is dead
    with alone(folder):
        pass


def ranks_below(ancestor: int) -> Iterator[tuple[int, str]]:
    """(process, rank) of every MPI rank that descends from a process."""
    parent_of = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent_of[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    for process in parent_of:
        line = [process]
        while line[-1] in parent_of:
            line.append(parent_of[line[-1]])
        if ancestor in line[1:]:
            try:
                words = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            yield from ((process, w.partition(b"=")[2].decode()) for w in words if w.startswith(b"PMI_RANK="))


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec beside python")
@pytest.mark.parametrize("victim", ["0", "2", "starter"])
def test_what_is_killed_in_the_middle_leaves_what_was_measured(victim: str, tmp_path: Path) -> None:
    """The launcher of MPICH ends every rank with the one that died, and the process that started it writes the results;
    where that process dies, Linux tells the launcher, and rank 0 writes them. No rank is left running."""
    if victim == "starter" and sys.platform != "linux":
        pytest.skip("only Linux tells a process that its parent died")
    words = ["engine=tiny", "study=smoke", f"output_root={tmp_path}", f"cache_root={tmp_path}/cache", "plots=false"]
    job = subprocess.Popen(
        [sys.executable, "-m", "kvshare_research", *words], cwd=ROOT, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    said = 0
    while job.poll() is None and said < 12:
        time.sleep(0.02)
        said = sum(path.read_bytes().count(b"\nO") for path in (tmp_path / "kvshare").glob(".*.diary"))
    ranks = dict(ranks_below(job.pid))
    for process, rank in [*ranks.items(), (job.pid, "starter")]:
        if rank == victim:
            os.kill(process, signal.SIGKILL)
    _, stderr = job.communicate(timeout=120)  # until all that could write to it have ended
    assert job.returncode != 0
    assert not [process for process in ranks if Path(f"/proc/{process}").exists()]
    assert stderr.count("marked partial") == 1
    process_of = {rank: process for process, rank in ranks.items()}
    told = [line for line in stderr.splitlines() if "died of" in line]
    if victim == "starter":
        assert not told
    else:
        assert len(told) == 1
        assert told[0].startswith(f"error: rank {victim} (process {process_of[victim]}) died of signal 9, SIGKILL (")
        assert stderr.splitlines()[-1].startswith("the run was killed; what was measured until then is in ")
    (path,) = tmp_path.rglob("results.json")
    assert path.parent.name.endswith("-partial")
    assert not list((tmp_path / "kvshare").glob(".*.diary"))
    kept = load_results(path)
    assert kept.partial
    assert sum(len(c.outcomes) for c in kept.cases) >= 12
    assert kept.provenance["config"]["engine"]
