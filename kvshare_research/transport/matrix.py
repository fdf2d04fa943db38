"""Links of a fleet over several places, each pair with its own figures."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Literal, final

from kvshare_research.core.errors import ConfigError, did_you_mean

from .link import Link

LOCAL_RTT_US, LOCAL_BITS_PER_S = 100, 22_500_000_000  # between nodes of one place, assumed: as conf/link/eth_25g


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixLink(Link):
    """Node n stands in place n modulo the number of places; `rtt_us[a][b]` and `rate_bits_per_s[a][b]` by place.

    The diagonals are the links between nodes of one place.
    """

    rtt_us: tuple[tuple[int, ...], ...]
    rate_bits_per_s: tuple[tuple[int, ...], ...]
    label: Literal["emulated"] = "emulated"

    def __post_init__(self) -> None:
        for name, rows, least in (("rtt_us", self.rtt_us, 0), ("rate_bits_per_s", self.rate_bits_per_s, 1)):
            if not rows or any(len(row) != len(self.rtt_us) for row in rows) or len(rows) != len(self.rtt_us):
                raise ConfigError(f"`{name}` is no square of {len(self.rtt_us)} places")
            if min(min(row) for row in rows) < least:
                raise ConfigError(f"`{name}` has {min(min(row) for row in rows)}, expected {least} or more")

    def rtt_between_us(self, source: int, reader: int) -> int:
        count = len(self.rtt_us)
        return 0 if source == reader else self.rtt_us[source % count][reader % count]

    def bits_per_s(self, source: int, reader: int) -> int | None:
        count = len(self.rtt_us)
        return None if source == reader else self.rate_bits_per_s[source % count][reader % count]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLink(Link):
    """Node n stands in cloud region n modulo their number; round trips and rates as Skyplane measured them.

    Read below `<data_root>/network`: the mean round trip, and the median rate of 64 TCP connections between two
    machines (NSDI 2023, artefact). Where only the other direction was measured, it stands for both; a pair without
    either is a ConfigError, and so is a region nobody measured. Links inside a region are assumed.
    """

    data_root: str | None
    regions: tuple[str, ...]
    label: Literal["emulated"] = "emulated"

    def __post_init__(self) -> None:
        if not self.regions or len(set(self.regions)) != len(self.regions):
            raise ConfigError("`link.regions` is empty or names a region twice")

    def rtt_between_us(self, source: int, reader: int) -> int:
        return self.places().rtt_between_us(source, reader)

    def bits_per_s(self, source: int, reader: int) -> int | None:
        return self.places().bits_per_s(source, reader)

    def places(self) -> MatrixLink:
        """The links by region; ConfigError if the data set cannot be read or lacks one."""
        if self.data_root is None:
            raise ConfigError("these links are read from a data set; set `data_root` or KVSHARE_DATA to its folder")
        return _measured(Path(self.data_root) / "network", self.regions)


@lru_cache(maxsize=8)
def _measured(folder: Path, regions: tuple[str, ...]) -> MatrixLink:
    rtt_us = _pairs(_text(folder / "skyplane_latency.csv"), "avg_rtt", regions, 1e3)
    rate = _pairs(_text(folder / "skyplane_throughput.csv.zst"), "throughput_received", regions, 1.0)

    def table(found: dict[tuple[str, str], int], local: int, what: str) -> tuple[tuple[int, ...], ...]:
        def cell(a: str, b: str) -> int:
            value = local if a == b else found.get((a, b), found.get((b, a)))
            if value is None:
                raise ConfigError(f"`link.regions`: no {what} was measured between `{a}` and `{b}`")
            return value

        return tuple(tuple(cell(a, b) for b in regions) for a in regions)

    return MatrixLink(
        rtt_us=table(rtt_us, LOCAL_RTT_US, "round trip"), rate_bits_per_s=table(rate, LOCAL_BITS_PER_S, "rate")
    )


def _pairs(text: str, column: str, regions: tuple[str, ...], scale: float) -> dict[tuple[str, str], int]:
    """The median of a column by directed pair of regions; ConfigError for a region that the table does not know."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    known: set[str] = set()
    for row in csv.DictReader(io.StringIO(text)):
        known |= {row["src_region"], row["dst_region"]}
        if row["src_region"] in regions and row["dst_region"] in regions and row[column]:
            found[row["src_region"], row["dst_region"]].append(float(row[column]) * scale)
    for region in regions:
        if region not in known:
            raise ConfigError(f"`link.regions` names `{region}`{did_you_mean(region, known)}")
    return {pair: int(median(values)) for pair, values in found.items() if max(values) > 0}


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the links: {error.strerror}") from None
    if path.suffix == ".zst":
        import zstandard

        data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
    return data.decode()
