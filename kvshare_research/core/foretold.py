"""Events and effects of prefetch and disclosure; part of `messages.py`, which is what everybody imports."""

from __future__ import annotations

from dataclasses import dataclass

from .nouns import Chain, Request
from .rights import Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchEnded:
    """A prefetch is over at its node: so many blocks landed, for so many bytes; `reason` where something kept it."""

    prefetch_id: int
    node: int
    landed_blocks: int
    bytes_moved: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchAsked:
    """Fetch blocks [start, chain's end) from `source` into free room, for a request that may come. `request` says for
    whom; it is never run."""

    request: Request
    chain: Chain
    start: int
    source: int
    reader: Reader
    deadline_us: int  # from receipt: past it what has not landed is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPrefetch:
    """Give `asked` to a node."""

    node: int
    asked: PrefetchAsked


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchCancelled:
    prefetch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPrefetch:
    prefetch_id: int
    landed_blocks: int
    bytes_moved: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixesReleased:
    """The whole released set from now on: the chain that each prefix has once shared; its last hash is its name."""

    prefixes: tuple[Chain, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendKeep:
    """Tell a node the whole released set."""

    node: int
    prefixes: tuple[Chain, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepPrefixes:
    """Blocks of these chains stay from the moment they are here; blocks kept before that are of none of them may go."""

    prefixes: tuple[Chain, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportKept:
    """Names of the prefixes that are wholly kept here now."""

    names: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixesKept:
    """What `ReportKept` said, of this node."""

    node: int
    names: tuple[bytes, ...]
