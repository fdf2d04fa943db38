"""Our own workers' messages in the format engines publish, so that anybody's indexer can follow us.

Token ids leave the process for public blocks only, unless all are asked for; other blocks travel as hashes, which mean
nothing without the key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.nouns import Chain
from kvshare_research.core.poollog import BlocksRemoved, BlocksStored, PoolMessage, TierCleared

from .frames import Cleared, Event, Removed, Stored, hash64

PUBLIC_SCOPE = 0
KNOWN_BLOCKS_MAX = 1 << 16


@final
class Bridge:
    """Turns pool messages into events. `seen` must be told of a prompt before its blocks are published."""

    def __init__(self, block_tokens: int, *, all_tokens: bool = False) -> None:
        self.block_tokens, self._all = block_tokens, all_tokens
        self._tokens: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()

    def seen(self, chain: Chain, tokens: NDArray[np.uint32]) -> None:
        """The tokens of the chain's blocks that may be told are known (of the last `KNOWN_BLOCKS_MAX` such blocks)."""
        start = 0
        for scope_id, end in chain.scope_ends:
            for i in range(start, end) if self._told(scope_id) else ():
                block = tokens[i * self.block_tokens : (i + 1) * self.block_tokens]
                self._tokens[chain.block_hash(i)] = tuple(block.tolist())
            start = end
        while len(self._tokens) > KNOWN_BLOCKS_MAX:
            self._tokens.popitem(last=False)

    def events(self, message: PoolMessage) -> tuple[Event, ...]:
        """What is to be published of it; nothing for heartbeats and snapshots, which engines do not have."""
        body = message.body
        if isinstance(body, BlocksStored):
            return self._stored(body)
        if isinstance(body, BlocksRemoved):
            return (Removed(hashes=tuple(map(hash64, body.hashes)), tier=body.tier),)
        return (Cleared(tier=body.tier),) if isinstance(body, TierCleared) else ()

    def _told(self, scope_id: int) -> bool:
        return self._all or scope_id == PUBLIC_SCOPE

    def _stored(self, body: BlocksStored) -> tuple[Event, ...]:
        """The front whose tokens are known and may be told with them, the rest without."""
        known = body.hashes if self._told(body.scope_id) else ()
        front = next((i for i, h in enumerate(known) if h not in self._tokens), len(known))
        parts: list[tuple[bytes | None, Sequence[bytes], bool]] = [(body.parent, body.hashes[:front], True)]
        parts.append((body.hashes[front - 1] if front else body.parent, body.hashes[front:], False))
        return tuple(
            Stored(
                hashes=tuple(map(hash64, hashes)),
                parent=None if parent is None else hash64(parent),
                tokens=tuple(t for h in hashes for t in self._tokens[h]) if public else (),
                block_tokens=self.block_tokens,
                tier=body.tier,
            )
            for parent, hashes, public in parts
            if hashes
        )
