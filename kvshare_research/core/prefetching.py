"""The worker's side of prefetch: blocks fetched for requests that may come, through the same tickets as any fetch.

A prefetch takes free room only; on a link what requests fetch goes first; it holds no pin once it has landed. When a
request needs room, what was prefetched and never used goes first, whatever its class, and what is still on its way is
cancelled: so a prefetch displaces nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import final

from . import messages as m
from .fetching import Fetching
from .ledger import Ledger
from .nouns import Action, Piece, Plan
from .running import Running, State
from .victims import Block


@final
class Prefetching:
    """Prefetches on their way, by id, and the blocks that none has used yet. `counters` count blocks and prefetches."""

    def __init__(self, *, ledger: Ledger, fetching: Fetching) -> None:
        self.counters: Counter[str] = Counter(shed_blocks=0)
        self._ledger = ledger
        self._fetching = fetching
        self.flights: dict[int, tuple[Running, int]] = {}  # with the time at which it is given up
        self._unused: dict[int, Block] = {}  # landed, by slot

    @property
    def takes_room(self) -> bool:
        """Whether something is held, or on its way, that a request may have instead."""
        return bool(self._unused or self.flights)

    @property
    def unused_blocks(self) -> int:
        """Landed blocks that nobody has used yet."""
        return len(self._unused)

    def ask(self, event: m.PrefetchAsked, resident: Sequence[Block], now_us: int) -> list[m.WorkerEffect]:
        """The missing blocks are on their way into free room, or the prefetch is refused and nothing changed.

        `resident` are the readable blocks of the chain that are here, from the first on.
        """
        number, count = event.request.request_id, event.chain.block_count
        self.counters["asked"] += 1
        have = self._ledger.pin_first(resident[:count])
        held = list(resident[:have])
        refusal = "already here" if have >= count else "gap" if have < event.start else ""
        refusal = "twice" if number in self.flights else refusal
        if not refusal and not self._take(event, held, now_us):
            refusal = "no free room"
        if refusal:
            self._ledger.drop_all(held)
            self.counters[f"refused: {refusal}"] += 1
            return [m.ReportPrefetch(prefetch_id=number, landed_blocks=0, bytes_moved=0, reason=refusal)]
        piece = Piece(source=event.source, start=have, end=count)
        plan = Plan(
            request_id=number, action=Action.PULL, executor=0, resident_blocks=have, front_blocks=0, pieces=(piece,),
            quoted_ttft_us=0,
        )  # fmt: skip
        running = Running(
            event=m.Dispatched(request=event.request, chain=event.chain, plan=plan, reader=event.reader),
            dispatched_us=now_us,
            blocks=held,
            states=[State.PRESENT] * have + [State.MISSING] * (count - have),
            resident=set(range(have)),
        )
        self.flights[number] = (running, now_us + event.deadline_us)
        return self._fetching.start(running, now_us, background=True)

    def owns(self, running: Running) -> bool:
        """Whether this is a prefetch under way, and no request."""
        return self.flights.get(running.request_id, (None,))[0] is running

    def settle(self) -> list[m.WorkerEffect]:
        """Prefetches for which nothing is awaited any more are over: their blocks are unpinned, and unused so far."""
        over = [number for number, (running, _) in self.flights.items() if not running.fetches]
        return [self._end(number, "") for number in over]

    def cancel(self, number: int, reason: str = "cancelled") -> list[m.WorkerEffect]:
        """The prefetch is over and its room free; nothing if it is not under way."""
        if number not in self.flights:
            return []
        return [*self._fetching.cancel(self.flights[number][0]), self._end(number, reason)]

    def cancel_all(self, reason: str) -> list[m.WorkerEffect]:
        """Nothing is on its way any more."""
        return [effect for number in list(self.flights) for effect in self.cancel(number, reason)]

    def expire(self, now_us: int) -> list[m.WorkerEffect]:
        """Prefetches past their deadline are over."""
        late = [number for number, (_, until_us) in self.flights.items() if now_us >= until_us]
        return [effect for number in late for effect in self.cancel(number, "deadline")]

    def make_room(self, wanted_blocks: int) -> tuple[list[m.WorkerEffect], tuple[Block, ...]]:
        """A request needs so many blocks: unused prefetched ones go, the last landed first, then what is on its way."""
        gone: list[Block] = []
        for slot, block in reversed(list(self._unused.items())):
            if self._ledger.free_blocks + len(gone) >= wanted_blocks:
                break
            if not block.pins:
                del self._unused[slot]
                gone += [block] if self._ledger.is_held(block) else []
        self.counters["shed_blocks"] += len(gone)
        evicted = self._ledger.drop_named(gone)
        effects: list[m.WorkerEffect] = []
        while self.flights and self._ledger.free_blocks < wanted_blocks:
            effects += self.cancel(next(reversed(self.flights)), "room needed")
        return effects, evicted

    def use(self, blocks: Sequence[Block]) -> int:
        """A request uses these blocks; how many of them a prefetch had brought, and nobody used before."""
        if not self._unused:
            return 0
        found = sum(self._unused.pop(block.slot, None) is block for block in blocks)
        self.counters["used_blocks"] += found
        return found

    def _take(self, event: m.PrefetchAsked, held: list[Block], now_us: int) -> bool:
        for scope_id, end in event.chain.scope_ends:
            if end > len(held):
                taken, _ = self._ledger.allocate(scope_id, end - len(held), now_us, evict=False)
                if taken is None:
                    return False
                held.extend(taken)
        return True

    def _end(self, number: int, reason: str) -> m.WorkerEffect:
        running, _ = self.flights.pop(number)
        landed = [running.blocks[i] for i in sorted(running.fetched) if running.blocks[i].block_hash is not None]
        self._ledger.drop_all(running.blocks)
        self._unused.update({block.slot: block for block in landed})
        self.counters["landed_blocks"] += len(landed)
        self.counters[f"ended: {reason or ('landed' if landed else 'failed')}"] += 1
        return m.ReportPrefetch(
            prefetch_id=number, landed_blocks=len(landed), bytes_moved=running.pulled_bytes, reason=reason
        )
