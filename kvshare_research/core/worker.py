"""The worker: pool ledger, leases and queue in; fetches, prefills and answers out. `handle(event, now_us) -> effects`.

A request is a row of blocks, each MISSING, PENDING (being fetched) or PRESENT. Compute takes the first run of
missing blocks whenever nothing before it is pending; so a split plan computes its front while its back arrives,
and a failed fetch turns its blocks back to MISSING. Fetches start on admission, also while another request computes.
"""

from __future__ import annotations

from collections.abc import Callable

from . import messages as m
from .directory import Directory
from .fetching import Fetching
from .journal import Journal
from .keeping import Keeping
from .ledger import Block, Ledger
from .nouns import Chain, mark_at
from .ports import QUEUE
from .prefetching import Prefetching
from .publishing import Publishing
from .requota import Requota
from .rights import Reader, may_read
from .running import MISSING, PRESENT, Running, WorkerPolicy, awaits_another, blocks_for, to_compute
from .serving import Serving
from .waiting import Asked, Waiting, asked_of


class Worker:
    """One node's decisions. Owns its ledger and queue; reads no clock."""

    def __init__(
        self, *, node: int, incarnation: int, policy: WorkerPolicy, ledger: Ledger, directory: Directory
    ) -> None:
        self.node = node
        self.journal = Journal(node, incarnation)
        self.policy = policy
        self.ledger = ledger
        self._heed(directory)
        self.refused_reads = 0
        self.serving = Serving(ledger=ledger, lease_us=policy.lease_us)
        self.fetching = Fetching(lease_us=policy.lease_us, deadline_us=policy.fetch_deadline_us)
        self.publishing = Publishing(ledger=ledger, journal=self.journal)
        self.prefetching = Prefetching(ledger=ledger, fetching=self.fetching)
        self.keeping = Keeping(ledger)
        self.requota = Requota(ledger)
        self._waiting = Waiting(policy.schedule, policy.block_tokens)
        self._running: dict[int, Running] = {}  # admitted, before their first token
        self._decoding: dict[int, Running] = {}
        self._deferred: list[m.FetchAsked] = []
        self._busy: int | None = None
        self._handlers: dict[type, Callable[..., list[m.WorkerEffect]]] = {
            m.Dispatched: self._dispatched,
            m.PrefetchAsked: self._prefetch_asked,
            m.PrefetchCancelled: self._prefetch_cancelled,
            m.KeepPrefixes: self._keep_prefixes,
            m.FetchAsked: self._fetch_asked,
            m.FetchSent: self._fetch_sent,
            m.FetchLanded: self._fetch_landed,
            m.FetchFailed: self._fetch_failed,
            m.PrefillDone: self._prefill_done,
            m.DecodeDone: self._decode_done,
            m.EngineFailed: self._engine_failed,
            m.SnapshotAsked: self._snapshot_asked,
            m.DirectoryChanged: self._directory_changed,
            m.Ticked: self._ticked,
        }

    def handle(self, event: m.WorkerEvent, now_us: int) -> tuple[m.WorkerEffect, ...]:
        """The effects of one event; all state changes happen here."""
        effects = self._handlers[type(event)](event, now_us)
        if self.prefetching.flights:
            effects.extend(self.prefetching.settle())
        if self.requota.is_waiting:
            effects.extend(self.publishing.removed(self.requota.settle()))
        if self.keeping.missing and isinstance(event, m.PrefillDone | m.FetchLanded | m.Ticked):
            effects.extend(self.keeping.settle(now_us))
        if self._deferred:
            effects.extend(self._serve_deferred(now_us))
        self._advance(now_us, effects)
        return tuple(effects)

    @property
    def queued_requests(self) -> int:
        return len(self._waiting) + len(self._running) + len(self._decoding)

    def _heed(self, directory: Directory) -> None:
        self.directory = directory
        self.ledger.values.levels = tuple(scope.level for scope in directory.scopes)

    # ------------------------------------------------------------------ arrival and admission
    def _dispatched(self, event: m.Dispatched, now_us: int) -> list[m.WorkerEffect]:
        asked = asked_of(event, self.policy.block_tokens, now_us)
        refusal = self.ledger.fits_ever(asked.counts)
        if event.request.tenant_id in self.directory.removed:
            refusal = "the tenant has been removed"
        if refusal is not None:
            return [m.ReturnPlan(request_id=event.request.request_id, reason=refusal)]
        self._waiting.add(asked)
        self._want(asked, 1, now_us)
        return []

    def _admit_one(self, now_us: int, effects: list[m.WorkerEffect]) -> bool:
        """Admits the waiting request that the schedule names; False when it must wait for blocks."""
        position, asked = self._waiting.next(self.ledger.priority, now_us)
        counts = asked.counts
        if not self.ledger.may_fit(counts):
            effects.extend(self.prefetching.cancel_all("room needed"))
            refusal = None if self.ledger.may_fit(counts) else self.ledger.fits_ever(counts)
            if refusal or (not self.ledger.may_fit(counts) and self._pins_will_end()):
                return self._turned_away(position, now_us, effects, refusal)
        running = self._take_blocks(asked, now_us, effects)
        if running is None:
            return self._turned_away(position, now_us, effects, None)
        self._waiting.take(position)
        self._want(asked, -1, now_us)
        self._running[running.request_id] = running
        running.queue_us += now_us - asked.since_us
        effects.extend(self.fetching.start(running, now_us))
        return True

    def _take_blocks(self, asked: Asked, now_us: int, effects: list[m.WorkerEffect]) -> Running | None:
        """Pins what is resident and allocates the rest, or gives everything back."""
        event = asked.event
        held = self._resident_of(event.chain, asked.reusable_blocks, event.reader, now_us)
        found, resident_blocks = len(held), self.ledger.pin_first(held)
        del held[resident_blocks:]
        if self.prefetching.takes_room:
            cancelled, shed = self.prefetching.make_room(asked.charges[-1][1] - resident_blocks)
            effects.extend([*cancelled, *self.publishing.removed(shed)])
        for scope_id, end in asked.charges:
            if end <= len(held):
                continue
            taken, evicted = self.ledger.allocate(scope_id, end - len(held), now_us)
            effects.extend(self.publishing.removed(evicted))
            if taken is None:
                self.ledger.drop_all(held)
                return None
            held.extend(taken)
        if resident_blocks:
            resident = held[:resident_blocks]
            self.prefetching.use(resident)
            for block in resident:
                self.ledger.touch(block, now_us)
        prompt_blocks = blocks_for(event.request.token_count, self.policy.block_tokens)
        states = [PRESENT] * resident_blocks + [MISSING] * (prompt_blocks - resident_blocks)
        running = Running(
            event=event, dispatched_us=asked.since_us, blocks=held, states=states,
            reusable_blocks=asked.reusable_blocks, resident=set(range(resident_blocks)),
        )  # fmt: skip
        if found < asked.reusable_blocks:
            self._note_collision(running, found)
        return running

    def _note_collision(self, running: Running, block_index: int) -> None:
        """A wanted block was not found: because other tokens are there under its hash?"""
        chain = running.event.chain
        if self.ledger.collision(chain.block_hash(block_index), chain.mark(block_index)) is not None:
            running.collided.add(block_index)

    def _turned_away(self, position: int, now_us: int, effects: list[m.WorkerEffect], refusal: str | None) -> bool:
        """A request that got no blocks waits for pins to end; where none will, or its quota was lowered below what it
        needs (`refusal`), waiting would be for ever."""
        if refusal is None and self._pins_will_end():
            return False
        asked = self._waiting.remove(position)
        self._want(asked, -1, now_us)
        reason = refusal or "NoRoom: what stronger classes and released prefixes keep here leaves too few blocks"
        effects.append(m.ReturnPlan(request_id=asked.event.request.request_id, reason=reason))
        return True

    def _want(self, asked: Asked, step: int, now_us: int) -> None:
        """The request begins (1) or ceases (-1) to wait: for policies that look at the queue."""
        if QUEUE in self.policy.retention.needs:
            self.ledger.want(asked.event.chain.block_hashes(0, asked.reusable_blocks), step, now_us)

    def _pins_will_end(self) -> bool:
        return self.ledger.pinned_blocks > self.keeping.block_count

    def _resident_of(self, chain: Chain, block_count: int, reader: Reader, now_us: int) -> list[Block]:
        """The first of `block_count` blocks of the chain that are here and readable."""
        found: list[Block] = []
        scope_id = None  # the last that may be read
        for i in range(block_count):
            block = self.ledger.find(chain.block_hash(i), now_us, chain.mark(i))
            if block is None:
                break
            if block.scope_id != scope_id:
                if not self._readable(block, reader, now_us):
                    break
                scope_id = block.scope_id
            found.append(block)
        return found

    def _readable(self, block: Block, reader: Reader, now_us: int) -> bool:
        scope = self.directory.scopes[block.scope_id]
        allowed = may_read(scope, reader, self.directory.membership(reader.tenant, scope), now_us)
        self.refused_reads += not allowed
        return allowed

    # ------------------------------------------------------------------ fetching
    def _fetch_asked(self, event: m.FetchAsked, now_us: int) -> list[m.WorkerEffect]:
        """Served, refused, or kept until what is missing has been computed here: it is computed once for everybody."""
        asked = [(h, mark_at(event.marks, i)) for i, h in enumerate(event.hashes)]
        absent = {(h, mark) for h, mark in asked if self.ledger.find(h, now_us, mark) is None}
        if absent and absent <= to_compute(self._running.values(), event.reader, self.directory, now_us):
            self._deferred.append(event)
            return []
        return [self.serving.ask(event, self.directory, now_us)]

    def _serve_deferred(self, now_us: int) -> list[m.WorkerEffect]:
        waiting, self._deferred = self._deferred, []
        return [effect for event in waiting for effect in self._fetch_asked(event, now_us)]

    def _prefetch_asked(self, event: m.PrefetchAsked, now_us: int) -> list[m.WorkerEffect]:
        resident = self._resident_of(event.chain, event.chain.block_count, event.reader, now_us)
        return self.prefetching.ask(event, resident, now_us)

    def _prefetch_cancelled(self, event: m.PrefetchCancelled, now_us: int) -> list[m.WorkerEffect]:
        return self.prefetching.cancel(event.prefetch_id)

    def _keep_prefixes(self, event: m.KeepPrefixes, now_us: int) -> list[m.WorkerEffect]:
        self.keeping.want(event.prefixes)
        return self.keeping.settle(now_us)

    def _fetch_sent(self, event: m.FetchSent, now_us: int) -> list[m.WorkerEffect]:
        self.serving.sent(event)
        return []

    def _fetch_landed(self, event: m.FetchLanded, now_us: int) -> list[m.WorkerEffect]:
        running = self.fetching.running(event.fetch_id)
        if running is None:
            return []  # cancelled or past its deadline: the bytes are not used
        alone = self.fetching.is_alone(event.fetch_id)
        piece = self.fetching.land(event, running, self.directory, now_us)
        report = m.ReportLink(source=piece.source, bytes_moved=event.bytes_moved, elapsed_us=event.elapsed_us)
        effects: list[m.WorkerEffect] = [report] if alone else []
        if running.states[piece.start] == PRESENT:  # all of the piece has one state
            effects += self.publishing.stored(running.event.chain, running.blocks, piece.start, piece.end, now_us)
        return effects

    def _fetch_failed(self, event: m.FetchFailed, now_us: int) -> list[m.WorkerEffect]:
        running = self.fetching.running(event.fetch_id)
        if running is not None:
            self.fetching.fail(event, running, now_us)
        return []

    # ------------------------------------------------------------------ computing
    def _advance(self, now_us: int, effects: list[m.WorkerEffect]) -> None:
        """Admits what fits and gives the idle engine its next stretch."""
        while self._waiting.asked and len(self._running) < self.policy.admitted_max:
            if not self._admit_one(now_us, effects):
                break
        for running in self._running.values():
            idle = running.ready_since_us is None and running.computing is None
            if idle and running.may_go_on():
                running.ready_since_us = now_us
        if self._running and self._busy is None and len(self._decoding) < self.policy.batch_max:
            self._compute(now_us, effects)

    def _compute(self, now_us: int, effects: list[m.WorkerEffect]) -> None:
        for running in self._running.values():  # admission order is the schedule's order
            if running.ready_since_us is None:
                continue
            self._adopt(running, now_us)
            if awaits_another(running, self._running.values(), self.directory, now_us):
                continue
            running.queue_us += now_us - running.ready_since_us
            running.ready_since_us = None
            running.computing = running.stretch(self.policy.block_tokens)
            if running.computing is not None:
                effects.append(self._prefill(running, *running.computing))
                return

    def _prefill(self, running: Running, start_token: int, end_token: int) -> m.WorkerEffect:
        self._busy = running.request_id
        return m.Prefill(
            request_id=running.request_id,
            start_token=start_token,
            end_token=end_token,
            slots=running.slots,
            is_last=end_token == running.event.request.token_count,
        )

    def _adopt(self, running: Running, now_us: int) -> None:
        """Missing blocks that became resident since admission are used instead of being computed once more.

        So of many requests with one new prefix only the first computes it, also when they arrive together.
        """
        chain = running.event.chain
        for i in range(running.states.index(MISSING), running.reusable_blocks):
            block = self.ledger.find(chain.block_hash(i), now_us, chain.mark(i))
            if running.states[i] != MISSING:
                return
            if block is None:
                self._note_collision(running, i)
                return
            if not self._readable(block, running.event.reader, now_us) or not self.ledger.pin(block):
                return
            self.prefetching.use((block,))
            self.ledger.touch(block, now_us)
            self.ledger.drop(running.blocks[i])
            running.adopt(i, block)

    def _prefill_done(self, event: m.PrefillDone, now_us: int) -> list[m.WorkerEffect]:
        running = self._running[event.request_id]
        assert running.computing is not None
        request, (start, end) = running.event.request, running.computing
        running.computing = None
        running.prefill_us += event.elapsed_us - event.merge_us
        running.merge_us += event.merge_us
        first, last = start // self.policy.block_tokens, blocks_for(end, self.policy.block_tokens)
        running.states[first:last] = [PRESENT] * (last - first)
        for block in running.blocks[first:last]:
            block.origin = request.tenant_id
        if event.attention:
            for block, mass in zip(running.blocks, event.attention, strict=False):
                block.attention += mass
        effects = self.publishing.stored(running.event.chain, running.blocks, first, last, now_us)
        prompt_tokens = request.token_count
        if end < prompt_tokens:
            self._busy = None
            return effects
        assert event.first_token is not None
        running.first_token_us, running.first_token = now_us, event.first_token
        running.fingerprint = event.logit_fingerprint
        effects.append(m.ReportFirstToken(request_id=event.request_id))
        if self.policy.batch_max > 1:
            self._busy = None
            del self._running[event.request_id]
            self._decoding[event.request_id] = running
        if request.output_tokens_max <= 1:
            return [*effects, *self._finish(running, (event.first_token,), 0, now_us)]
        effects.append(
            m.Decode(
                request_id=event.request_id,
                start_token=prompt_tokens,
                token_count=request.output_tokens_max - 1,
                slots=running.slots,
            )
        )
        return effects

    def _decode_done(self, event: m.DecodeDone, now_us: int) -> list[m.WorkerEffect]:
        running = self._admitted(event.request_id)
        tokens: tuple[int, ...] = (running.first_token,)
        tokens += event.tokens
        return self._finish(running, tokens, event.elapsed_us, now_us)

    def _engine_failed(self, event: m.EngineFailed, now_us: int) -> list[m.WorkerEffect]:
        running = self._admitted(event.request_id)
        return self._finish(running, (), 0, now_us, failure=event.reason)

    def _admitted(self, request_id: int) -> Running:
        return self._decoding.get(request_id) or self._running[request_id]

    # ------------------------------------------------------------------ the end of a request
    def _finish(
        self, running: Running, tokens: tuple[int, ...], decode_us: int, now_us: int, failure: str | None = None
    ) -> list[m.WorkerEffect]:
        if self._decoding.pop(running.request_id, None) is None:
            self._busy = None
            del self._running[running.request_id]
        self._waiting.end(running.event.request.tenant_id, 2 * len(tokens))
        effects = self.fetching.cancel(running) if running.fetches else []
        outcome = running.outcome(self.node, self.policy.block_tokens, tokens, decode_us, failure)
        self.ledger.drop_all(running.blocks)
        effects.append(m.ReportCompleted(request_id=running.request_id, outcome=outcome))
        return effects

    # ------------------------------------------------------------------ what is published
    def _snapshot_asked(self, event: m.SnapshotAsked, now_us: int) -> list[m.WorkerEffect]:
        return self.publishing.answered(event)

    def _directory_changed(self, event: m.DirectoryChanged, now_us: int) -> list[m.WorkerEffect]:
        """The new directory rules from now on; quotas that do not fit yet, as soon as they do."""
        if event.directory.revision < self.directory.revision:
            return []
        self._heed(event.directory)
        gone = self.publishing.removed(self.requota.ask(self.directory.accounts, self.directory.closed_scopes()))
        return [*gone, m.AcknowledgeDirectory(revision=self.directory.revision)]

    def _ticked(self, event: m.Ticked, now_us: int) -> list[m.WorkerEffect]:
        gone = self.publishing.removed(self.ledger.sweep(now_us))
        late = [*self.prefetching.expire(now_us), *self.fetching.expire(now_us)]
        return [*gone, *late, m.Publish(message=self.journal.heartbeat())]
