"""The same contest on public traces, below KVSHARE_DATA: `python -m experiments.best_baseline.further [NAME ...]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments.best_baseline.contest import ALL_WAYS, Workload, compared, of_trace
from experiments.fleet import setting
from kvshare_research.core.errors import ConfigError, did_you_mean

ONE_PLACE = ("link=rdma_400g",)
# (workload and fleet, windows, requests of each). Rates are the traces' own but for `speed`, which loads or spares.
TRACES = {
    "mooncake": (("workload=mooncake", "driver.node_count=16", *ONE_PLACE), 3, 2_000),
    "ragpulse": (("workload=ragpulse", "driver.node_count=8", "workload.speed=100", *ONE_PLACE), 3, 1_500),
    "claude_code": (("workload=claude_code", "driver.node_count=8", "workload.speed=0.2", *ONE_PLACE), 2, 200),
    "servegen": (("workload=servegen", "driver.node_count=16", *ONE_PLACE), 2, 1_000),
}


def workload(name: str) -> Workload:
    """The workload of this name; ConfigError if there is none, or its trace is not there."""
    if name not in TRACES:
        raise ConfigError(f"there is no workload `{name}`{did_you_mean(name, TRACES)}")
    overrides, windows, requests = TRACES[name]
    return of_trace(name, setting(*overrides, ALL_WAYS), windows, requests)


def main(names: Sequence[str]) -> int:
    """The tables of all, or of those named, to stderr."""
    for name in names or TRACES:
        compared(workload(name))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
