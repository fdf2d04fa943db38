"""The worker's side of disclosure: blocks of released prefixes stay on the node, however little they are used.

A block is kept by a pin, and a pin is an admission: where the account of its scope or the floors of others leave no
room, it is refused, and the prefix is shared nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from . import messages as m
from .ledger import Block, Ledger
from .nouns import Chain
from .promotion import name_of


@final
class Keeping:
    """Which blocks this node has been told to keep, and which of them it has. `refused` counts refused pins."""

    def __init__(self, ledger: Ledger) -> None:
        self.refused = 0
        self._ledger = ledger
        self._prefixes: dict[bytes, tuple[bytes, ...]] = {}
        self._marks: dict[bytes, bytes] = {}  # by block hash
        self._kept: dict[bytes, Block] = {}
        self.missing: set[bytes] = set()  # to be kept, and not yet
        self._told: frozenset[bytes] | None = None

    @property
    def block_count(self) -> int:
        """Blocks that are pinned because they are kept."""
        return len(self._kept)

    def want(self, prefixes: Sequence[Chain]) -> None:
        """From now on these are kept; other blocks kept so far are as any block."""
        self._prefixes = {name_of(chain): chain.block_hashes(0, chain.block_count) for chain in prefixes}
        wanted = {block_hash for hashes in self._prefixes.values() for block_hash in hashes}
        self._marks = {c.block_hash(i): c.mark(i) for c in prefixes for i in range(c.block_count)}
        gone = [block_hash for block_hash in self._kept if block_hash not in wanted]
        for block_hash in gone:
            block = self._kept.pop(block_hash)
            block.kept = False
            self._ledger.drop(block)
        self.missing = wanted - self._kept.keys()
        self._told = None

    def settle(self, now_us: int) -> list[m.WorkerEffect]:
        """What is here of the missing is kept. The router hears if that makes a prefix whole."""
        for block_hash in sorted(self.missing):
            block = self._ledger.find(block_hash, now_us, self._marks[block_hash])
            if block is None:
                continue
            if not self._ledger.pin(block):
                self.refused += 1
                continue
            block.kept = True
            self._kept[block_hash] = block
            self.missing.discard(block_hash)
        whole = frozenset(n for n, hashes in self._prefixes.items() if all(h in self._kept for h in hashes))
        if whole == self._told:
            return []
        self._told = whole
        return [m.ReportKept(names=tuple(sorted(whole)))]
