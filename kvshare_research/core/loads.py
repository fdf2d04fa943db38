"""What a router believes of every node: columns, kept as requests come and go, and read as rows of `NodeLoad`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final, overload

import numpy as np
from msgspec import Struct

from .nouns import PERMILLE, Column, NodeLoad, Outcome, QuoteTable, Request, Status

PACE_MEMORY = 16  # works that the present pace tells of
OUTLIER = 4  # one work counts as no more than so many times what was expected of it, and no less than that part of it


# Rows of a `LoadTable`.
LOAD_ROWS = 8
(
    ALIVE, QUEUED_REQUESTS, QUEUED_TOKENS, QUEUED_WORK_US, USED_BLOCKS, CAPACITY_BLOCKS, PACE_PERMILLE,
    HELD_UP_REQUESTS,
) = range(LOAD_ROWS)  # fmt: skip
FIELDS = (
    "alive", "queued_requests", "queued_tokens", "queued_work_us", "used_blocks", "capacity_blocks", "pace_permille",
    "held_up_requests",
)  # fmt: skip


@final
@dataclass(frozen=True, slots=True, eq=False)
class LoadTable(Sequence[NodeLoad]):
    """All nodes at one moment, in their order: int64 [field, node], the fields of `NodeLoad`; `alive` is 0 or 1."""

    cells: Column

    def __len__(self) -> int:
        return int(self.cells.shape[1])

    @overload
    def __getitem__(self, node: int) -> NodeLoad: ...
    @overload
    def __getitem__(self, node: slice) -> tuple[NodeLoad, ...]: ...
    def __getitem__(self, node: int | slice) -> NodeLoad | tuple[NodeLoad, ...]:
        if isinstance(node, slice):
            return tuple(self[i] for i in range(len(self))[node])
        i = range(len(self))[node]
        values = dict(zip(FIELDS, self.cells[:, i].tolist(), strict=True))
        return NodeLoad(**{**values, "node": i, "alive": bool(values["alive"])})

    def __iter__(self) -> Iterator[NodeLoad]:
        return (self[i] for i in range(len(self)))


def load_table(rows: Sequence[NodeLoad]) -> LoadTable:
    """`rows`, one per node in their order, as columns; the same object when it already is."""
    if isinstance(rows, LoadTable):
        return rows
    assert [row.node for row in rows] == list(range(len(rows))), "a row per node, in order"

    return LoadTable(np.array([[getattr(row, name) for row in rows] for name in FIELDS], np.int64))


@final
class Service(Struct, frozen=True, kw_only=True, gc=False):
    """What a request is predicted to take of its executor: as quoted, at the node's pace, and as the model says."""

    node: int
    first_us: int  # to the first token
    rest_us: int  # from there on, as far as it keeps others waiting
    merge_us: int
    model_prefill_us: int
    model_decode_us: int
    is_held_up: bool  # its answer is decoded beside a batch, and waits for every prefill that follows


class Pace:
    """How long a kind of work takes on each node, in thousandths of what its cost model says.

    What was observed over what the model said of it, summed over the last few works (an exponential window that begins
    with the model's own word), so that long works count for more and a queue is right as a whole. What slows all
    work of a node shows here: two ranks at one memory bus, a hot core, a batch that decodes beside it.
    """

    def __init__(self, permille: Column) -> None:
        """`permille` by node is kept up to date in place."""
        self.permille, node_count = permille, len(permille)
        permille[:] = PERMILLE
        self._model_us, self._actual_us = [0] * node_count, [0] * node_count

    def observed(self, node: int, model_us: int, actual_us: int) -> None:
        """Work that the model puts at `model_us` took `actual_us`; work that takes the model no time says nothing."""
        if model_us <= 0:
            return
        expected_us = model_us * int(self.permille[node]) // PERMILLE
        seen_us = min(OUTLIER * expected_us, max(expected_us // OUTLIER, actual_us))
        known_us, took_us = self._model_us[node], self._actual_us[node]
        if known_us == 0:
            known_us = took_us = model_us
        self._model_us[node] = known_us * (PACE_MEMORY - 1) // PACE_MEMORY + model_us
        self._actual_us[node] = took_us * (PACE_MEMORY - 1) // PACE_MEMORY + seen_us
        self.permille[node] = max(1, self._actual_us[node] * PERMILLE // self._model_us[node])

    def forget(self, node: int) -> None:
        """Nothing was observed of the node."""
        self.permille[node], self._model_us[node], self._actual_us[node] = PERMILLE, 0, 0


class Queue:
    """The work one node has been sent and not reported done, in its two parts: to a first token, and from there on.

    An engine is at one part at a time: at the answer that is being decoded, else at the oldest request. An answer
    that takes no time (beside a batch, it keeps nobody waiting) is no part.
    """

    def __init__(self) -> None:
        self.since_us = 0  # when the part that the engine is at began
        self.total_us = 0
        self._computing: dict[int, tuple[int, int]] = {}  # (to the first token, from there on) by request
        self._decoding: dict[int, int] = {}

    @property
    def current_us(self) -> int:
        """The predicted time of the part that the engine is at; 0 where there is nothing to do."""
        for rest_us in self._decoding.values():
            return rest_us
        for first_us, _ in self._computing.values():
            return first_us
        return 0

    def add(self, request_id: int, first_us: int, rest_us: int, now_us: int) -> None:
        """The request has joined."""
        if not self._computing and not self._decoding:
            self.since_us = now_us
        self._computing[request_id] = (first_us, rest_us)
        self.total_us += first_us + rest_us

    def answered(self, request_id: int, now_us: int) -> None:
        """The first token of the request has come, once; its decoding begins."""
        if (parts := self._computing.pop(request_id, None)) is None:
            return
        self.total_us -= parts[0]
        if parts[1] > 0:
            self._decoding[request_id] = parts[1]
        self.since_us = now_us

    def ended(self, request_id: int, now_us: int) -> None:
        """The request has left, answered or not."""
        self.answered(request_id, now_us)
        if (rest_us := self._decoding.pop(request_id, None)) is not None:
            self.total_us -= rest_us
            self.since_us = now_us

    def left_us(self, now_us: int) -> int:
        """Predicted work not yet done; a part that takes longer than predicted does not shorten those behind it."""
        current_us = self.current_us
        return self.total_us - min(current_us, now_us - self.since_us)


class Loads:
    """The router's account of its nodes: what each has been sent, how fast it works, and its word on its pool."""

    def __init__(self, node_count: int) -> None:
        self._cells = np.zeros((LOAD_ROWS, node_count), np.int64)
        self._cells[ALIVE] = 1
        self._live = tuple(range(node_count))
        self.prefill_pace = Pace(self._cells[PACE_PERMILLE])
        self.decode_pace = Pace(np.zeros(node_count, np.int64))
        self._queues = [Queue() for _ in range(node_count)]
        self._work = np.zeros((3, node_count), np.int64)  # of each queue: total_us, current_us, since_us

    def at(self, now_us: int, excluded: int | None) -> LoadTable:
        """The nodes as believed at `now_us`, `excluded` not alive."""
        cells = self._cells.copy()
        if excluded is not None:
            cells[ALIVE, excluded] = 0
        total_us, current_us, since_us = self._work
        left_us = cells[QUEUED_WORK_US]
        np.subtract(now_us, since_us, out=left_us)
        np.minimum(current_us, left_us, out=left_us)
        np.subtract(total_us, left_us, out=left_us)
        return LoadTable(cells)

    def live(self) -> tuple[int, ...]:
        """The nodes believed alive, ascending."""
        return self._live

    def service(self, table: QuoteTable, row: int, *, keeps_engine: bool) -> Service:
        """What the request would take by this row. Beside a batch (not `keeps_engine`) an answer keeps nobody waiting;
        what it costs the others shows in their pace."""
        node, prefill_us, merge_us = int(table.executor[row]), int(table.prefill_us[row]), int(table.merge_us[row])
        rest_us = table.decode_us * int(self.decode_pace.permille[node]) // PERMILLE
        return Service(
            node=node,
            first_us=prefill_us + merge_us,
            rest_us=rest_us if keeps_engine else 0,
            merge_us=merge_us,
            model_prefill_us=prefill_us * PERMILLE // int(self.prefill_pace.permille[node]),
            model_decode_us=table.decode_us,
            is_held_up=not keeps_engine and table.decode_us > 0,
        )

    def learn(self, service: Service, served: Outcome) -> None:
        """The node's pace, from a request that took its plan to the end."""
        if served.status == Status.DONE:
            prefill_us = served.prefill_us + max(0, served.merge_us - service.merge_us)
            self.prefill_pace.observed(service.node, service.model_prefill_us, prefill_us)
            self.decode_pace.observed(service.node, service.model_decode_us, served.decode_us)

    def sent(self, request: Request, service: Service, now_us: int) -> None:
        """The request is on its way to the node it was predicted for."""
        self._cells[QUEUED_REQUESTS, service.node] += 1
        self._cells[QUEUED_TOKENS, service.node] += request.token_count
        self._cells[HELD_UP_REQUESTS, service.node] += service.is_held_up
        self._queues[service.node].add(request.request_id, service.first_us, service.rest_us, now_us)
        self._changed(service.node)

    def answered(self, node: int, request_id: int, now_us: int) -> None:
        """The first token of a request has come."""
        self._queues[node].answered(request_id, now_us)
        self._changed(node)

    def ended(self, service: Service, request: Request, now_us: int) -> None:
        """A request no longer concerns the node it was predicted for."""
        node = service.node
        self._cells[HELD_UP_REQUESTS, node] -= service.is_held_up
        self._cells[QUEUED_REQUESTS, node] -= 1
        self._cells[QUEUED_TOKENS, node] -= request.token_count
        self._queues[node].ended(request.request_id, now_us)
        self._changed(node)

    def _changed(self, node: int) -> None:
        queue = self._queues[node]
        work = self._work
        work[0, node], work[1, node], work[2, node] = queue.total_us, queue.current_us, queue.since_us

    def reported(self, node: int, used_blocks: int, capacity_blocks: int) -> None:
        """The node's own word on its pool."""
        self._cells[USED_BLOCKS, node], self._cells[CAPACITY_BLOCKS, node] = used_blocks, capacity_blocks

    def lost(self, node: int) -> None:
        """The node is believed dead."""
        self._is_alive(node, 0)

    def joined(self, node: int, capacity_blocks: int) -> None:
        """The node is alive, and nothing is known of how fast it works."""
        self._is_alive(node, 1)
        self._cells[CAPACITY_BLOCKS, node] = capacity_blocks
        self.prefill_pace.forget(node)
        self.decode_pace.forget(node)

    def _is_alive(self, node: int, alive: int) -> None:
        self._cells[ALIVE, node] = alive
        self._live = tuple(np.flatnonzero(self._cells[ALIVE]).tolist())
