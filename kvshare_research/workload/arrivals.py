"""When requests arrive: drawn once from the seed, before any policy runs, so that every policy gets the same times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from msgspec import structs

from kvshare_research.core.errors import ConfigError
from kvshare_research.workload.base import PromptItem


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalPlan:
    """Arrival times from the start of the run, ascending."""

    times_us: tuple[int, ...]

    def timed(self, items: Iterable[PromptItem]) -> list[PromptItem]:
        """The same prompts with their arrival times."""
        pairs = zip(items, self.times_us, strict=True)
        return [replace(i, request=structs.replace(i.request, arrival_us=time_us)) for i, time_us in pairs]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Open loop: exponential gaps at rate = utilisation x workers / mean service time, whatever the system does."""

    utilisation_ratio: float

    def __post_init__(self) -> None:
        if not 0 < self.utilisation_ratio < float("inf"):
            raise ConfigError(f"`utilisation_ratio` is `{self.utilisation_ratio}`, expected a number above 0")

    def rate_per_us(self, *, worker_count: int, service_us: float) -> float:
        """Mean arrivals in a microsecond."""
        return self.utilisation_ratio * worker_count / service_us

    def plan(self, request_count: int, *, worker_count: int, service_us: float, seed: int) -> ArrivalPlan:
        """Times for so many requests; `service_us` is the mean idle service time when everything is recomputed."""
        _check(request_count, worker_count, service_us)
        # Unit gaps come from the seed alone, so that two utilisations differ by a stretch of time only.
        unit_gaps = np.random.Generator(np.random.PCG64([seed, 0xA221])).standard_exponential(request_count)
        times = np.cumsum(unit_gaps) / self.rate_per_us(worker_count=worker_count, service_us=service_us)
        return ArrivalPlan(times_us=tuple(int(t) for t in np.floor(times)))


def _check(request_count: int, worker_count: int, service_us: float) -> None:
    if request_count < 0 or worker_count < 1 or not 0 < service_us < float("inf"):
        raise ConfigError(
            f"arrivals for {request_count} requests, {worker_count} workers and a service time of {service_us} us, "
            "expected at least 0 requests, 1 worker and a service time above 0 us"
        )
