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

from .sheet import (
    INFLIGHT_BYTES,
    LINK_FIELDS,
    MEASURED,
    RATE,
    RATE_DEVIATION,
    RATED,
    RTT,
    RTT_DEVIATION,
    LinkState,
    believed,
)  # fmt: skip

Matrix = NDArray[np.int64]  # [source, reader, field]: a quote goes along the ways from one ingress
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
        of = np.moveaxis(s.links, 2, 0)
        age_us = np.where(of[MEASURED] < 0, 0, np.clip(s.now_us - of[MEASURED], 0, s.stale_us))
        rtt_high = believed(of[RTT], of[RTT_DEVIATION], s.deviations, age_us, s.stale_us)
        rate_high = believed(of[RATE], of[RATE_DEVIATION], s.deviations, age_us, s.stale_us)
        layers = np.stack((of[RTT], rtt_high, of[RATE], rate_high, of[INFLIGHT_BYTES]))
        diagonal = np.arange(len(self))
        layers[:, diagonal, diagonal] = 0
        return layers

    def __len__(self) -> int:
        return len(self.state.links)

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
    given = np.array(cells, np.int64).reshape(count, count, 5)
    table = np.zeros((count, count, LINK_FIELDS), np.int64)
    table[:, :, [RTT, RATE, INFLIGHT_BYTES]] = given[:, :, [0, 2, 4]]
    table[:, :, [RTT_DEVIATION, RATE_DEVIATION]] = given[:, :, [1, 3]] - given[:, :, [0, 2]]
    table[:, :, MEASURED] = -1  # so the quantile is the mean and one deviation, as given
    least = _least(given)
    return LinkMatrix(LinkState(table, 0, 1, 1, int(least[1]), int(least[3])))


def _least(table: Matrix) -> Matrix:
    """The least of each field over all links between two nodes."""
    least: Matrix = np.min(table[~np.eye(len(table), dtype=bool)], axis=0, initial=np.iinfo(np.int64).max)
    return least


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


def _learn(link: list[int], mean_at: int, sample: int, first: bool) -> None:
    """RFC 6298 section 2, in whole numbers: the first sample sets the mean and half of it as deviation."""
    mean, deviation = link[mean_at], link[mean_at + 1]
    error = sample - mean
    link[mean_at] = sample if first else mean + error // 8
    link[mean_at + 1] = sample // 2 if first else deviation + (abs(error) - deviation) // 4


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkTable:
    """The state of all directed links of one router. It has one owner, and a change is made in place: of a thousand
    nodes the table is too large to be copied at every request."""

    model: LinkModel
    links: Matrix  # the fields of `LinkState.links`; RATED is 1 where a rate was measured
    least: Matrix  # by field: no mean between two nodes was ever less

    @classmethod
    def start(cls, node_count: int, model: LinkModel) -> LinkTable:
        """Links as the model assumes them, nothing under way."""
        every = np.full((node_count, node_count), 1, np.int64)
        return cls.known(
            model, model.rtt_us * every, model.rtt_us // 2 * every, model.ps_per_byte * every,
            model.ps_per_byte // 2 * every,
        )  # fmt: skip

    @classmethod
    def known(
        cls, model: LinkModel, rtt_us: Matrix, rtt_deviation_us: Matrix, rate_ps: Matrix, rate_deviation_ps: Matrix
    ) -> LinkTable:
        """Links of these means and deviations, [source, reader] each, nothing under way."""
        table = np.zeros((*rtt_us.shape, LINK_FIELDS), np.int64)
        table[:, :, RTT], table[:, :, RTT_DEVIATION] = rtt_us, rtt_deviation_us
        table[:, :, RATE], table[:, :, RATE_DEVIATION] = rate_ps, rate_deviation_ps
        table[:, :, MEASURED] = -1
        return cls(model=model, links=table, least=_least(table))

    def measured(self, source: int, reader: int, bytes_moved: int, elapsed_us: int, now_us: int) -> LinkTable:
        """This table with one more measurement of source -> reader; `bytes_moved` 0 is a bare round trip.

        The rate of a transfer is what is left of its time after the mean round trip.
        """
        link: list[int] = self.links[source, reader].tolist()
        known = link[MEASURED] >= 0
        link[MEASURED] = now_us
        if bytes_moved == 0:
            _learn(link, RTT, elapsed_us, not known)
        elif bytes_moved >= self.model.rate_bytes_min:
            sample = max(0, elapsed_us - link[RTT]) * PS_PER_US // bytes_moved
            _learn(link, RATE, sample, not link[RATED])
            link[RATED] = 1
        self.links[source, reader] = link
        np.minimum(self.least, link, out=self.least)
        return self

    def sending(self, source: int, reader: int, byte_count: int) -> LinkTable:
        """This table with `byte_count` more bytes under way on source -> reader (negative: they have arrived)."""
        under_way = max(0, int(self.links[source, reader, INFLIGHT_BYTES]) + byte_count)
        self.links[source, reader, INFLIGHT_BYTES] = under_way
        return self

    def matrix(self, now_us: int) -> LinkMatrix:
        """All links as they are believed to be at `now_us`."""
        model, least = self.model, self.least
        return LinkMatrix(
            LinkState(self.links, now_us, model.deviations, model.stale_us, int(least[RTT]), int(least[RATE]))
        )
