"""Starts a job on real MPI ranks and ends it: rank 0 runs the caller's `main`, the others serve until it is over.

Whatever happens on any rank, every rank ends, rank 0 says in one line which rank, what and what to do, and the exit
code is not zero. `comm.Abort` is the last resort, when a rank does not leave by itself.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from kvshare_research.core.errors import ConfigError, EngineError, KvShareError, RemoteError
from kvshare_research.driver.assembly import Assembly
from kvshare_research.driver.cluster import Cluster, Interrupted, RunBroken
from kvshare_research.driver.worker import ROUTER_RANK, RouterLost, WorkerLoop
from kvshare_research.launch import leader_watch
from kvshare_research.transport import wire
from kvshare_research.transport.mpi import Channel, MpiEndpoint

if TYPE_CHECKING:
    from mpi4py import MPI

FAILED, MISCONFIGURED, INTERRUPTED = 1, 2, 130
_LEAVE_S: Final = 10.0  # a rank polls every millisecond, unless a kernel or a model load holds it
_WRITE_S: Final = 60.0  # rank 0 may be writing partial results
SWITCH_INTERVAL_S: Final = 5e-4  # the event loop waits this long at most for a compute thread in pure Python

Main = Callable[[Cluster], int | None]


def launch(main: Main, assembly: Assembly) -> int:
    """Runs `main(cluster)` on rank 0 with all other ranks as workers; the exit code of this rank.

    `main` handles RunBroken if it wants to write partial results, and raises it again.
    """
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.size < 2:
        _say(f"rank 0: {world.size} rank given, expected 2 or more: start with `mpiexec -n 3 ...`")
        return MISCONFIGURED
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    comm = world.Dup()
    workers = world.Split(color=int(world.rank == ROUTER_RANK), key=world.rank)
    local_rank = workers.Split_type(MPI.COMM_TYPE_SHARED).rank
    endpoint = MpiEndpoint(comm)
    router_lives = leader_watch(world)
    if world.rank != ROUTER_RANK:
        with _signals(lambda: None):  # rank 0 leads; it will say Finish
            return _work(endpoint, assembly, local_rank, comm, router_lives)
    cluster = Cluster(endpoint, assembly, node_count=world.size - 1)
    with _signals(lambda: setattr(cluster, "interrupt_asked", True)):
        return _lead(main, cluster, comm)


# ------------------------------------------------------------------ rank 0
def _lead(main: Main, cluster: Cluster, comm: MPI.Comm) -> int:
    try:
        code = main(cluster) or 0
    except RunBroken as error:
        code = INTERRUPTED if error.interrupted else FAILED
        _say(str(error))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else FAILED
    except (KeyboardInterrupt, Interrupted):
        code = INTERRUPTED
        _say("rank 0: interrupted")
    except ConfigError as error:
        code = MISCONFIGURED
        _say(f"rank 0: {error}")
    except KvShareError as error:
        code = FAILED
        _say(str(error) if isinstance(error, RemoteError) else f"rank 0: {error}")
    except Exception as error:  # noqa: BLE001 -- told in one line; the other ranks must end in any case
        code = FAILED
        _say(f"rank 0: {_place(error)}; a fault of the program, set KVSHARE_DEBUG=1 for the whole trace")
    if not cluster.close(code, patience_s=_LEAVE_S):
        _say(f"a rank did not leave within {_LEAVE_S:.0f} s; aborting the job")
        comm.Abort(code or FAILED)
    return code


# ------------------------------------------------------------------ workers
def _work(
    endpoint: MpiEndpoint, assembly: Assembly, local_rank: int, comm: MPI.Comm, router_lives: Callable[[], bool]
) -> int:
    rank = endpoint.rank
    loop = WorkerLoop(endpoint, assembly, node=rank - 1, node_count=endpoint.size - 1, local_rank=local_rank)
    loop.router_lives = router_lives
    try:
        code = loop.serve()
        endpoint.drain(_after(_LEAVE_S))
    except RouterLost as error:
        _say(f"rank {rank}: {error}; aborting the job")
        comm.Abort(FAILED)
        return FAILED
    except Exception as error:  # noqa: BLE001 -- whatever it is, rank 0 has to hear of it
        what, advice = _diagnosis(error)
        endpoint.send(ROUTER_RANK, Channel.CONTROL, wire.encode(0, wire.RankFailed(rank, what, advice)))
        told = _await_finish(endpoint, _after(_WRITE_S))
        if told is None:
            _say(f"rank {rank}: {what}; {advice}")
            comm.Abort(FAILED)
            return FAILED
        code = told
    loop.stop(_LEAVE_S)
    return code


def _await_finish(endpoint: MpiEndpoint, give_up: Callable[[], bool]) -> int | None:
    """The exit code rank 0 decided on; None if it does not answer."""
    while not give_up():
        for item in endpoint.poll():
            if item.rank == ROUTER_RANK and item.channel == Channel.CONTROL:
                message = wire.decode(item.data.data).message
                if isinstance(message, wire.Finish):
                    return message.code
        time.sleep(1e-3)
    return None


def _diagnosis(error: Exception) -> tuple[str, str]:
    """What happened and what to do, in one line each."""
    if isinstance(error, EngineError):
        return str(error), "check the `engine` settings"
    if isinstance(error, KvShareError):
        return str(error), "the run is over"
    return _place(error), "a fault of the program, set KVSHARE_DEBUG=1 for the whole trace"


# ------------------------------------------------------------------ small things
def _place(error: Exception) -> str:
    if os.environ.get("KVSHARE_DEBUG"):
        traceback.print_exception(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return " ".join(f"{type(error).__name__}: {error}{where}".split())


def _say(line: str) -> None:
    print(f"kvshare: {line}", file=sys.stderr, flush=True)


def _after(seconds: float) -> Callable[[], bool]:
    end_s = time.monotonic() + seconds
    return lambda: time.monotonic() > end_s


@contextmanager
def _signals(first: Callable[[], None]) -> Iterator[None]:
    """Within, the first SIGINT or SIGTERM calls `first`; a second one raises KeyboardInterrupt where the program is."""
    seen = False

    def handler(signum: int, frame: Any) -> None:
        nonlocal seen
        if seen:
            raise KeyboardInterrupt
        seen = True
        first()

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
