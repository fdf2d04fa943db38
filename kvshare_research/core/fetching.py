"""The reader's side of a fetch: what is on its way, and the check before a byte of it is used."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from . import messages as m
from .directory import Directory
from .nouns import MARK_BYTES, Chain, Piece
from .rights import Ticket, may_deliver
from .running import MISSING, PENDING, PRESENT, Running, State
from .serving import COLLIDED


@dataclass(slots=True, kw_only=True)
class _Fetch:
    running: Running
    piece: Piece
    issued_us: int
    alone: bool  # never beside another fetch over the same link: only then does its time measure the link


class Fetching:
    """Fetches on their way to this node, by fetch id."""

    def __init__(self, *, lease_us: int, deadline_us: int) -> None:
        self.refused_reads = 0
        self._lease_us = lease_us
        self._deadline_us = deadline_us
        self._fetches: dict[int, _Fetch] = {}
        self._next_id = 0

    def running(self, fetch_id: int) -> Running | None:
        """The request an open fetch is for; None once it has been closed."""
        fetch = self._fetches.get(fetch_id)
        return None if fetch is None else fetch.running

    def start(self, running: Running, now_us: int, *, background: bool = False) -> list[m.WorkerEffect]:
        """What the plan wants fetched, and is not resident, is PENDING and asked for; in the `background`, what
        other requests fetch goes first."""
        effects: list[m.WorkerEffect] = []
        for planned in running.event.plan.pieces:
            piece, resident_blocks = planned, len(running.resident)
            if resident_blocks > planned.start:
                piece = replace(planned, start=resident_blocks)
            if piece.block_count <= 0:
                continue
            self._next_id += 1
            beside = [f for f in self._fetches.values() if f.piece.source == piece.source]
            for other in beside:
                other.alone = False
            self._fetches[self._next_id] = _Fetch(running=running, piece=piece, issued_us=now_us, alone=not beside)
            running.fetches.add(self._next_id)
            running.fetch_since_us = now_us
            running.states[piece.start : piece.end] = [PENDING] * piece.block_count
            effects.append(
                m.Fetch(
                    fetch_id=self._next_id,
                    request_id=running.request_id,
                    source=piece.source,
                    reader=running.event.reader,
                    hashes=running.event.chain.block_hashes(piece.start, piece.end),
                    slots=running.slots[piece.start : piece.end],
                    deadline_us=now_us + self._deadline_us,
                    marks=_marks(running.event.chain, piece),
                    background=background,
                )
            )
        return effects

    def is_alone(self, fetch_id: int) -> bool:
        """Whether an open fetch has had its link to itself."""
        return self._fetches[fetch_id].alone

    def land(self, event: m.FetchLanded, running: Running, directory: Directory, now_us: int) -> Piece:
        """The fetch is closed: its blocks are PRESENT if all arrived intact and may still be read, else MISSING."""
        fetch = self._fetches[event.fetch_id]
        running.pulled_bytes += event.bytes_moved
        running.merge_us += event.merge_us
        complete = event.intact and event.block_count == fetch.piece.block_count == len(event.tickets)
        if complete and event.marks != _marks(running.event.chain, fetch.piece):
            running.collided.add(fetch.piece.start)
            complete = False
        usable = complete and self._deliverable(fetch, event, directory, now_us)
        self.close(event.fetch_id, running, PRESENT if usable else MISSING, now_us)
        if usable:
            for i, origin in zip(range(fetch.piece.start, fetch.piece.end), event.origins, strict=True):
                running.fetched.add(i)
                running.blocks[i].origin = origin
        return fetch.piece

    def fail(self, event: m.FetchFailed, running: Running, now_us: int) -> None:
        """The fetch is closed without a byte; its blocks are MISSING."""
        if event.reason == COLLIDED:
            running.collided.add(self._fetches[event.fetch_id].piece.start)
        self.close(event.fetch_id, running, MISSING, now_us)

    def close(self, fetch_id: int, running: Running, state: State, now_us: int) -> None:
        """The fetch is no longer on its way; its blocks have this state."""
        fetch = self._fetches.pop(fetch_id)
        running.fetches.remove(fetch_id)
        running.states[fetch.piece.start : fetch.piece.end] = [state] * fetch.piece.block_count
        if not running.fetches and running.fetch_since_us is not None:
            running.fetch_us += now_us - running.fetch_since_us
            running.fetch_since_us = None

    def cancel(self, running: Running) -> list[m.WorkerEffect]:
        """Nothing more is awaited for this request."""
        effects: list[m.WorkerEffect] = [m.CancelFetch(fetch_id=i) for i in sorted(running.fetches)]
        for fetch_id in running.fetches:
            del self._fetches[fetch_id]
        running.fetches.clear()
        return effects

    def expire(self, now_us: int) -> list[m.WorkerEffect]:
        """Fetches past their deadline are given up: their blocks will be computed."""
        late = [i for i, f in self._fetches.items() if now_us >= f.issued_us + self._deadline_us]
        for fetch_id in late:
            self.close(fetch_id, self._fetches[fetch_id].running, MISSING, now_us)
        return [m.CancelFetch(fetch_id=i) for i in late]

    def _deliverable(self, fetch: _Fetch, event: m.FetchLanded, directory: Directory, now_us: int) -> bool:
        """The reader's check, by its own directory and clock: the lease is counted from when it asked."""
        request, at = fetch.running.event, fetch.piece.start
        for scope_id, end in request.chain.scope_ends:
            until = min(max(end, at), fetch.piece.end)
            tickets = event.tickets[at - fetch.piece.start : until - fetch.piece.start]
            scope, at = directory.scopes[scope_id], until
            membership = directory.membership(request.reader.tenant, scope)
            own: Ticket | None = None
            for ticket in tickets:
                if own is not None and own.grant_epoch == ticket.grant_epoch:
                    continue  # nothing else tells it from the one before
                own = ticket._replace(expiry_us=fetch.issued_us + self._lease_us)
                if not may_deliver(own, scope, request.reader, membership, ticket.generation, now_us):
                    self.refused_reads += 1
                    return False
        return at == fetch.piece.end


def _marks(chain: Chain, piece: Piece) -> bytes:
    return chain.marks[piece.start * MARK_BYTES : piece.end * MARK_BYTES]
