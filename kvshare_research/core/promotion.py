"""The router's side of disclosure: a released prefix is shared once every live node keeps it, and not before.

What a reader can observe of a promoted prefix must depend on the released set alone, never on who has run it since. So
on release the operator has it computed on one node after the other (or pulled from one that has it), each keeps it, and
only then do chains name it: a lookup finds it everywhere, whoever asked before. Requests of the operator have tenant 0,
to whom only public text is readable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, final

from .nouns import Chain, Request, Segment

OPERATOR: Final = 0
FIRST_INSTALL: Final = 1 << 62  # request ids from here on are the operator's
INSTALLS_MAX: Final = 4  # under way at once, so that a release does not fill the queues


def name_of(chain: Chain) -> bytes:
    """What a released prefix is called: the hash of its last block."""
    return chain.block_hash(chain.block_count - 1)


@final
class Promotion:
    """The released set, and what of it each node keeps. `counters` say how installations ended."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.shared: frozenset[bytes] = frozenset()
        self._prefixes: dict[bytes, Chain] = {}
        self._kept: dict[int, frozenset[bytes]] = {}
        self._open: dict[int, tuple[bytes, int]] = {}  # installations under way: (name, node) by request id
        self._failed: set[tuple[bytes, int]] = set()
        self._number = FIRST_INSTALL

    @property
    def prefixes(self) -> tuple[Chain, ...]:
        """The released set as nodes are told it."""
        return tuple(self._prefixes.values())

    def settled(self) -> bool:
        """Whether all that is released is shared, or an installation has failed and none is under way."""
        return self.shared == frozenset(self._prefixes) or (bool(self._failed) and not self._open)

    def release(self, prefixes: Sequence[Chain], live: Iterable[int]) -> None:
        """This is the released set from now on; what is no longer in it is shared no more, at once."""
        deepest_first = sorted(prefixes, key=lambda chain: (-chain.block_count, name_of(chain)))
        self._prefixes = {name_of(chain): chain for chain in deepest_first}
        self._failed.clear()
        self._update(live)

    def keeps(self, node: int, names: Iterable[bytes], live: Iterable[int]) -> None:
        """The node has said what it keeps."""
        self._kept[node] = frozenset(names)
        self._failed -= {(name, node) for name in self._kept[node]}
        self._open = {
            i: (name, at) for i, (name, at) in self._open.items() if at != node or name not in self._kept[node]
        }
        self._update(live)

    def changed(self, node: int, live: Iterable[int]) -> None:
        """The node was lost or has joined: it keeps nothing, until it says otherwise."""
        self._kept.pop(node, None)
        self._open = {number: row for number, row in self._open.items() if row[1] != node}
        self._failed = {row for row in self._failed if row[1] != node}
        self._update(live)

    def installs(self, live: Iterable[int], now_us: int) -> list[tuple[Request, Chain]]:
        """Requests that put what is missing where it is missing: of each prefix on one node at a time."""
        nodes = [node for node in sorted(live) if node in self._kept]
        busy = {name for name, _ in self._open.values()}
        out = []
        for name, chain in self._prefixes.items():
            lacking = (n for n in nodes if name not in self._kept[n] and (name, n) not in self._failed)
            node = next(lacking, None)
            if len(self._open) >= INSTALLS_MAX:
                break
            if name not in busy and node is not None:
                self._number += 1
                self._open[self._number] = (name, node)
                self.counters["installs"] += 1
                out.append((_request(self._number, node, chain, now_us), chain))
        return out

    def ended(self, request_id: int) -> bool:
        """Whether that was a request of the operator. If its prefix is not kept now, that is not tried again before the
        next release, or before the node says that it is."""
        if request_id < FIRST_INSTALL:
            return False
        row = self._open.pop(request_id, None)
        if row is not None and row[0] not in self._kept.get(row[1], ()):
            self._failed.add(row)
        return True

    def _update(self, live: Iterable[int]) -> None:
        names = frozenset(self._prefixes)
        nodes = list(live)
        for node in nodes:
            names &= self._kept.get(node, frozenset())
        self.shared = names if nodes else frozenset()


def _request(number: int, node: int, chain: Chain, now_us: int) -> Request:
    start, segments = 0, []
    for scope_id, end in chain.scope_ends:
        segments.append(Segment(scope_id=scope_id, token_count=(end - start) * chain.block_tokens))
        start = end
    return Request(
        request_id=number, tenant_id=OPERATOR, segments=tuple(segments), output_tokens_max=1, ingress=node,
        arrival_us=now_us, executor=node,
    )  # fmt: skip
