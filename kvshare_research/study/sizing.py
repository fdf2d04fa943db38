"""How many requests a case plays, and how many of them are warm-up: both rules, in one place.

A trace has times of its own: it plays its `request_count` (null: all of it), and the first `driver.warmup_ratio` of
them are warm-up; a study's `requests`, `warmup_requests` and `utilisation` are for workloads without times. Those play
their own `request_count` where one is given, or what fills the pool, else the study's `requests` after its
`warmup_requests`; these first ones are warm-up, in virtual time `driver.warmup_ratio` of all where there are none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvshare_research.core.errors import ConfigError

from .plan import IDLE, Block, Study


def is_timed(workload: Any) -> bool:
    """Whether the workload is a trace: arrivals are as recorded."""
    return getattr(workload, "timed", False)


def check_untimed(study: Study, workload: Any) -> None:
    """Nothing, unless the study dials the load of a trace: ConfigError."""
    if is_timed(workload) and any(x != IDLE for block in study.blocks for x in block.utilisation):
        raise ConfigError("the study dials `utilisation`, but a trace has its own times; `workload.speed` changes them")


def sized(workload: Any, block: Block) -> Any:
    """The workload, with as many requests as the case plays; ConfigError if all of them would be warm-up."""
    if is_timed(workload):
        return workload
    given, warm = workload.request_count, block.warmup_requests
    if given is not None and given <= warm:
        raise ConfigError(
            f"`workload.request_count` is {given} and block `{block.name}` of the study leaves out the first {warm} as "
            f"warm-up, expected at least {warm + 1}"
        )
    return workload if given is not None else with_count(workload, warm + block.requests)


def with_count(workload: Any, count: int) -> Any:
    """The workload with so many requests, unless it is played until the pool is full."""
    fills = getattr(workload, "working_set_over_pool", None) is not None
    return workload if fills else replace(workload, request_count=count)


def warmup_of(workload: Any, block: Block, warmup_ratio: float, played: int) -> int:
    """How many first requests of a case in virtual time do not count."""
    own = 0 if is_timed(workload) else block.warmup_requests
    return own or int(warmup_ratio * played)
