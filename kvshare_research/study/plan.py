"""A study and its cases: which settings are compared, in which order, with how many requests."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal, final

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Action
from kvshare_research.metrics.records import RECORDED

IDLE = 0.0  # utilisation 0: one request at a time


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The product of its axes, with the same workload in every cell. An empty axis means the run's own setting.

    `stream` sends a workload at a utilisation (0: idle, the next request when the last is done). `probe` measures one
    transfer at a time: a prefix is computed on one node, reused there, pulled to another, and recomputed. `requests`,
    after `warmup_requests` that do not count, are played unless the workload says how many (`sizing.py`).
    """

    name: str
    kind: Literal["stream", "probe"] = "stream"
    requests: int
    warmup_requests: int = 0
    utilisation: tuple[float, ...] = (IDLE,)
    overlap: tuple[float, ...] = ()
    selector: tuple[str, ...] = ()
    tenancy: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    disclosure: tuple[str, ...] = ()
    prefetch: tuple[str, ...] = ()
    actions: tuple[Action, ...] = ()  # the ways a selector may choose among; empty: the run's own
    record: bool = False  # keep each rank's log of inputs, for replay
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        if self.requests < 1 or self.warmup_requests < 0:
            raise ConfigError(f"block `{self.name}`: `requests` must be at least 1 and `warmup_requests` at least 0")
        if any(not 0.0 < x < 1.0 for x in self.overlap):
            raise ConfigError(f"block `{self.name}`: `overlap` is a share of the prompt, expected above 0 and below 1")
        if any(not 0.0 <= x <= 4.0 for x in self.utilisation):
            raise ConfigError(f"block `{self.name}`: `utilisation` is arrival rate over capacity, expected 0 to 4")
        if self.actions and Action.RECOMPUTE not in self.actions:
            raise ConfigError(
                f"block `{self.name}`: `actions` leaves out `recompute`, which must always remain possible"
            )
        if not self.seeds:
            raise ConfigError(f"block `{self.name}`: `seeds` is empty, expected at least one seed")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Named blocks of cases, played in order on the same ranks and the same loaded model."""

    title: str
    calibration_seconds: float = 20.0
    blocks: tuple[Block, ...]

    def __post_init__(self) -> None:
        names = [b.name for b in self.blocks]
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"a study needs blocks with different names, got {names}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One cell: a block and one value of each axis. None means the run's own setting. `recorded`: of a trace, whose
    arrivals are as they were."""

    block: Block
    utilisation: float
    overlap: float | None
    selector: str | None
    tenancy: str | None
    link: str | None
    seed: int
    disclosure: str | None = None
    prefetch: str | None = None
    recorded: bool = False

    @property
    def title(self) -> str:
        """What a progress bar says."""
        load = f"load {self.utilisation:g}" if self.utilisation != IDLE else RECORDED if self.recorded else "idle"
        parts = [self.block.name, load]
        parts += [f"overlap {self.overlap:.0%}"] if self.overlap is not None else []
        parts += [
            str(x) for x in (self.selector, self.tenancy, self.link, self.disclosure, self.prefetch) if x is not None
        ]
        return ", ".join(parts) + (f", seed {self.seed}" if len(self.block.seeds) > 1 else "")


def cases(study: Study) -> tuple[Case, ...]:
    """All cases in order. The policies of one comparison come last in the product, so they run side by side."""
    out: list[Case] = []
    for block in study.blocks:
        axes = product(
            block.link or (None,),
            block.tenancy or (None,),
            block.seeds,
            block.utilisation,
            block.overlap or (None,),
            block.disclosure or (None,),
            block.prefetch or (None,),
            block.selector or (None,),
        )
        for link, tenancy, seed, utilisation, overlap, disclosure, prefetch, selector in axes:
            out.append(
                Case(
                    block=block,
                    utilisation=utilisation,
                    overlap=overlap,
                    selector=selector,
                    tenancy=tenancy,
                    link=link,
                    seed=seed,
                    disclosure=disclosure,
                    prefetch=prefetch,
                )
            )
    return tuple(out)
