"""The load that an answer of constant shape may show: as if every request were computed in full, in its turn.

How soon a node is done with a request depends on what was found of it, so the queue that the next request meets would
tell: a tenant could send a guess, and at once something else, and see by the time of the latter whether the guess was
there. Here nothing depends on what was found. A node that is busier than that is shown as busy as it is.
"""

from __future__ import annotations

from typing import NamedTuple, final

import numpy as np

from .loads import (
    HELD_UP_REQUESTS,
    QUEUED_REQUESTS,
    QUEUED_TOKENS,
    QUEUED_WORK_US,
    USED_BLOCKS,
    LoadTable,
    Service,
)
from .nouns import Request
from .ports import UnderWay


class _Stand(NamedTuple):
    """A request until its tenant has been told all of its answer. Times of the router's clock."""

    node: int
    tokens: int
    is_held_up: bool
    first_us: int
    end_us: int


@final
class Standing:
    """Requests as their shapes show them, by node."""

    def __init__(self, node_count: int) -> None:
        self._free_us = np.zeros(node_count, np.int64)  # when a node would have computed all it was sent
        self._stands: list[_Stand] = []

    def sent(self, request: Request, service: Service, now_us: int, first_us: int) -> None:
        """The request is computed after all that its node was sent before; its tenant hears at `first_us`."""
        node = service.node
        self._free_us[node] = max(int(self._free_us[node]), now_us) + service.first_us + service.rest_us
        end_us = first_us + service.model_decode_us
        self._stands.append(_Stand(node, request.token_count, service.is_held_up, first_us, end_us))

    def at(self, real: LoadTable, now_us: int) -> LoadTable:
        """The nodes as shown at `now_us`; `real` says which are alive, and their pace."""
        self._stands = [s for s in self._stands if s.end_us > now_us]
        requests, tokens, held_up = (np.zeros(len(real), np.int64) for _ in range(3))
        for stand in self._stands:
            requests[stand.node] += 1
            tokens[stand.node] += stand.tokens
            held_up[stand.node] += stand.is_held_up
        cells = real.cells.copy()
        shown = (
            (QUEUED_REQUESTS, requests), (QUEUED_TOKENS, tokens), (QUEUED_WORK_US, self._free_us - now_us),
            (HELD_UP_REQUESTS, held_up),
        )  # fmt: skip
        for row, least in shown:
            cells[row] = np.maximum(cells[row], least)
        cells[USED_BLOCKS] = 0
        return LoadTable(cells)

    def under_way(self, now_us: int) -> tuple[UnderWay, ...]:
        """What is not told to its end at `now_us`."""
        return tuple(
            UnderWay(s.node, s.first_us if s.first_us <= now_us else None, s.first_us)
            for s in self._stands if s.end_us > now_us
        )  # fmt: skip
