"""The requests of a worker that hold no blocks yet, and how much service each tenant has had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from . import messages as m
from .nouns import Action
from .ports import QueuedRequest, Schedule
from .running import blocks_for


class Asked(NamedTuple):
    """A request that waits, and the blocks it will hold: (scope, end) of each run, and how many of each scope."""

    event: m.Dispatched
    reusable_blocks: int  # of the prompt, that its plan lets it reuse: never the last token
    charges: list[tuple[int, int]]
    counts: dict[int, int]
    since_us: int


def charged(event: m.Dispatched, block_tokens: int) -> list[tuple[int, int]]:
    """(scope, end) of the blocks of prompt and output: their own, or the prompt's tightest for what is never shared."""
    total = blocks_for(event.request.token_count + event.request.output_tokens_max, block_tokens)
    runs = list(event.chain.scope_ends)
    if not runs or runs[-1][1] < total:
        tail = event.request.segments[-1].scope_id
        if runs and runs[-1][0] == tail:
            runs.pop()
        runs.append((tail, total))
    return runs


def counts_of(runs: list[tuple[int, int]]) -> dict[int, int]:
    """Blocks charged to each scope."""
    counts: dict[int, int] = {}
    start = 0
    for scope_id, end in runs:
        counts[scope_id] = counts.get(scope_id, 0) + end - start
        start = end
    return counts


def asked_of(event: m.Dispatched, block_tokens: int, now_us: int) -> Asked:
    """The request that waits from now on."""
    charges, reusable_blocks = charged(event, block_tokens), 0
    if event.plan.action != Action.RECOMPUTE:
        reusable_blocks = min(event.chain.block_count, (event.request.token_count - 1) // block_tokens)
    return Asked(event, reusable_blocks, charges, counts_of(charges), now_us)


class Waiting:
    """Asks the schedule which request is next, and knows the tenants that wait or run."""

    def __init__(self, schedule: Schedule, block_tokens: int) -> None:
        self._schedule = schedule
        self._block_tokens = block_tokens
        self.asked: list[Asked] = []
        self._queue: list[QueuedRequest] = []  # what the schedule sees of them, in the same order
        self._classes: dict[int, int] = {}  # class of the account that each scope's requests are queued under
        self._served_tokens: dict[int, int] = {}
        self._tenants: Counter[int] = Counter()  # how many requests of each tenant wait or run

    def __len__(self) -> int:
        return len(self.asked)

    def add(self, asked: Asked) -> None:
        """The request waits. A tenant that was idle starts at the least counter of those who wait or run: idling earns
        no credit (VTC)."""
        request, plan = asked.event.request, asked.event.plan
        if self._tenants and request.tenant_id not in self._tenants:
            least = min(self._served_tokens.get(other, 0) for other in self._tenants)
            self._served_tokens[request.tenant_id] = max(self._served_tokens.get(request.tenant_id, 0), least)
        prompt_tokens = request.token_count
        row = QueuedRequest(
            request_id=request.request_id,
            tenant_id=request.tenant_id,
            priority=self._classes.setdefault(request.segments[-1].scope_id, 0),
            arrival_us=asked.since_us,
            uncached_tokens=prompt_tokens - plan.reused_blocks * self._block_tokens,
            prompt_tokens=prompt_tokens,
        )
        self.asked.append(asked)
        self._queue.append(row)
        self._tenants[request.tenant_id] += 1

    def next(self, priority_of: Callable[[int], int], now_us: int) -> tuple[int, Asked]:
        """(position, request) of the one that the schedule names."""
        if self._schedule.by_arrival:
            position = self._first()
            return position, self.asked[position]
        for scope_id, known in tuple(self._classes.items()):
            if priority_of(scope_id) != known:
                self._reclassify(scope_id, priority_of(scope_id))
        position = self._schedule.next(self._queue, self._served_tokens, now_us)
        assert 0 <= position < len(self._queue), f"schedule chose {position} of {len(self._queue)} waiting requests"
        return position, self.asked[position]

    def _first(self) -> int:
        """The one that came first, of several at once the one with the least id: requests are added as they come."""
        queue, found = self._queue, 0
        for i in range(1, len(queue)):
            if queue[i].arrival_us != queue[0].arrival_us:
                break
            found = i if queue[i].request_id < queue[found].request_id else found
        return found

    def _reclassify(self, scope_id: int, priority: int) -> None:
        """Requests charged last to this scope have the class that its account has now."""
        self._classes[scope_id] = priority
        for i, asked in enumerate(self.asked):
            if asked.event.request.segments[-1].scope_id == scope_id:
                self._queue[i] = replace(self._queue[i], priority=priority)

    def take(self, position: int) -> None:
        """That request runs; its prompt counts as service to its tenant."""
        row = self._queue.pop(position)
        del self.asked[position]
        self._serve(row.tenant_id, row.prompt_tokens)

    def remove(self, position: int) -> Asked:
        """That request is turned away."""
        self._leave(self._queue.pop(position).tenant_id)
        return self.asked.pop(position)

    def end(self, tenant_id: int, token_count: int) -> None:
        """A request that ran has ended; its tenant has had so much more service."""
        self._leave(tenant_id)
        self._serve(tenant_id, token_count)

    def _leave(self, tenant_id: int) -> None:
        self._tenants[tenant_id] -= 1
        if not self._tenants[tenant_id]:
            del self._tenants[tenant_id]

    def _serve(self, tenant_id: int, token_count: int) -> None:
        self._served_tokens[tenant_id] = self._served_tokens.get(tenant_id, 0) + token_count
