"""Which rank ended first: a launcher that loses a rank ends all others, and says neither which it was nor why.

Ranks of this machine tell their process by a datagram to a socket without a file, so that nothing is left behind; Linux
then tells the moment each of them ends, in order.
Elsewhere, and for ranks of other machines, nothing is known and nothing is said.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Self, final

RANKS_TELL = "KVSHARE_RANKS_TELL"  # the name of the socket, in Linux's own space of names
# What a rank dies of that says nothing itself. Launchers give the number as exit code, or 128 more.
SIGNALS = (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV)
_WORD_BYTES = 64


def tell(rank: int) -> None:
    """Whoever watches knows this process as `rank`."""
    name = os.environ.get(RANKS_TELL)
    if name is None or sys.platform != "linux":
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth:  # nobody listens elsewhere
        mouth.sendto(f"{rank} {os.getpid()}".encode(), f"\0{name}".encode())


@final
class Watch:
    """Waits for a launcher and notes which of its ranks ended first."""

    def __init__(self) -> None:
        self.first: tuple[int, int] | None = None  # rank, process
        self._process_of: dict[int, tuple[int, int]] = {}  # by descriptor
        if sys.platform == "linux":
            self._heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._heard.bind("")  # a free name
            self._events = select.epoll()
            self._events.register(self._heard, select.EPOLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if sys.platform == "linux":
            self._events.close()
            self._heard.close()
            for descriptor in self._process_of:
                os.close(descriptor)

    @property
    def environment(self) -> Mapping[str, str]:
        """What the launcher's environment must hold."""
        return {RANKS_TELL: self._heard.getsockname()[1:].decode()} if sys.platform == "linux" else {}

    def wait(self, launcher: subprocess.Popen[bytes]) -> int:
        """The launcher has ended; its exit code, as of `Popen.wait`."""
        if sys.platform == "linux":
            ended = os.pidfd_open(launcher.pid)
            self._events.register(ended, select.EPOLLIN)
            try:
                while not self._look(ended):
                    pass
            finally:
                os.close(ended)
        return launcher.wait()

    def _look(self, launcher: int) -> bool:
        """Whether the launcher has ended, after the next things that happened, in their order."""
        for descriptor, _ in self._events.poll():
            if descriptor == launcher:
                return True
            if descriptor == self._heard.fileno():
                rank, process = map(int, self._heard.recv(_WORD_BYTES).split())
                self._follow(rank, process)
            else:
                self._note(self._process_of.pop(descriptor))
                os.close(descriptor)
        return False

    def _follow(self, rank: int, process: int) -> None:
        try:
            descriptor = os.pidfd_open(process)
        except OSError:  # gone already
            self._note((rank, process))
            return
        self._process_of[descriptor] = rank, process
        self._events.register(descriptor, select.EPOLLIN)

    def _note(self, ended: tuple[int, int]) -> None:
        self.first = self.first or ended

    def story(self, code: int) -> str:
        """One line on a rank, or the launcher, that died of a signal, by the launcher's exit code; else empty."""
        if -code in SIGNALS:
            return f"the MPI launcher died of {_named(-code)}; its ranks ended with it"
        number = code - 128 if code > 128 else code
        if self.first is None or number not in SIGNALS:
            return ""
        rank, process = self.first
        why = " (killed by a person, or by the system where memory ran out)" if number == signal.SIGKILL else ""
        return f"rank {rank} (process {process}) died of {_named(number)}{why}; the launcher ended the other ranks"


def _named(number: int) -> str:
    return f"signal {number}, {signal.Signals(number).name}"
