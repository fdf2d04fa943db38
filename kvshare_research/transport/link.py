"""Links between nodes as configured values: what a link costs, and whether that is measured or emulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, final

from kvshare_research.core.errors import ConfigError


class Link(Protocol):
    """Round trip and rate of every directed pair of different nodes."""

    @property
    def label(self) -> str:
        """`measured`: the links are what they are. `emulated`: a driver delays and paces messages."""

    def rtt_between_us(self, source: int, reader: int) -> int: ...

    def bits_per_s(self, source: int, reader: int) -> int | None:
        """None: as fast as the machine goes."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UniformLink(Link):
    """All pairs alike. `rtt_us` 0 and `rate_bits_per_s` None change nothing."""

    rtt_us: int = 0
    rate_bits_per_s: int | None = None
    label: Literal["measured", "emulated"] = "measured"

    def __post_init__(self) -> None:
        if self.rtt_us < 0:
            raise ConfigError(f"`rtt_us` is `{self.rtt_us}`, expected 0 or more")
        if self.rate_bits_per_s is not None and self.rate_bits_per_s <= 0:
            raise ConfigError(f"`rate_bits_per_s` is `{self.rate_bits_per_s}`, expected more than 0 or null")
        shaped = self.rtt_us > 0 or self.rate_bits_per_s is not None
        if shaped != (self.label == "emulated"):
            raise ConfigError(f"`label` is `{self.label}`, expected `{'emulated' if shaped else 'measured'}` here")

    def rtt_between_us(self, source: int, reader: int) -> int:
        return 0 if source == reader else self.rtt_us

    def bits_per_s(self, source: int, reader: int) -> int | None:
        return None if source == reader else self.rate_bits_per_s
