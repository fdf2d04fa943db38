"""What the router knows of the links between nodes: round trips and rates with their spread, and bytes under way.

Each directed link keeps a mean and a mean deviation of its round trip and of its inverse goodput, updated as TCP
does (RFC 6298, section 2: gains 1/8 and 1/4). The selector uses mean + `deviations` * deviation as upper quantile:
a link whose tail is long is priced by its tail. What was not measured for a while is believed less: up to half of the
mean is added as the last measurement grows as old as `stale_us`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final, overload

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.costing import PS_PER_US
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import LinkRow

from .sheet import LinkState, believed

Matrix = NDArray[np.int64]  # [reader, source], or layers of such: a quote goes along the sources of one reader
FIELDS = ("rtt_us", "rtt_high_us", "ps_per_byte", "ps_per_byte_high", "inflight_bytes")  # of `LinkRow`


@final
@dataclass(frozen=True, slots=True, eq=False)
class LinkMatrix(Sequence[tuple[LinkRow, ...]]):
    """All links at one moment; indexes like rows of `LinkRow`. What is believed of a link is worked out when read."""

    state: LinkState

    @property
    def layers(self) -> Matrix:
        """int64 [field, reader, source] with the fields of `LinkRow` in their order; diagonals are 0."""
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
        rows = self.layers.transpose(2, 1, 0).tolist()
        return (tuple(LinkRow(**dict(zip(FIELDS, link, strict=True))) for link in row) for row in rows)


def matrix_of(links: Sequence[Sequence[LinkRow]]) -> LinkMatrix:
    """`links` as matrices; the same object when it already is one."""
    if isinstance(links, LinkMatrix):
        return links
    count = len(links)
    cells = [
        (r.rtt_us, r.rtt_high_us, r.ps_per_byte, r.ps_per_byte_high, r.inflight_bytes) for row in links for r in row
    ]
    layers = np.array(cells, np.int64).reshape(count, count, 5).transpose(2, 1, 0)
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


def _learn(mean: Matrix, deviation: Matrix, at: tuple[int, int], sample: int, first: bool) -> None:
    """RFC 6298 section 2, in whole numbers: the first sample sets the mean and half of it as deviation."""
    if first:
        mean[at], deviation[at] = sample, sample // 2
        return
    old_mean, old_deviation = int(mean[at]), int(deviation[at])
    error = sample - old_mean
    mean[at] = old_mean + error // 8
    deviation[at] = old_deviation + (abs(error) - old_deviation) // 4


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkTable:
    """The state of all directed links of one router. It has one owner, and a change is made in place: of a thousand
    nodes the matrices are too large to be copied at every request."""

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

        def all_links(value: int) -> Matrix:
            return np.full((node_count, node_count), value, np.int64)

        return cls(
            model=model,
            rtt_us=all_links(model.rtt_us),
            rtt_deviation_us=all_links(model.rtt_us // 2),
            ps_per_byte=all_links(model.ps_per_byte),
            rate_deviation_ps=all_links(model.ps_per_byte // 2),
            inflight_bytes=all_links(0),
            measured_us=all_links(-1),
            rated=all_links(0),
        )

    def measured(self, source: int, reader: int, bytes_moved: int, elapsed_us: int, now_us: int) -> LinkTable:
        """This table with one more measurement of source -> reader; `bytes_moved` 0 is a bare round trip.

        The rate of a transfer is what is left of its time after the mean round trip.
        """
        at = (reader, source)
        known = self.measured_us[at] >= 0
        self.measured_us[at] = now_us
        if bytes_moved == 0:
            _learn(self.rtt_us, self.rtt_deviation_us, at, elapsed_us, not known)
        elif bytes_moved >= self.model.rate_bytes_min:
            sample = max(0, elapsed_us - int(self.rtt_us[at])) * PS_PER_US // bytes_moved
            _learn(self.ps_per_byte, self.rate_deviation_ps, at, sample, not self.rated[at])
            self.rated[at] = 1
        return self

    def sending(self, source: int, reader: int, byte_count: int) -> LinkTable:
        """This table with `byte_count` more bytes under way on source -> reader (negative: they have arrived)."""
        at = (reader, source)
        self.inflight_bytes[at] = max(0, int(self.inflight_bytes[at]) + byte_count)
        return self

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
