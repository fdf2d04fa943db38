"""What the router knows of the links between nodes: round trips and rates with their spread, and bytes under way.

Each directed link keeps a mean and a mean deviation of its round trip and of its inverse goodput, updated as TCP
does (RFC 6298, section 2: gains 1/8 and 1/4). The selector uses mean + `deviations` * deviation as upper quantile:
a link whose tail is long is priced by its tail. What was not measured for a while is believed less: up to half of the
mean is added as the last measurement grows as old as `stale_us`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final, overload

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.costing import PS_PER_US
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import LinkRow

from .sheet import LinkState, believed

Matrix = NDArray[np.int64]  # [source, reader], or layers of such
FIELDS = ("rtt_us", "rtt_high_us", "ps_per_byte", "ps_per_byte_high", "inflight_bytes")  # of `LinkRow`


@final
@dataclass(frozen=True, slots=True, eq=False)
class LinkMatrix(Sequence[tuple[LinkRow, ...]]):
    """All links at one moment; indexes like rows of `LinkRow`. What is believed of a link is worked out when read."""

    state: LinkState

    @property
    def layers(self) -> Matrix:
        """int64 [field, source, reader] with the fields of `LinkRow` in their order; diagonals are 0."""
        s = self.state
        age_us = np.where(s.measured_us < 0, 0, np.clip(s.now_us - s.measured_us, 0, s.stale_us))
        rtt_high = believed(s.rtt_us, s.rtt_deviation_us, s.deviations, age_us, s.stale_us)
        rate_high = believed(s.ps_per_byte, s.rate_deviation_ps, s.deviations, age_us, s.stale_us)
        layers = np.stack((s.rtt_us, rtt_high, s.ps_per_byte, rate_high, s.inflight_bytes))
        diagonal = np.arange(len(self))
        layers[:, diagonal, diagonal] = 0
        return layers

    def __len__(self) -> int:
        return len(self.state.rtt_us)

    @overload
    def __getitem__(self, source: int) -> tuple[LinkRow, ...]: ...
    @overload
    def __getitem__(self, source: slice) -> tuple[tuple[LinkRow, ...], ...]: ...
    def __getitem__(self, source: int | slice) -> tuple[LinkRow, ...] | tuple[tuple[LinkRow, ...], ...]:
        return tuple(self)[source]

    def __iter__(self) -> Iterator[tuple[LinkRow, ...]]:
        rows = self.layers.transpose(1, 2, 0).tolist()
        return (tuple(LinkRow(**dict(zip(FIELDS, link, strict=True))) for link in row) for row in rows)


def matrix_of(links: Sequence[Sequence[LinkRow]]) -> LinkMatrix:
    """`links` as matrices; the same object when it already is one."""
    if isinstance(links, LinkMatrix):
        return links
    count = len(links)
    cells = [
        (r.rtt_us, r.rtt_high_us, r.ps_per_byte, r.ps_per_byte_high, r.inflight_bytes) for row in links for r in row
    ]
    layers = np.array(cells, np.int64).reshape(count, count, 5).transpose(2, 0, 1)
    rtt, rtt_high, rate, rate_high, inflight = (np.ascontiguousarray(layer) for layer in layers)
    never = np.full((count, count), -1, np.int64)  # so the quantile is the mean and one deviation, as given
    return LinkMatrix(LinkState(rtt, rtt_high - rtt, rate, rate_high - rate, inflight, never, 0, 1, 1))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LinkModel:
    """What is assumed of an unmeasured link, and how measurements are weighed. All whole numbers."""

    rtt_us: int = 1_000
    ps_per_byte: int = 1_000  # 8 Gbit/s
    deviations: int = 2  # high = mean + deviations * mean deviation
    stale_us: int = 60_000_000
    rate_bytes_min: int = 65_536  # a shorter transfer tells the round trip, not the rate

    def __post_init__(self) -> None:
        for name, least in (("rtt_us", 0), ("ps_per_byte", 0), ("deviations", 0), ("stale_us", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"`{name}` of the link model is {getattr(self, name)}, expected >= {least}")


def _put(matrix: Matrix, source: int, reader: int, value: int) -> Matrix:
    copy = matrix.copy()
    copy[source, reader] = value
    return copy


def _learn(
    mean: Matrix, deviation: Matrix, source: int, reader: int, sample: int, first: bool
) -> tuple[Matrix, Matrix]:
    """RFC 6298 section 2, in whole numbers: the first sample sets the mean and half of it as deviation."""
    if first:
        return _put(mean, source, reader, sample), _put(deviation, source, reader, sample // 2)
    old_mean, old_deviation = int(mean[source, reader]), int(deviation[source, reader])
    error = sample - old_mean
    return (
        _put(mean, source, reader, old_mean + error // 8),
        _put(deviation, source, reader, old_deviation + (abs(error) - old_deviation) // 4),
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkTable:
    """The state of all directed links of one router; every change gives a new table and leaves this one as it is."""

    model: LinkModel
    rtt_us: Matrix
    rtt_deviation_us: Matrix
    ps_per_byte: Matrix
    rate_deviation_ps: Matrix
    inflight_bytes: Matrix
    measured_us: Matrix  # when the link was last measured, -1 if never
    rated: Matrix  # 1 where a rate was measured

    @classmethod
    def start(cls, node_count: int, model: LinkModel) -> LinkTable:
        """Links as the model assumes them, nothing under way."""
        zero = np.zeros((node_count, node_count), np.int64)
        return cls(
            model=model,
            rtt_us=zero + model.rtt_us,
            rtt_deviation_us=zero + model.rtt_us // 2,
            ps_per_byte=zero + model.ps_per_byte,
            rate_deviation_ps=zero + model.ps_per_byte // 2,
            inflight_bytes=zero,
            measured_us=zero - 1,
            rated=zero,
        )

    def measured(self, source: int, reader: int, bytes_moved: int, elapsed_us: int, now_us: int) -> LinkTable:
        """The table with one more measurement of source -> reader; `bytes_moved` 0 is a bare round trip.

        The rate of a transfer is what is left of its time after the mean round trip.
        """
        table = replace(self, measured_us=_put(self.measured_us, source, reader, now_us))
        if bytes_moved == 0:
            first = self.measured_us[source, reader] < 0
            rtt, deviation = _learn(self.rtt_us, self.rtt_deviation_us, source, reader, elapsed_us, bool(first))
            return replace(table, rtt_us=rtt, rtt_deviation_us=deviation)
        if bytes_moved < self.model.rate_bytes_min:
            return table
        sample = max(0, elapsed_us - int(self.rtt_us[source, reader])) * PS_PER_US // bytes_moved
        first = self.rated[source, reader] == 0
        rate, deviation = _learn(self.ps_per_byte, self.rate_deviation_ps, source, reader, sample, bool(first))
        rated = _put(self.rated, source, reader, 1) if first else self.rated
        return replace(table, ps_per_byte=rate, rate_deviation_ps=deviation, rated=rated)

    def sending(self, source: int, reader: int, byte_count: int) -> LinkTable:
        """The table with `byte_count` more bytes under way on source -> reader (negative: they have arrived)."""
        under_way = max(0, int(self.inflight_bytes[source, reader]) + byte_count)
        return replace(self, inflight_bytes=_put(self.inflight_bytes, source, reader, under_way))

    def matrix(self, now_us: int) -> LinkMatrix:
        """All links as they are believed to be at `now_us`."""
        return LinkMatrix(
            LinkState(
                self.rtt_us,
                self.rtt_deviation_us,
                self.ps_per_byte,
                self.rate_deviation_ps,
                self.inflight_bytes,
                self.measured_us,
                now_us,
                self.model.deviations,
                self.model.stale_us,
            )
        )
