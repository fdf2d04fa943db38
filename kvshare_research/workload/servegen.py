"""ServeGen (Alibaba): arrivals and lengths of each client of a real service, drawn from its published distributions."""

from __future__ import annotations

import ast
import heapq
import io
import json
import math
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import numpy as np

from kvshare_research.core.errors import ConfigError

from .trace import Reading, TraceRow
from .trace_requests import TraceWorkload

FILES = {"m-small": "servegen_language_m-small", "deepseek-r1": "servegen_reason_deepseek-r1"}
WINDOW_S = 600  # of a rate
NO_IDS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A client's arrivals in one window: mean rate, and the coefficient of variation of the gaps."""

    start_s: int
    rate_per_s: float
    variation: float
    family: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lengths:
    """A distribution of token counts."""

    values: Any
    shares: Any

    def draw(self, chance: np.random.Generator) -> int:
        return int(chance.choice(self.values, p=self.shares))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ServeGenTrace(TraceWorkload):
    """Clients are tenants: skew and bursts are real, content is not known. `start_s` and `duration_s` cut a stretch, to
    the second: it has the requests that any longer one has there; ConfigError if there are none. `rate_scale` thins or
    thickens every client alike. Gaps are renewal, Gamma or Weibull as fitted by the authors, with the published mean
    rate and variation. Clients whose length files were never published cannot be drawn: they are counted in the
    reading, or an error unless `on_error=skip`.
    """

    content_known: ClassVar[bool] = False

    part: Literal["m-small", "deepseek-r1"] = "deepseek-r1"
    start_s: int = 36_000
    duration_s: int = 3_600
    rate_scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        TraceWorkload.__post_init__(self)
        if self.start_s < 0 or self.duration_s < 1:
            raise ConfigError(
                f"`start_s` is {self.start_s} and `duration_s` {self.duration_s}, expected at least 0 and 1"
            )
        if not 0 < self.rate_scale < float("inf"):
            raise ConfigError(f"`rate_scale` is `{self.rate_scale}`, expected a number above 0")

    def rows(self, reading: Reading) -> Iterator[TraceRow]:
        """All clients' requests, merged by time."""
        members = _unpacked(self.path("servegen", f"{FILES[self.part]}.tar.zst"))
        streams = []
        for client in sorted(members, key=lambda name: int(name.rpartition("-")[2])):
            files = members[client]
            if "dataset" not in files:
                if self.on_error == "fail":
                    raise ConfigError(f"servegen: {client} has no published lengths; `on_error=skip` leaves it out")
                reading.refused += 1
                reading.reasons.append(f"{client}: no published lengths")
                continue
            windows = [w for w in _windows(files["trace"], client) if self._wanted(w)]
            streams.append(self._client(client, windows, _lengths(files["dataset"], client)))
        for row in heapq.merge(*streams, key=lambda row: row.arrival_us):
            reading.rows += 1
            yield row
        if not reading.rows:
            end_s = self.start_s + self.duration_s
            raise ConfigError(f"servegen: nobody asks anything in {self.part} from second {self.start_s} to {end_s}")

    def _wanted(self, window: Window) -> bool:
        """Whether some of the window lies in the stretch."""
        return window.start_s < self.start_s + self.duration_s and self.start_s < window.start_s + WINDOW_S

    def _client(
        self, client: str, windows: list[Window], lengths: Mapping[int, tuple[Lengths, Lengths]]
    ) -> Iterator[TraceRow]:
        number = int(client.rpartition("-")[2])
        for window in windows:
            chance = np.random.Generator(np.random.PCG64([self.seed, number, window.start_s]))
            inputs, outputs = lengths[max(start for start in lengths if start <= window.start_s)]
            begin_s = window.start_s - self.start_s
            end_s = min(WINDOW_S, self.duration_s - begin_s)
            at_s = 0.0
            while True:
                at_s += _gap_s(window, chance) / self.rate_scale
                if at_s >= end_s:
                    break
                input_tokens, output_tokens = inputs.draw(chance), outputs.draw(chance)
                if begin_s + at_s < 0:
                    continue
                yield TraceRow(
                    arrival_us=int((begin_s + at_s) * 1e6),
                    input_tokens=max(1, input_tokens),
                    output_tokens=max(1, output_tokens),
                    ids=NO_IDS,
                    client=client,
                    session=f"{window.start_s}/{at_s}",
                )

    def lineage(self, row: TraceRow) -> str:
        """A client is one tenant."""
        return row.client


def _gap_s(window: Window, chance: np.random.Generator) -> float:
    mean_s = 1 / window.rate_per_s
    if window.family == "Weibull":
        shape = _weibull_shape(window.variation)
        return float(chance.weibull(shape)) * mean_s / math.gamma(1 + 1 / shape)
    shape = 1 / window.variation**2
    return float(chance.gamma(shape, mean_s / shape))


def _weibull_shape(variation: float) -> float:
    """The shape whose coefficient of variation this is, by bisection: it falls as the shape grows."""
    low, high = 0.1, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        first, second = math.gamma(1 + 1 / middle), math.gamma(1 + 2 / middle)
        low, high = (middle, high) if second / first**2 - 1 > variation**2 else (low, middle)
    return low


def _unpacked(path: Path) -> dict[str, dict[str, str]]:
    """`trace` and `dataset` texts of each client."""
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError("reading a .zst trace needs zstandard; install the extra `data`") from error
    found: dict[str, dict[str, str]] = {}
    try:
        data = zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(path.open("rb")).read()
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                named = re.search(r"(chunk-\d+)-(trace|dataset)\.", member.name)
                file = archive.extractfile(member)
                if named and file is not None:
                    found.setdefault(named[1], {})[named[2]] = file.read().decode()
    except (zstandard.ZstdError, tarfile.TarError) as error:
        raise ConfigError(f"{path}: not the published archive: {error}") from None
    return {client: files for client, files in found.items() if "trace" in files}


def _windows(text: str, client: str) -> list[Window]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        cells = line.split(",")
        try:
            start, rate, variation = int(float(cells[0])), float(cells[1]), float(cells[2])
            family = cells[3]
        except (ValueError, IndexError):
            raise ConfigError(f"servegen: {client} trace:{number}: `{line[:60]}` is no window") from None
        if not (math.isfinite(rate) and rate >= 0) or (rate > 0 and family not in ("Gamma", "Weibull", "")):
            raise ConfigError(
                f"servegen: {client} trace:{number}: rate `{rate}` of `{family}`, expected Gamma or Weibull"
            )
        if rate > 0 and family and variation > 0:
            rows.append(Window(start_s=start, rate_per_s=rate, variation=variation, family=family))
        elif rate > 0:  # too few requests for a fit: as if they came at random
            rows.append(Window(start_s=start, rate_per_s=rate, variation=1.0, family="Gamma"))
    return rows


def _lengths(text: str, client: str) -> dict[int, tuple[Lengths, Lengths]]:
    try:
        content = json.loads(text)
        found = {int(start): (_one(row["input_tokens"]), _one(row["output_tokens"])) for start, row in content.items()}
        return {start: pair for start, pair in found.items() if len(pair[0].values) and len(pair[1].values)}
    except (ValueError, KeyError, TypeError, SyntaxError) as error:
        raise ConfigError(f"servegen: lengths of {client}: {error}") from None


def _one(text: str) -> Lengths:
    pairs = ast.literal_eval(text)
    shares = np.array(list(pairs.values()), float)
    return Lengths(values=np.array(list(pairs), np.int64), shares=shares / shares.sum() if len(shares) else shares)
