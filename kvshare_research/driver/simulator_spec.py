"""`driver=simulator` as configured: the modelled engine and fleet, in the units of configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, final

from kvshare_research.core.costing import PS_PER_US, PrefillCoefficients
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import LinkRow
from kvshare_research.transport.link import Link

from .simulator_engine import EngineModel


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSpec:
    """The coefficients of `core/costing.py`, in ps."""

    c0_ps: int
    c1_ps_per_token: int
    c2_ps_per_token: int
    c3_ps_per_token2: int
    c4_ps_per_token2: int

    @property
    def coefficients(self) -> PrefillCoefficients:
        return PrefillCoefficients(
            self.c0_ps, self.c1_ps_per_token, self.c2_ps_per_token, self.c3_ps_per_token2, self.c4_ps_per_token2
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """A node that dies, when the router learns it, and when the node is back, empty; null: never."""

    node: int
    at_us: int
    noticed_us: int
    back_us: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.at_us <= self.noticed_us or (self.back_us is not None and self.back_us < self.noticed_us):
            raise ConfigError(f"failure of node {self.node}: expected 0 <= at_us <= noticed_us <= back_us")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorDriver:
    """Virtual time in one process.

    `prefill` are the engine's true coefficients in ps (see `core/costing.py`); null takes those of `cost`. Unless
    `miscalibrated`, the router quotes with the true ones. `block_tokens` null is the trace's own block, else the
    engine's. Warm-up is `warmup_ratio` of the requests; of a workload without own times the study's number, if any.
    """

    needs_ranks: ClassVar[bool] = False

    node_count: int | None = None  # null: `ranks` less the router
    block_tokens: int | None = None
    kv_bytes_per_token: int
    pool_tokens: int
    prefill: PrefillSpec | None = None
    miscalibrated: bool = False
    decode_step_ps: int
    decode_ps_per_request: int = 0
    decode_ps_per_token: int = 0
    chunk_tokens: int = 0
    batch_max: int = 1
    event_delay_us: int = 0
    event_loss_ratio: float = 0.0
    step_by_step: bool = False
    failures: tuple[NodeFailure, ...] = ()
    warmup_ratio: float = 0.0  # of the requests, from the start: they are played and not counted

    def __post_init__(self) -> None:
        least: Mapping[str, int] = {"kv_bytes_per_token": 1, "pool_tokens": 1, "batch_max": 1}
        for name in ("decode_step_ps", "decode_ps_per_request", "decode_ps_per_token", "chunk_tokens", *least):
            if getattr(self, name) < least.get(name, 0):
                raise ConfigError(f"`driver.{name}` is `{getattr(self, name)}`, expected {least.get(name, 0)} or more")
        if self.node_count is not None and self.node_count < 1:
            raise ConfigError(f"`driver.node_count` is `{self.node_count}`, expected at least 1")
        if not 0 <= self.event_loss_ratio < 1 or not 0 <= self.warmup_ratio < 1:
            raise ConfigError("`driver.event_loss_ratio` and `driver.warmup_ratio` are shares, expected 0 to below 1")

    def decode_fields(self) -> dict[str, int]:
        """What a cost model has to know of an answer that decodes alone, by its field names."""
        step_ps = self.decode_step_ps + self.decode_ps_per_request
        return {"decode_step_ps": step_ps, "decode_ps_per_token": self.decode_ps_per_token}

    def engine(self, coefficients: PrefillCoefficients, merge_ps_per_byte: int) -> EngineModel:
        """The engine of every node."""
        return EngineModel(
            prefill=coefficients,
            decode_step_ps=self.decode_step_ps,
            decode_ps_per_request=self.decode_ps_per_request,
            decode_ps_per_token=self.decode_ps_per_token,
            chunk_tokens=self.chunk_tokens,
            merge_ps_per_byte=merge_ps_per_byte,
        )


def link_rows(link: Link, node_count: int) -> list[list[LinkRow]]:
    """Every directed link as the simulator wants it; a link without a rate costs nothing per byte. Equal links are one
    object."""

    @cache
    def row_of(rtt_us: int, high_us: int, rate: int) -> LinkRow:
        return LinkRow(rtt_us=rtt_us, rtt_high_us=high_us, ps_per_byte=rate, ps_per_byte_high=rate)

    def row(source: int, reader: int) -> LinkRow:
        rtt_us, bits_per_s = link.rtt_between_us(source, reader), link.bits_per_s(source, reader)
        high_us = getattr(link, "rtt_high_between_us", link.rtt_between_us)(source, reader)
        rate = 0 if bits_per_s is None else -(-8 * PS_PER_US * 1_000_000 // bits_per_s)
        return row_of(rtt_us, high_us, rate)

    return [[row(source, reader) for reader in range(node_count)] for source in range(node_count)]


def coefficients_of(cost: Any) -> PrefillCoefficients:
    """The prefill coefficients of a cost model; ConfigError if it has none to simulate with."""
    found = getattr(cost, "coefficients", None)
    if not isinstance(found, PrefillCoefficients):
        raise ConfigError("`driver.prefill` is null and this cost model has no prefill coefficients to simulate with")
    return found
