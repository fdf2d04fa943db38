"""What a worker tells of its pool: blocks become findable and leave, entry by entry of its journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from . import messages as m
from .journal import Journal, Rows
from .ledger import Evicted, Ledger
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
        run: list[bytes] = []
        end = min(end, chain.block_count)
        hashes = chain.block_hashes(start, end)
        parent = chain.block_hash(start - 1) if start else None
        cuts = {first for _, first in chain.scope_ends}  # where another scope begins
        for i, (block_hash, mark) in enumerate(zip(hashes, chain.block_marks(start, end), strict=True), start):
            named = self._ledger.name(blocks[i], block_hash, parent, i, blocks[i].origin, now_us, mark)
            if run and (not named or i in cuts):
                effects.append(self._run(chain, i - len(run), run))
                run = []
            if named:
                run.append(block_hash)
            parent = block_hash
        if run:
            effects.append(self._run(chain, end - len(run), run))
        return effects

    def removed(self, evicted: tuple[Evicted, ...]) -> list[m.WorkerEffect]:
        """What was evicted is announced as gone."""
        if not evicted:
            return []
        return [self._written(m.BlocksRemoved(tier=Tier.DEVICE, hashes=tuple(e.block_hash for e in evicted)))]

    def answered(self, event: m.SnapshotAsked) -> list[m.WorkerEffect]:
        """What brings the asking router up to date."""
        messages = self._journal.answer(event.incarnation, event.after_seq, self._rows)
        return [m.Publish(message=message) for message in messages]

    def _run(self, chain: Chain, start: int, hashes: list[bytes]) -> m.WorkerEffect:
        return self._written(
            m.BlocksStored(
                tier=Tier.DEVICE,
                parent=chain.block_hash(start - 1) if start else None,
                hashes=tuple(hashes),
                scope_id=chain.scope_at(start),
            )
        )

    def _written(self, body: m.PoolEvent) -> m.WorkerEffect:
        return m.Publish(message=self._journal.write(body))

    def _rows(self) -> Rows:
        rows = [(int(Tier.DEVICE), b.block_hash, b.parent, 1) for b in self._ledger.named() if b.block_hash is not None]
        return tuple(sorted(rows, key=lambda row: row[1]))
