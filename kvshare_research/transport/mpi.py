"""A non-blocking endpoint over MPI: sends keep their buffers until done, large receives land straight in arrays.

Everything happens in the one thread that polls. Nothing here blocks, and nothing is collective after the start.
Used with MPICH 5 (the wheel) and Open MPI 5, which needs the flags that `launch.rank_command` gives it: without
`mpi_yield_when_idle` its waiting ranks take the core that another computes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

_POLLED_MAX: Final = 64  # messages taken per poll, so that timers and effects get their turn


class Channel(IntEnum):
    """The tag a message travels under."""

    CONTROL = 1  # an envelope of wire.py
    BLOCKS = 2  # a frame of frames.py


@dataclass(frozen=True, slots=True)
class Received:
    """A whole message, from this rank."""

    rank: int
    channel: Channel
    data: NDArray[np.uint8]


class Endpoint(Protocol):
    """Messages to and from ranks."""

    def send(self, rank: int, channel: Channel, data: Any) -> None:
        """`data` will arrive; it must not change from now on."""

    def poll(self) -> list[Received]:
        """What has arrived since; also moves what is under way."""

    def unsent_bytes(self) -> int:
        """Bytes handed over and not yet gone."""

    def drop(self, rank: int) -> None:
        """The rank is dead: nothing is sent to it any more, and what had not gone yet is not waited for."""

    def in_motion(self) -> bool:
        """Whether a large message is under way, which only moves while `poll` is called."""


class MpiEndpoint:
    """The endpoint of this rank. The communicator is its own duplicate (made together by all ranks)."""

    def __init__(self, comm: MPI.Comm) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm
        self._sends: list[tuple[MPI.Request, Any, int, int]] = []  # with size and rank
        self._receives: list[tuple[MPI.Request, Received]] = []
        self._dropped: set[int] = set()
        self._abandoned: list[Any] = []  # sends to dead ranks: MPI may look at their buffers as long as it runs
        self.sent_messages = 0
        self.sent_bytes = 0
        self.received_messages = 0
        self.received_bytes = 0

    @property
    def rank(self) -> int:
        return self._comm.rank

    @property
    def size(self) -> int:
        return self._comm.size

    def send(self, rank: int, channel: Channel, data: Any) -> None:
        if rank in self._dropped:
            return
        view = memoryview(data)
        request = self._comm.Isend([view, self._mpi.BYTE], dest=rank, tag=int(channel))
        self._sends.append((request, data, view.nbytes, rank))
        self.sent_messages += 1
        self.sent_bytes += view.nbytes

    def poll(self) -> list[Received]:
        self._sends = [s for s in self._sends if not s[0].Test()]
        status = self._mpi.Status()
        for _ in range(_POLLED_MAX):
            message = self._comm.Improbe(source=self._mpi.ANY_SOURCE, tag=self._mpi.ANY_TAG, status=status)
            if message is None:
                break
            item = Received(status.source, Channel(status.tag), np.empty(status.Get_count(self._mpi.BYTE), np.uint8))
            self._receives.append((message.Irecv([item.data, self._mpi.BYTE]), item))
        done = self._landed()
        self.received_messages += len(done)
        self.received_bytes += sum(item.data.size for item in done)
        return done

    def unsent_bytes(self) -> int:
        return sum(size for _, _, size, _ in self._sends)

    def drop(self, rank: int) -> None:
        self._dropped.add(rank)
        self._abandoned += [row for row in self._sends if row[3] == rank]
        self._sends = [row for row in self._sends if row[3] != rank]
        self._abandoned += [row for row in self._receives if row[1].rank == rank]
        self._receives = [row for row in self._receives if row[1].rank != rank]

    def in_motion(self) -> bool:
        return bool(self._receives or self._sends)

    def drain(self, give_up: Callable[[], bool]) -> bool:
        """Polls until all sends are gone or `give_up()`; what arrives meanwhile is dropped. True if all are gone."""
        while self._sends and not give_up():
            self.poll()
        return not self._sends

    def _landed(self) -> list[Received]:
        """Receives that are complete; a small message never overtakes a large one of its sender and channel."""
        done: list[Received] = []
        left: list[tuple[MPI.Request, Received]] = []
        waiting: set[tuple[int, Channel]] = set()
        for request, item in self._receives:
            lane = (item.rank, item.channel)
            if lane not in waiting and request.Test():
                done.append(item)
            else:
                waiting.add(lane)
                left.append((request, item))
        self._receives = left
        return done
