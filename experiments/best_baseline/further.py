"""The same contest on public traces, below KVSHARE_DATA: `python -m experiments.best_baseline.further [NAME ...]`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from experiments.best_baseline.contest import ALL_WAYS, Workload, compared, of_trace
from experiments.fleet import setting
from kvshare_research.core.errors import ConfigError, did_you_mean


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Windows of a public trace on a fleet in one place; `skip` leaves out requests before the first window."""

    title: str
    overrides: tuple[str, ...]
    windows: int
    requests: int
    skip: int = 0


AGENTS = ("workload=claude_code", "workload.session_count=400", "workload.on_error=skip", "driver.node_count=16")
# Rates are the traces' own but for `speed`. Of Azure and Claude Code it is the highest tried at which
# `recompute_always` keeps up on the window that is tuned on. Azure's prompts share nothing, nor do ServeGen's.
TRACES: Mapping[str, Trace] = {
    "mooncake": Trace(
        title="Mooncake's conversations, 16 nodes", windows=3, requests=2_500,
        overrides=("workload=mooncake", "driver.node_count=16"),
    ),
    "ragpulse": Trace(
        title="RAGPulse, 8 nodes, 100 times as fast", windows=3, requests=1_750,
        overrides=("workload=ragpulse", "driver.node_count=8", "workload.speed=100"),
    ),
    "claude_code": Trace(
        title="Claude Code, 16 nodes, .15 times as fast", windows=3, requests=300, skip=3_000,
        overrides=(*AGENTS, "workload.speed=0.15"),
    ),
    "servegen": Trace(
        title="ServeGen (deepseek-r1), 16 nodes", windows=3, requests=1_500,
        overrides=("workload=servegen", "driver.node_count=16"),
    ),
    "azure": Trace(
        title="Azure 2023 (conv), 8 nodes, 5 times as fast", windows=3, requests=800,
        overrides=("workload=azure", "driver.node_count=8", "workload.speed=5"),
    ),
}  # fmt: skip


def workload(name: str) -> Workload:
    """The workload of this name; ConfigError if there is none, or its trace is not there."""
    if name not in TRACES:
        raise ConfigError(f"there is no workload `{name}`{did_you_mean(name, TRACES)}")
    trace = TRACES[name]
    run = setting(*trace.overrides, "link=rdma_400g", ALL_WAYS)
    return of_trace(trace.title, run, windows=trace.windows, requests=trace.requests, skip=trace.skip)


def main(names: Sequence[str]) -> int:
    """The tables of all, or of those named."""
    for name in names or TRACES:
        compared(workload(name), to=sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
