"""A study in virtual time: one process, no MPI, the files of a report, equal results in two runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvshare_research.core.nouns import Status
from kvshare_research.metrics.records import Label, load_results
from kvshare_research.metrics.summary import summarise

ROOT = Path(__file__).parents[2]
GENERATED = ("engine=tiny", "workload=generated", "study=smoke", "driver.pool_tokens=20000")


def command(out: Path, *overrides: str, data: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(ROOT)} | ({"KVSHARE_DATA": str(data)} if data else {})
    words = [sys.executable, "-m", "kvshare_research", "driver=simulator", f"output_root={out}", *overrides]
    return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)


def results(out: Path):
    (path,) = out.rglob("results.json")
    return load_results(path)


def trace(folder: Path, *bad: str) -> Path:
    """Forty conversations of three turns, all beginning with one block."""
    (folder / "mooncake").mkdir(parents=True)
    rows = []
    for turn in range(3):
        for talk in range(40):
            ids = [0, *(1 + 10 * talk + i for i in range(2 + turn))]
            time_ms = 60_000 * turn + 1_000 * talk
            rows.append(
                {"timestamp": time_ms, "input_length": 512 * len(ids) - 7, "output_length": 20, "hash_ids": ids}
            )
    lines = [json.dumps(row) for row in rows]
    (folder / "mooncake" / "conversation_trace.jsonl").write_text("\n".join([*lines, *bad]))
    return folder


def test_a_generated_study_is_simulated_alike_in_two_processes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        done = command(tmp_path / name, *GENERATED)
        assert done.returncode == 0, done.stderr
        assert "probes measure real transfers" in done.stdout + done.stderr
    first, second = (results(tmp_path / name).cases for name in ("a", "b"))
    assert first == second
    assert {case.label for case in first} == {Label.SIMULATED}
    for case in first:
        assert len(case.outcomes) == case.expected_requests
        assert all(o.status == Status.DONE for o in case.outcomes), [o.reason for o in case.outcomes]
    files = {path.name for path in (tmp_path / "a").rglob("*")}
    assert {"results.json", "report.html"} <= files


def test_a_report_flags_the_case_whose_queue_grows_to_the_end_and_not_the_one_at_half_load(tmp_path: Path) -> None:
    """The generated workload, open loop. Everything arrives within the first half of the overloaded run."""
    block = "[{name: load, requests: 200, warmup_requests: 20, utilisation: [0.5, 2.0], selector: [least_loaded]}]"
    done = command(tmp_path, *GENERATED, "driver.batch_max=1", f"study.blocks={block}")
    assert done.returncode == 0, done.stderr
    half, over = summarise(results(tmp_path).cases)
    assert half.steadiness is not None
    assert over.steadiness is not None
    assert (half.steadiness.left_out, half.steadiness.trouble) == (20, "")
    assert over.steadiness.trouble == "saturated"
    (tables,) = (path.read_text() for path in tmp_path.rglob("tables.txt"))
    loads = [line for line in tables.splitlines() if "20 / " in line]
    assert ["†" in line and "saturated" in line for line in loads] == [False, True]
    (page,) = (path.read_text() for path in tmp_path.rglob("report.html"))
    assert "saturated: latencies depend on the run&#39;s length" in page


def test_a_fleet_that_skips_decode_iterations_serves_as_one_that_takes_each(tmp_path: Path) -> None:
    """Batches, chunks and pulls; equal outcomes to the microsecond, in fewer events."""
    block = "[{name: load, requests: 60, utilisation: [0.9], selector: [cheapest], link: [emulated_1g_10ms]}]"
    engine = ("driver.batch_max=8", "driver.chunk_tokens=64", "workload.output_tokens_max=60")
    for name in ("false", "true"):
        done = command(tmp_path / name, *GENERATED, *engine, f"driver.step_by_step={name}", f"study.blocks={block}")
        assert done.returncode == 0, done.stderr
    ((skipped,), (stepped,)) = (results(tmp_path / name).cases for name in ("false", "true"))
    rows = zip(skipped.outcomes, stepped.outcomes, strict=True)
    assert [a.request_id for a, b in rows if a != b] == []
    assert dict(skipped.counters.others)["events"] < dict(stepped.counters.others)["events"] / 2


def test_a_trace_hits_by_conversation_and_is_called_composed(tmp_path: Path) -> None:
    """Every later turn finds its conversation somewhere; a bad line is an error, or counted."""
    data = trace(tmp_path / "data")
    given = ("workload=mooncake", "tenants=one", "index=flat", "link=rdma_400g", "driver.node_count=3")
    done = command(tmp_path / "out", *given, data=data)
    assert done.returncode == 0, done.stderr
    assert "single, arrivals as recorded" in done.stderr
    assert "idle" not in done.stdout.replace("At most: an idle run", "")
    (case,) = results(tmp_path / "out").cases
    assert case.label == Label.COMPOSED
    later = [o for o in case.done() if o.request_id >= 40]
    assert len(later) == 80
    assert all(o.prompt_tokens - o.computed_tokens >= 1024 for o in later)

    bad = trace(tmp_path / "bad", '{"timestamp": 1}')
    refused = command(tmp_path / "out2", *given, data=bad)
    assert refused.returncode == 2
    assert "conversation_trace.jsonl:121: `input_length` is missing" in refused.stderr
    assert command(tmp_path / "out3", *given, "workload.on_error=skip", data=bad).returncode == 0


def test_disclosure_and_prefetch_are_axes_and_are_played_in_virtual_time(tmp_path: Path) -> None:
    """Firms that declared nothing share nothing, until a disclosure releases what is alike."""
    given = ("engine=tiny", "study=disclosure", "tenants=undeclared", "budget.delta=0.01", "driver.pool_tokens=60000")
    done = command(tmp_path, *given, "workload.tenants_per_application=6")
    assert done.returncode == 0, done.stderr
    cases = {(dict(c.extra)["disclosure"], dict(c.extra)["prefetch"]): c for c in results(tmp_path).cases}
    assert len(cases) == 4
    for (disclosure, _), case in cases.items():
        assert all(o.status == Status.DONE for o in case.outcomes), "the operator's requests are no outcomes"
        assert (sum(o.cross_tenant_tokens for o in case.outcomes) > 0) == (disclosure == "after_k")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("workload=mooncake", "data_root=null", "study=single"), "set `data_root` or KVSHARE_DATA"),
        (("driver.event_loss_ratio=1.5",), "`driver.event_loss_ratio` and `driver.warmup_ratio` are shares"),
        (("driver.batch_max=0",), "`driver.batch_max` is `0`, expected 1 or more"),
        (("driver.nodes=4",), "driver.nodes"),
        (("limits.admitted_max=0",), "`limits.admitted_max` is `0`, expected at least 1"),
        (
            ("workload.prompt_tokens=1000000000",),
            "`workload.prompt_tokens` is `1000000000`, expected at least 2 and at",
        ),
        (("events.publish=true",), "`events.publish` tells what real workers hold; it needs driver=mpi"),
        (("retention=h2o",), "needs an engine that reports attention"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(overrides: tuple[str, ...], words: str, tmp_path: Path) -> None:
    done = command(tmp_path, *GENERATED, *overrides)
    assert done.returncode == 2
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_run_that_serves_nobody_fails_with_the_reason_and_is_not_used_again(tmp_path: Path) -> None:
    for _ in range(2):
        done = command(tmp_path, "engine=tiny", "study=single", "driver.pool_tokens=10")
        assert done.returncode == 1
        assert "error: no request was served; the first: " in done.stderr.splitlines()[-1]


def test_every_tenancy_serves_the_demo_tenants_and_only_those_that_share_reuse_across_them(tmp_path: Path) -> None:
    names = sorted(path.stem for path in (ROOT / "conf" / "tenancy").glob("*.yaml"))
    cells = f"requests: 24, warmup_requests: 0, overlap: [0.8], selector: [cheapest], tenancy: [{', '.join(names)}]"
    done = command(tmp_path, *GENERATED, f"study.blocks=[{{name: each, {cells}}}]", "plots=false")
    assert done.returncode == 0, done.stderr
    cases = {case.tenancy: case.outcomes for case in results(tmp_path).cases}
    assert sorted(cases) == names
    for name, outcomes in cases.items():
        assert {o.status for o in outcomes} == {Status.DONE}, name
        across = sum(o.cross_tenant_tokens for o in outcomes)
        assert (across > 0) == (name in ("layered", "one_group")), (name, across)


def test_a_study_that_plays_nothing_fails_with_the_reason(tmp_path: Path) -> None:
    done = command(tmp_path, "engine=tiny", "study.blocks=[{name: p, kind: probe, requests: 1}]")
    assert done.returncode == 1
    assert "error: no request was played; left out: p, idle: probes measure" in done.stderr.splitlines()[-1]
