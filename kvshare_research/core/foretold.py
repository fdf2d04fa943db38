"""Events and effects of prefetch and disclosure; part of `messages.py`, which is what everybody imports."""

from __future__ import annotations

from msgspec import Struct

from .nouns import Chain, Request
from .rights import Reader


class PrefetchEnded(Struct, frozen=True, kw_only=True, gc=False):
    """A prefetch is over at its node: so many blocks landed, for so many bytes; `reason` where something kept it."""

    prefetch_id: int
    node: int
    landed_blocks: int
    bytes_moved: int
    reason: str = ""


class PrefetchAsked(Struct, frozen=True, kw_only=True, gc=False):
    """Fetch blocks [start, chain's end) from `source` into free room, for a request that may come. `request` says for
    whom; it is never run."""

    request: Request
    chain: Chain
    start: int
    source: int
    reader: Reader
    deadline_us: int  # from receipt: past it what has not landed is given up


class SendPrefetch(Struct, frozen=True, kw_only=True, gc=False):
    """Give `asked` to a node."""

    node: int
    asked: PrefetchAsked


class PrefetchCancelled(Struct, frozen=True, kw_only=True, gc=False):
    prefetch_id: int


class ReportPrefetch(Struct, frozen=True, kw_only=True, gc=False):
    prefetch_id: int
    landed_blocks: int
    bytes_moved: int
    reason: str


class PrefixesReleased(Struct, frozen=True, kw_only=True, gc=False):
    """The whole released set from now on: the chain that each prefix has once shared; its last hash is its name."""

    prefixes: tuple[Chain, ...]


class SendKeep(Struct, frozen=True, kw_only=True, gc=False):
    """Tell a node the whole released set."""

    node: int
    prefixes: tuple[Chain, ...]


class KeepPrefixes(Struct, frozen=True, kw_only=True, gc=False):
    """Blocks of these chains stay from the moment they are here; blocks kept before that are of none of them may go."""

    prefixes: tuple[Chain, ...]


class ReportKept(Struct, frozen=True, kw_only=True, gc=False):
    """Names of the prefixes that are wholly kept here now."""

    names: tuple[bytes, ...]


class PrefixesKept(Struct, frozen=True, kw_only=True, gc=False):
    """What `ReportKept` said, of this node."""

    node: int
    names: tuple[bytes, ...]
