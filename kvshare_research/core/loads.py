"""What a router believes of every node: columns, kept as requests come and go, and read as rows of `NodeLoad`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final, overload

import numpy as np

from .nouns import Column, NodeLoad


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadTable(Sequence[NodeLoad]):
    """All nodes at one moment, in their order; `alive` is 0 or 1."""

    alive: Column
    queued_requests: Column
    queued_tokens: Column
    queued_work_us: Column
    used_blocks: Column
    capacity_blocks: Column

    def __len__(self) -> int:
        return len(self.alive)

    @overload
    def __getitem__(self, node: int) -> NodeLoad: ...
    @overload
    def __getitem__(self, node: slice) -> tuple[NodeLoad, ...]: ...
    def __getitem__(self, node: int | slice) -> NodeLoad | tuple[NodeLoad, ...]:
        if isinstance(node, slice):
            return tuple(self[i] for i in range(len(self))[node])
        i = range(len(self))[node]
        return NodeLoad(
            node=i,
            alive=bool(self.alive[i]),
            queued_requests=int(self.queued_requests[i]),
            queued_tokens=int(self.queued_tokens[i]),
            queued_work_us=int(self.queued_work_us[i]),
            used_blocks=int(self.used_blocks[i]),
            capacity_blocks=int(self.capacity_blocks[i]),
        )

    def __iter__(self) -> Iterator[NodeLoad]:
        return (self[i] for i in range(len(self)))


def load_table(rows: Sequence[NodeLoad]) -> LoadTable:
    """`rows`, one per node in their order, as columns; the same object when it already is."""
    if isinstance(rows, LoadTable):
        return rows
    assert [row.node for row in rows] == list(range(len(rows))), "a row per node, in order"

    def column(name: str) -> Column:
        return np.array([getattr(row, name) for row in rows], np.int64)

    return LoadTable(
        alive=column("alive"),
        queued_requests=column("queued_requests"),
        queued_tokens=column("queued_tokens"),
        queued_work_us=column("queued_work_us"),
        used_blocks=column("used_blocks"),
        capacity_blocks=column("capacity_blocks"),
    )


class Loads:
    """The router's account of its nodes. Work counts until the first token, requests and tokens until the end."""

    def __init__(self, node_count: int) -> None:
        zeros = [np.zeros(node_count, np.int64) for _ in range(7)]
        self._alive = np.ones(node_count, np.int64)
        self._used_blocks, self._capacity_blocks = zeros[0], zeros[1]
        self._requests, self._tokens, self._work_us, self._busy_until_us, self._working = zeros[2:]

    def at(self, now_us: int, excluded: int | None) -> LoadTable:
        """The nodes as believed at `now_us`, `excluded` not alive."""
        alive = self._alive.copy()
        if excluded is not None:
            alive[excluded] = 0
        left_us = np.where(self._working > 0, np.maximum(self._busy_until_us - now_us, 0), 0)
        return LoadTable(
            alive=alive,
            queued_requests=self._requests.copy(),
            queued_tokens=self._tokens.copy(),
            queued_work_us=left_us,
            used_blocks=self._used_blocks.copy(),
            capacity_blocks=self._capacity_blocks.copy(),
        )

    def live(self) -> list[int]:
        """The nodes believed alive."""
        nodes: list[int] = np.flatnonzero(self._alive).tolist()
        return nodes

    def sent(self, node: int, token_count: int, work_us: int, now_us: int) -> None:
        """A request of so many prompt tokens, predicted to take `work_us`, is on its way to the node."""
        self._requests[node] += 1
        self._tokens[node] += token_count
        self._working[node] += 1
        self._work_us[node] += work_us
        self._busy_until_us[node] = max(int(self._busy_until_us[node]), now_us) + work_us

    def computed(self, node: int, work_us: int, now_us: int) -> None:
        """The predicted work of one request is done; what is left starts now."""
        self._working[node] -= 1
        self._work_us[node] -= work_us
        self._busy_until_us[node] = now_us + self._work_us[node]

    def ended(self, node: int, token_count: int) -> None:
        """A request, its work counted off before, no longer concerns the node."""
        self._requests[node] -= 1
        self._tokens[node] -= token_count

    def reported(self, node: int, used_blocks: int, capacity_blocks: int) -> None:
        """The node's own word on its pool."""
        self._used_blocks[node], self._capacity_blocks[node] = used_blocks, capacity_blocks

    def lost(self, node: int) -> None:
        """The node is believed dead."""
        self._alive[node] = 0

    def joined(self, node: int, capacity_blocks: int, now_us: int) -> None:
        """The node is alive and has nothing to do."""
        self._alive[node], self._busy_until_us[node], self._capacity_blocks[node] = 1, now_us, capacity_blocks
