"""A whole trace on a simulated fleet: requests and events per second, beside NVIDIA Dynamo's offline replay.

    KVSHARE_DATA=... python -m benchmarks.replay nodes=[8,64]
    python -m benchmarks.replay trace=generated nodes=[1000] requests=1000000 rounds=1

`trace=generated` plays drawn conversations (`workload=conversations`, a request a second and node), ours alone.
Ours is timed from the first line of the trace to the last outcome: reading, hashing, deciding and simulating. The peer
gets the same file, its own router over the same number of workers and an engine of its own; it hashes nothing, keeps no
tenants and moves no bytes between nodes. Pools are equal. Rates are per second of processor time of all threads, so
that other load on the machine counts less; rounds are interleaved.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from kvshare_research.config import Run, check
from kvshare_research.core.nouns import Outcome, Status
from kvshare_research.cost.ttft import prepare
from kvshare_research.study.simulated import Fleet, build_fleet
from kvshare_research.workload.base import WorkloadInput
from kvshare_research.workload.trace import Reading

from .settings import given

CONF = Path(__file__).parents[1] / "conf"
POOL_TOKENS = 2_097_152  # of each node, on both sides


@dataclass
class Settings:
    trace: str = "mooncake"  # or generated
    nodes: list[int] = field(default_factory=lambda: [8, 64])
    file: str = "conversation_trace.jsonl"
    requests: int = 12_031
    selector: str = "cheapest"
    rounds: int = 3
    speed: float = 1.0
    peer: bool = True
    out: str = "outputs/benchmarks/replay"


def composed(settings: Settings, nodes: int) -> Run:
    """The setting of the Mooncake study for so many nodes."""
    words = [
        "experiment=mooncake_ordering", "study=single", f"selector={settings.selector}", f"driver.node_count={nodes}",
        f"driver.pool_tokens={POOL_TOKENS}", f"workload.speed={settings.speed}",
    ]  # fmt: skip
    if settings.trace == "generated":
        words += [
            "workload=conversations",
            f"workload.rate_per_s={nodes}",
            f"workload.request_count={settings.requests}",
        ]
    else:
        words += [f"workload.file={settings.file}"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        data = OmegaConf.to_container(compose("config", words), resolve=True)
    assert isinstance(data, dict)
    return check({str(key): value for key, value in data.items()}, [str(key) for key in data])


def arrivals(run: Run, fleet: Fleet, requests: int) -> Any:
    """The trace as the study reads it, a request at a time."""
    workload = run.parts["workload"]
    given = WorkloadInput(
        tokenizer=None, directory=fleet.hasher.directory, catalogue=None, seed=0,
        block_tokens=fleet.hasher.space.block_tokens, node_count=len(fleet.simulator.workers), pool_blocks=0,
    )  # type: ignore[arg-type]  # fmt: skip
    return fleet.arrivals(islice(workload.stream(given, Reading()), requests))


class Tally:
    """What is kept of the outcomes: a row of numbers each."""

    def __init__(self, requests: int) -> None:
        self.rows = np.zeros((requests, 4), np.int64)  # done, prompt tokens, computed tokens, TTFT in us
        self.count = 0

    def add(self, outcome: Outcome) -> None:
        done = outcome.status == Status.DONE
        self.rows[self.count] = done, outcome.prompt_tokens, outcome.computed_tokens, outcome.ttft_us
        self.count += 1


def ours(run: Run, requests: int) -> dict[str, float]:
    """One replay: wall and processor seconds, events, and what came out."""
    gc.collect()  # the fleet of the round before
    fleet, tally = build_fleet(run, run.resolved), Tally(requests)
    fleet.simulator.record = tally.add
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    fleet.ask(arrivals(run, fleet, requests))
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    assert fleet.simulator.injected == tally.count
    assert not fleet.simulator.router.in_flight
    done = tally.rows[tally.rows[:, 0] > 0]
    return {
        "wall_s": wall_s, "cpu_s": cpu_s, "requests": tally.count, "events": fleet.simulator.events,
        "reuse": 1 - float(done[:, 2].sum() / done[:, 1].sum()), "ttft_p50_ms": float(np.median(done[:, 3])) / 1e3,
    }  # fmt: skip


def dynamo() -> Callable[[str, int], dict[str, float]] | None:
    """The peer's replay of a trace file with its KV router; None if the package is missing."""
    os.environ.setdefault("DYN_LOG", "error")
    try:
        from dynamo._core import run_mocker_trace_replay as replay
    except ImportError:
        print("left out: NVIDIA Dynamo (pip install -e '.[peers]')", file=sys.stderr)
        return None

    def play(path: str, nodes: int) -> dict[str, float]:
        engine = {"engine": {"num_gpu_blocks": POOL_TOKENS // 64, "block_size": 64, "enable_prefix_caching": True}}
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        report = replay([path], engine, num_workers=nodes, router_mode="kv_router", trace_block_size=512)
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        found = dict(report.summary)
        return {
            "wall_s": wall_s, "cpu_s": cpu_s, "requests": found["completed_requests"],
            "reuse": found.get("prefix_cache_reused_ratio", float("nan")),
        }  # fmt: skip

    return play


def row(name: str, rounds: list[dict[str, float]]) -> dict[str, Any]:
    rates = [r["requests"] / r["cpu_s"] for r in rounds]
    events = rounds[0].get("events")
    return {
        "contender": name, "requests": rounds[0]["requests"], "best_per_cpu_s": max(rates),
        "median_per_cpu_s": median(rates), "median_per_wall_s": median(r["requests"] / r["wall_s"] for r in rounds),
        "events_per_cpu_s": None if events is None else events / min(r["cpu_s"] for r in rounds),
        "reuse": rounds[0]["reuse"],
    }  # fmt: skip


def main(settings: Settings) -> int:
    prepare()
    peer = dynamo() if settings.peer and settings.trace == "mooncake" else None
    rows = []
    for nodes in settings.nodes:
        run = composed(settings, nodes)
        path = f"{run.values.data_root}/mooncake/{settings.file}"
        ours(run, 16)  # everything is compiled
        mine, theirs = [], []
        for _ in range(settings.rounds):
            mine.append(ours(run, settings.requests))
            if peer is not None:
                theirs.append(peer(path, nodes))
        rows.append({"nodes": nodes} | row("kvshare, " + settings.selector, mine))
        if theirs:
            rows.append({"nodes": nodes} | row("Dynamo, kv_router", theirs))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("| nodes | contender | requests | per cpu s, best | median | per wall s | events per cpu s | reuse |")
    print("|---|---|---|---|---|---|---|---|")
    for r in rows:
        events = "-" if r["events_per_cpu_s"] is None else f"{r['events_per_cpu_s']:,.0f}"
        print(
            f"| {r['nodes']} | {r['contender']} | {r['requests']:,.0f} | {r['best_per_cpu_s']:,.0f} "
            f"| {r['median_per_cpu_s']:,.0f} | {r['median_per_wall_s']:,.0f} | {events} | {r['reuse']:.3f} |"
        )
    print(f"peak memory of this process, all contenders together: {peak_mib:,.0f} MiB")
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "replay.json").write_text(json.dumps({"settings": asdict(settings), "rows": rows, "peak_mib": peak_mib}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(given(Settings)))
