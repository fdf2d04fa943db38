"""Starting MPI ranks and keeping them in step: `mpiexec` from outside, announcements from rank 0 inside.

Whether this process is a rank is read from the environment, so that no command loads MPI before it needs it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn, final

from .core.errors import ConfigError
from .watch import Watch, tell

# Set for every rank by MPICH, Intel MPI and Slurm's PMI; by PMIx launchers; by Open MPI.
RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
GRACE_S = 60.0  # how long ranks may take after a signal to write what they have; a second signal ends them at once
POLL_S = 0.002  # a waiting rank sleeps this long between looks: it must not burn a core that another computes on
HEARD_S = 0.2  # how long a launcher may take to pass on the last words of a rank before it ends all of them
STARTED = "KVSHARE_STARTED_BY"  # tells a rank that it was started by this project, so that it never starts ranks itself
RANKS_PER_CORE_MAX, RANKS_LOCAL_MIN = 4, 16  # each rank loads a model
_CONTROL_TAG = 1
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MpiDriver:
    """Real ranks. `mpiexec` is a launcher's path (null: the one beside this Python, else on PATH)."""

    needs_ranks: ClassVar[bool] = True

    survive: bool = False  # Open MPI only: a rank that is killed does not end the others
    mpiexec: str | None = None
    mpiexec_args: tuple[str, ...] = ()  # further launcher arguments, for example a host list


def inside_mpi(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether an MPI launcher started this process."""
    return any(name in environ for name in RANK_VARIABLES)


def find_mpiexec(given: str | None) -> Path:
    """The launcher to use; ConfigError where there is none."""
    if given is not None:
        found = shutil.which(given)
        if found is None:
            raise ConfigError(f"`driver.mpiexec` is `{given}`, expected an executable launcher")
        return Path(found)
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("mpiexec")
    if found is None or importlib.util.find_spec("mpi4py") is None:
        missing = "`mpi4py`" if found else f"`mpiexec`, which is neither in `{beside.parent}` nor on PATH"
        raise ConfigError(f"`driver=mpi` needs {missing}; install it with: pip install 'kvshare_research[mpi]'")
    return Path(found)


def rank_command(
    driver: MpiDriver, ranks: int, module: str, arguments: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """The command line that runs `module` on `ranks` processes, and the environment it needs; starts nothing."""
    _refuse_to_start(driver, ranks)
    launcher = find_mpiexec(driver.mpiexec)
    env = {STARTED: str(launcher), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if sys.stdout.isatty():  # the ranks write to a pipe that ends at this terminal
        size = shutil.get_terminal_size()
        env |= {"TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "1", "COLUMNS": str(size.columns), "LINES": str(size.lines)}
    flags: list[str] = []
    if _is_open_mpi(launcher):
        library = launcher.parent.parent / "lib" / "libmpi.so.40"
        if library.exists():
            env["MPI4PY_LIBMPI"] = str(library)
        if os.geteuid() == 0:
            env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        flags = ["--enable-recovery"] if driver.survive else []
        flags += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "--mca", "osc", "^ucx"]
        for name in env:
            flags += ["-x", name]
    elif driver.survive:
        raise ConfigError(f"`driver.survive=true` needs Open MPI; `{launcher}` ends all ranks when one dies")
    program = [sys.executable, "-m", "mpi4py", "-m", module, *arguments]
    return [str(launcher), *flags, *driver.mpiexec_args, "-n", str(ranks), *program], env


def _refuse_to_start(driver: MpiDriver, ranks: int) -> None:
    """ConfigError where starting ranks would not end, or would drown this machine."""
    before = os.environ.get(STARTED)
    if before is not None:
        raise ConfigError(
            f"`{before}` started this process but did not make it an MPI rank (none of "
            f"{', '.join(RANK_VARIABLES)} is set); give an MPI launcher in `driver.mpiexec`"
        )
    most = max(RANKS_LOCAL_MIN, RANKS_PER_CORE_MAX * (os.cpu_count() or 1))
    if ranks > most and not driver.mpiexec_args:
        raise ConfigError(
            f"`ranks` is `{ranks}`, expected at most {most} on the {os.cpu_count()} cores of this machine; "
            "name other hosts in `driver.mpiexec_args`, or start the ranks with your own launcher"
        )


def run_ranks(command: Sequence[str], extra_env: Mapping[str, str]) -> int:
    """The exit code of `command` after it has ended, with every process it started, whatever ends this one: where it is
    killed outright, Linux tells the launcher (SIGTERM), and rank 0 writes what it has."""
    with Watch() as watch:
        code = _run(command, {**extra_env, **os.environ, **watch.environment}, watch)
    if story := watch.story(code):
        sys.stderr.write(f"error: {story}\n")
        sys.stderr.flush()
    return 128 - code if code < 0 else code


def _run(command: Sequence[str], env: Mapping[str, str], watch: Watch) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    # A session of its own: signals reach the ranks once, through here, and nothing outlives the group.
    first = _end_with_parent()
    child = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=first,  # noqa: PLW1509  (it takes no lock: two system calls)
    )  # fmt: skip
    previous = signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        return watch.wait(child)
    except KeyboardInterrupt:
        _end(child, signal.SIGINT)
        raise
    finally:
        _end(child, signal.SIGTERM)
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def unwinding() -> Iterator[None]:
    """Within, SIGINT and SIGTERM raise SystemExit (130, 143) where the program is, so that it leaves nothing behind; a
    second one ends it at once."""

    def handler(number: int, _frame: object) -> NoReturn:
        for known in before:
            signal.signal(known, signal.SIG_DFL)
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _end_with_parent() -> Callable[[], None] | None:
    """What a new process does first, so that the system ends it when this one is gone; None where no system does."""
    if sys.platform != "linux":
        return None
    tell, parent = ctypes.CDLL(None).prctl, os.getpid()  # looked up here: the new process may only call

    def follow() -> None:
        tell(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() != parent:  # it went before it was followed
            os._exit(1)

    return follow


def _is_open_mpi(launcher: Path) -> bool:
    try:
        answer = subprocess.run([launcher, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"the launcher `{launcher}` does not run: {error}") from None
    return "Open MPI" in answer.stdout or "OpenRTE" in answer.stdout


def _exit_on_signal(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _end(child: subprocess.Popen[bytes], number: int) -> None:
    if child.poll() is not None:
        return
    child.send_signal(number)
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def mpi_library() -> str:
    """Name and version of the MPI that this rank runs on; only ranks may ask, since asking joins the job."""
    from mpi4py import MPI

    return str(MPI.Get_library_version()).split("\n")[0].strip("\0 ")


_lost: set[int] = set()


def forget_rank(rank: int) -> None:
    """The rank is dead: this process says nothing to it any more, and does not wait for it to leave."""
    _lost.add(rank)


def leader_watch(comm: Any) -> Callable[[], bool]:
    """Whether rank 0 still runs, as far as its host can tell (elsewhere always True); all ranks must call it.

    MPI that lets ranks outlive each other leaves workers behind when rank 0 is killed.
    """
    host, process = comm.bcast((socket.gethostname(), os.getpid()))
    here = host == socket.gethostname()

    def lives() -> bool:
        if not here:
            return True
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    return lives


class World:
    """The ranks of this job. Rank 0 announces what all do next; the others follow until it says stop."""

    def __init__(self) -> None:
        from mpi4py import MPI  # loading it joins the job

        self.comm: Any = MPI.COMM_WORLD
        self._control: Any = self.comm.Dup()
        self.rank: int = self.comm.Get_rank()
        self.size: int = self.comm.Get_size()
        tell(self.rank)
        self._leader_lives = leader_watch(self.comm)

    def announce(self, message: object) -> None:
        """Every other rank gets `message` from `next`. Rank 0 only."""
        for rank in set(range(1, self.size)) - _lost:
            self._control.send(message, dest=rank, tag=_CONTROL_TAG)

    def next(self) -> Any:
        """What rank 0 announced; waits asleep."""
        while not self._control.Iprobe(source=0, tag=_CONTROL_TAG):
            if not self._leader_lives():
                self.abort(1)
            time.sleep(POLL_S)
        return self._control.recv(source=0, tag=_CONTROL_TAG)

    def abort(self, code: int) -> NoReturn:
        """Every rank of the job ends now, without its consent."""
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(HEARD_S)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what went wrong has been said; MPI would add lines of its own
        self.comm.Abort(code)
        raise SystemExit(code)

    def leave(self, code: int) -> NoReturn:
        """This rank ends with `code` in good order; all ranks that live must call it."""
        from mpi4py import MPI

        sys.stdout.flush()
        sys.stderr.flush()
        if _lost:  # what all ranks must do together would wait for the dead
            os._exit(code)
        self._control.Free()
        MPI.Finalize()
        # Past the interpreter, which would make the MPI runner abort noisily for another code than 0, but through what
        # C libraries registered: only there does MPICH tell its launcher that this rank is done, and a launcher that
        # was not told kills the ranks that are still on their way (exit code 9). The lock is kept: no thread runs on.
        ctypes.PyDLL(None).exit(code)
        raise SystemExit(code)
