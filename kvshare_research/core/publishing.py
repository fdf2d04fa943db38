"""What a worker tells of its pool: blocks become findable and leave, entry by entry of its journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from . import messages as m
from .journal import Journal, Rows
from .ledger import Ledger
from .nouns import Chain, Tier
from .victims import Block


@final
class Publishing:
    """Names blocks in the ledger and writes the journal; nothing else does either."""

    def __init__(self, *, ledger: Ledger, journal: Journal) -> None:
        self._ledger = ledger
        self._journal = journal

    def stored(self, chain: Chain, blocks: Sequence[Block], start: int, end: int, now_us: int) -> list[m.WorkerEffect]:
        """Full blocks [start, end) become findable, in runs of one scope; what another slot holds stays unnamed."""
        effects: list[m.WorkerEffect] = []
        end = min(end, chain.block_count)
        hashes, marks = chain.block_hashes(start, end), chain.block_marks(start, end)
        at = start
        for scope_id, scope_end in chain.scope_ends:
            scope_end = min(scope_end, end)
            while at < scope_end:
                parent = chain.block_hash(at - 1) if at else None
                left = slice(at - start, scope_end - start)
                named = self._ledger.name_run(blocks[at:scope_end], hashes[left], marks[left], parent, at, now_us)
                if named:
                    run = hashes[at - start : at - start + named]
                    body = m.BlocksStored(tier=Tier.DEVICE, parent=parent, hashes=run, scope_id=scope_id)
                    effects.append(self._written(body))
                at = min(at + named + 1, scope_end)  # past the one that another slot holds, if one does
        assert at >= end, f"scopes of a chain end at block {at} of {chain.block_count}"
        return effects

    def removed(self, evicted: tuple[Block, ...]) -> list[m.WorkerEffect]:
        """What was evicted is announced as gone."""
        if not evicted:
            return []
        hashes = tuple([block.block_hash for block in evicted if block.block_hash is not None])
        return [self._written(m.BlocksRemoved(tier=Tier.DEVICE, hashes=hashes))]

    def answered(self, event: m.SnapshotAsked) -> list[m.WorkerEffect]:
        """What brings the asking router up to date."""
        messages = self._journal.answer(event.incarnation, event.after_seq, self._rows)
        return [m.Publish(message=message) for message in messages]

    def _written(self, body: m.PoolEvent) -> m.WorkerEffect:
        return m.Publish(message=self._journal.write(body))

    def _rows(self) -> Rows:
        rows = [(int(Tier.DEVICE), b.block_hash, b.parent, 1) for b in self._ledger.named() if b.block_hash is not None]
        return tuple(sorted(rows, key=lambda row: row[1]))
