"""The holder's side of a fetch: it checks the right before a byte leaves, and pins what it sends."""

from __future__ import annotations

from . import messages as m
from .directory import Directory
from .ledger import Block, Ledger
from .nouns import mark_at
from .rights import Reader, Ticket, open_read

# One word for "not here" and "not yours": to the asker a denied read looks exactly like a miss.
NOT_AVAILABLE = "not available"
COLLIDED = "other tokens have this hash"  # said only of what the reader may read


class Serving:
    """Fetches being served by this node, by (asker, fetch id)."""

    def __init__(self, *, ledger: Ledger, lease_us: int) -> None:
        self.refused_reads = 0
        self.collisions = 0
        self._ledger = ledger
        self._lease_us = lease_us
        self._open: dict[tuple[int, int], list[Block]] = {}

    def ask(self, event: m.FetchAsked, directory: Directory, now_us: int) -> m.SendBlocks | m.RefuseFetch:
        """All blocks asked for are pinned and may be sent, or none is."""
        refuse = m.RefuseFetch(fetch_id=event.fetch_id, asker=event.asker, reason=NOT_AVAILABLE)
        twice = len(set(event.hashes)) < len(event.hashes)
        if twice or event.revision > directory.revision or (event.asker, event.fetch_id) in self._open:
            return refuse
        found: list[Block] = []
        tickets: list[Ticket] = []
        for i, block_hash in enumerate(event.hashes):
            block = self._ledger.find(block_hash, now_us, mark_at(event.marks, i))
            ticket = None if block is None else self._ticket(block, event.reader, directory, now_us)
            if block is None or ticket is None:
                return self._collided(event, i, directory, now_us) or refuse
            found.append(block)
            tickets.append(ticket)
        pinned_blocks = self._ledger.pin_first(found)
        if pinned_blocks < len(found):
            self._ledger.drop_all(found[:pinned_blocks])
            return refuse
        for block in found:
            self._ledger.touch(block, now_us)
        self._open[event.asker, event.fetch_id] = found
        return m.SendBlocks(
            fetch_id=event.fetch_id,
            asker=event.asker,
            slots=tuple([b.slot for b in found]),
            tickets=tuple(tickets),
            origins=tuple([b.origin for b in found]),
            marks=b"".join([b.mark for b in found]),
            background=event.background,
        )

    def sent(self, event: m.FetchSent) -> None:
        """The last byte has left, or the send was given up: the pins of this fetch end."""
        self._ledger.drop_all(self._open.pop((event.asker, event.fetch_id), ()))

    def _collided(self, event: m.FetchAsked, position: int, directory: Directory, now_us: int) -> m.RefuseFetch | None:
        """The refusal that names a collision, if that is why the block at `position` was not found."""
        other = self._ledger.collision(event.hashes[position], mark_at(event.marks, position))
        if other is None or self._ticket(other, event.reader, directory, now_us) is None:
            return None
        self.collisions += 1
        return m.RefuseFetch(fetch_id=event.fetch_id, asker=event.asker, reason=COLLIDED)

    def _ticket(self, block: Block, reader: Reader, directory: Directory, now_us: int) -> Ticket | None:
        scope = directory.scopes[block.scope_id]
        membership = directory.membership(reader.tenant, scope)
        ticket = open_read(scope, reader, membership, block.generation, now_us, self._lease_us)
        self.refused_reads += ticket is None
        return ticket
