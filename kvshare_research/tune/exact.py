"""The exact side: windows of a trace, the fleet that plays them, and that fleet in the units of the approximation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvshare_research.config import Run
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Outcome, Status
from kvshare_research.report import Progress, Silent
from kvshare_research.study.assembly import component, parties, priced
from kvshare_research.study.settings import choice
from kvshare_research.study.simulated import Fleet, build_fleet, node_count_of
from kvshare_research.workload.base import WorkloadInput
from kvshare_research.workload.trace import Reading

from .approximate import FleetModel
from .objective import Tails, tails
from .scores import Tunable
from .window import Arrival

PS_PER_MS = 1e9


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A checked configuration whose workload is a trace; its selector is replaced by whatever is asked."""

    run: Run

    def config(self, tunable: Tunable | None = None, weights: NDArray[np.float64] | None = None) -> dict[str, Any]:
        """The plain configuration, with a selector of these weights."""
        config = dict(self.run.resolved)
        if tunable is not None and weights is not None:
            values = dict(zip(tunable.names, np.asarray(weights, float).tolist(), strict=True))
            config["selector"] = choice("selector", tunable.selector) | values
        return config

    def windows(
        self, count: int, requests: int, skip: int = 0, reading: Reading | None = None, progress: Progress | None = None
    ) -> list[list[Arrival]]:
        """Consecutive windows of the trace, `skip` requests left out before; ConfigError if it is too short.

        `reading` counts the lines that were none.
        """
        config = self.config()
        fleet = build_fleet(self.run, config)
        progress = progress or Silent()
        progress.stage("reading the trace", skip + count * requests)
        found = []
        for arrival in islice(_arrivals(self.run, config, fleet, reading or Reading()), skip + count * requests):
            found.append(arrival)
            progress.advance()
        arrivals = found[skip:]
        if len(arrivals) < count * requests:
            raise ConfigError(
                f"the trace has {len(arrivals)} requests from number {skip} on, expected {count} windows of "
                f"{requests}; shorten `tune.window_requests`"
            )
        return [arrivals[i : i + requests] for i in range(0, len(arrivals), requests)]

    def play(self, window: list[Arrival], tunable: Tunable, weights: NDArray[np.float64]) -> list[Outcome]:
        """The outcomes of the window on the exact simulator, in order of arrival, every node empty at its start."""
        fleet = build_fleet(self.run, self.config(tunable, weights))
        start_us = window[0][0].arrival_us
        moved = ((replace(r, arrival_us=r.arrival_us - start_us, request_id=i), c) for i, (r, c) in enumerate(window))
        return sorted(fleet.ask(moved), key=lambda outcome: outcome.request_id)

    def model(self) -> FleetModel:
        """The configured fleet as the approximation takes it."""
        fleet = build_fleet(self.run, self.config())
        simulator, driver = fleet.simulator, self.run.parts["driver"]
        rtt = np.array([[row.rtt_us / 1e3 for row in rows] for rows in simulator.links], np.float32)
        rate = np.array([[row.ps_per_byte for row in rows] for rows in simulator.links], np.float64)
        merge = priced(self.config()).merge_ps_per_byte
        return FleetModel(
            rtt_ms=rtt,
            pull_ms_per_token=((rate + merge) * driver.kv_bytes_per_token / PS_PER_MS).astype(np.float32),
            prefill_ms=tuple(c / PS_PER_MS for c in simulator.engine.prefill),
            chunk_tokens=driver.chunk_tokens,
            pool_tokens=driver.pool_tokens,
            block_tokens=fleet.hasher.space.block_tokens,
            decode_step_ms=driver.decode_step_ps / PS_PER_MS,
            decode_ms_per_request=driver.decode_ps_per_request / PS_PER_MS,
            decode_ms_per_token=driver.decode_ps_per_token / PS_PER_MS,
        )


def tails_of(outcomes: list[Outcome], warmup: int) -> Tails:
    """The tails of what the simulator gave; a request that was not served is infinitely late."""

    def times(name: str) -> list[float]:
        return [getattr(o, name) / 1e3 if o.status == Status.DONE else float("inf") for o in outcomes]

    return tails([o.arrival_us / 1e3 for o in outcomes], times("ttft_us"), times("end_to_end_us"), warmup)


def _arrivals(run: Run, config: Mapping[str, Any], fleet: Fleet, reading: Reading) -> Any:
    workload = component(config, "workload")
    if not getattr(workload, "timed", False):
        raise ConfigError("the tuner plays a trace with its own arrival times; use workload=mooncake, azure, ...")
    simulator = fleet.simulator
    capacity = simulator.workers[0].ledger.node.capacity
    base, catalogue = parties(config, capacity_blocks=capacity, block_bytes=simulator.block_bytes)
    nothing: Any = None  # a trace names its content
    given = WorkloadInput(
        tokenizer=nothing, directory=base, catalogue=catalogue, seed=run.values.seed,
        block_tokens=fleet.hasher.space.block_tokens, node_count=node_count_of(run),
        pool_blocks=capacity * node_count_of(run),
    )  # fmt: skip
    return fleet.arrivals(workload.stream(given, reading))
