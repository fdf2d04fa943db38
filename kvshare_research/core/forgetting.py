"""Which blocks were held once: a bounded memory of hashes, to tell a block that was evicted from one nobody had."""

from __future__ import annotations

from collections import OrderedDict
from typing import final

from .poollog import BlocksRemoved, BlocksStored, PoolEvent

FORGOTTEN_MAX = 1 << 16  # hashes; beyond it, the first that was removed goes


@final
class Forgotten:
    """Hashes of blocks that some node has removed and none has stored since."""

    def __init__(self) -> None:
        self._hashes: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._hashes

    def hears(self, body: PoolEvent) -> None:
        """A node has said this of its pool."""
        hashes = self._hashes
        if isinstance(body, BlocksRemoved):
            for block_hash in body.hashes:
                hashes[block_hash] = None
            for _ in range(len(hashes) - FORGOTTEN_MAX):
                hashes.popitem(last=False)
        elif isinstance(body, BlocksStored):
            for block_hash in hashes.keys() & body.hashes:
                del hashes[block_hash]
