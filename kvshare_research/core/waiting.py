"""The requests of a worker that hold no blocks yet, and how much service each tenant has had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from . import messages as m
from .ports import QueuedRequest, Schedule


class Waiting:
    """Asks the schedule which request is next; changes only by `add`, `take` and `serve`."""

    def __init__(self, schedule: Schedule, block_tokens: int) -> None:
        self._schedule = schedule
        self._block_tokens = block_tokens
        self._events: list[m.Dispatched] = []
        self._queue: list[QueuedRequest] = []  # what the schedule sees of them, in the same order
        self._classes: dict[int, int] = {}  # class of the account that each scope's requests are queued under
        self._served_tokens: dict[int, int] = {}
        self._tenants: Counter[int] = Counter()  # how many requests of each tenant wait

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: m.Dispatched, running_tenants: Iterable[int], now_us: int) -> None:
        """The request waits. A tenant that was idle starts at the least counter of those who wait or run: idling earns
        no credit (VTC)."""
        request = event.request
        active = self._tenants.keys() | set(running_tenants)
        if active and request.tenant_id not in active:
            least = min(self._served_tokens.get(other, 0) for other in active)
            self._served_tokens[request.tenant_id] = max(self._served_tokens.get(request.tenant_id, 0), least)
        row = QueuedRequest(
            request_id=request.request_id,
            tenant_id=request.tenant_id,
            priority=self._classes.setdefault(request.segments[-1].scope_id, 0),
            arrival_us=now_us,
            uncached_tokens=request.token_count - event.plan.reused_blocks * self._block_tokens,
            prompt_tokens=request.token_count,
        )
        self._events.append(event)
        self._queue.append(row)
        self._tenants[request.tenant_id] += 1

    def next(self, priority_of: Callable[[int], int], now_us: int) -> tuple[int, m.Dispatched, int]:
        """(position, request, since when it waits) of the one that the schedule names."""
        for scope_id, known in tuple(self._classes.items()):
            if priority_of(scope_id) != known:
                self._reclassify(scope_id, priority_of(scope_id))
        by_arrival = self._schedule.by_arrival
        position = self._first() if by_arrival else self._schedule.next(self._queue, self._served_tokens, now_us)
        assert 0 <= position < len(self._queue), f"schedule chose {position} of {len(self._queue)} waiting requests"
        return position, self._events[position], self._queue[position].arrival_us

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
        for i, event in enumerate(self._events):
            if event.request.segments[-1].scope_id == scope_id:
                self._queue[i] = replace(self._queue[i], priority=priority)

    def take(self, position: int) -> None:
        """That request is served; its prompt counts as service to its tenant."""
        event = self.remove(position)
        self.serve(event.request.tenant_id, event.request.token_count)

    def remove(self, position: int) -> m.Dispatched:
        """That request waits no longer."""
        tenant_id = self._queue.pop(position).tenant_id
        self._tenants[tenant_id] -= 1
        if not self._tenants[tenant_id]:
            del self._tenants[tenant_id]
        return self._events.pop(position)

    def serve(self, tenant_id: int, token_count: int) -> None:
        """The tenant has had so much more service."""
        self._served_tokens[tenant_id] = self._served_tokens.get(tenant_id, 0) + token_count
