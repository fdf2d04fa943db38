"""What was measured survives a rank 0 that is killed: a diary on disk as it happens, made into partial results later.

The diary lies beside the run's folder and is gone once the run has written its results, whole or partial. The process
that started the ranks outlives them, and makes partial results of a diary that was left; so does the next run.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, final

import msgspec

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Outcome
from kvshare_research.metrics.records import CaseResult, decode_results, encode_results

if TYPE_CHECKING:
    from kvshare_research.config import Run

KILLED = "the run was killed"


def diary_path(run: Run) -> Path:
    """Where the diary of a run is."""
    return run.folder.with_name(f".{run.folder.name}.diary")


@final
class BeingRun(ConfigError):
    """Another process runs this very setting now."""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Within, no other process runs the setting of this results folder or touches its diary; BeingRun where one does.

    The system gives the lock back when its holder dies, however it dies.
    """
    path = folder.with_name(f".{folder.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        file.seek(0)
        holder = file.read().strip() or "another process"
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno()))
        except BlockingIOError:
            held = False
        except OSError:
            held = True  # a file system without locks
        if not held:
            raise BeingRun(f"this setting is being run by {holder}; wait for it to end")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {os.uname().nodename}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@final
class Diary:
    """Lines of a kind and its JSON, each with the system before the next thing happens; a killed process loses none."""

    def __init__(self, path: Path, provenance: dict[str, Any], command: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file: BinaryIO = path.open("wb")
        self._tells = False
        self._line(b"P", encode_results((), provenance=provenance, command=command))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Left on disk, unless it was closed or tells of no case."""
        if self._tells:
            self._file.close()
        else:
            self.close()

    def begin(self, case: CaseResult) -> None:
        """A case is under way; `case` has no outcome yet."""
        self._tells = True
        self._line(b"B", encode_results([case]))

    def outcome(self, outcome: Outcome) -> None:
        """One request of the case under way has ended."""
        self._line(b"O", msgspec.json.encode(outcome))

    def end(self, case: CaseResult) -> None:
        """A case is over; what was said of it before is in it."""
        self._tells = True
        self._line(b"E", encode_results([case]))

    def close(self) -> None:
        """The results are elsewhere now."""
        self._file.close()
        self._tells = False
        self._path.unlink(missing_ok=True)

    def _line(self, kind: bytes, data: bytes) -> None:
        self._file.write(kind + data + b"\n")
        self._file.flush()


def read_diary(data: bytes) -> tuple[list[CaseResult], dict[str, Any], str]:
    """The cases, the last one partial if it was under way, with provenance and command; a torn last line is no line."""
    cases: list[CaseResult] = []
    under_way: CaseResult | None = None
    ended: list[Outcome] = []
    provenance: dict[str, Any] = {}
    command = ""
    for kind, body in _lines(data):
        if kind == b"P":
            head = decode_results(body)
            provenance, command = head.provenance, head.command
        elif kind == b"B":
            (begun,) = decode_results(body).cases
            under_way, ended = replace(begun, partial=True, partial_reason=KILLED), []
        elif kind == b"O" and under_way is not None:
            ended.append(msgspec.json.decode(body, type=Outcome, strict=False))
        elif kind == b"E":
            cases += decode_results(body).cases
            under_way = None
    if under_way is not None and ended:
        cases.append(replace(under_way, outcomes=tuple(ended)))
    return cases, provenance, command


def _lines(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    for line in data.split(b"\n")[:-1]:
        yield line[:1], line[1:]


def salvage(run: Run) -> Path | None:
    """The partial results made of a diary that was left, which is gone then; None if there was nothing in one.

    The caller is `alone` with it.
    """
    from kvshare_research import report

    path = diary_path(run)
    if not path.is_file():
        return None
    try:
        cases, provenance, command = read_diary(path.read_bytes())
    except (ConfigError, msgspec.MsgspecError) as error:
        raise ConfigError(f"`{path}`, left by a run that was killed, is damaged ({error}); remove it") from error
    folder = report.write(cases, provenance, run.folder, command, partial=True, plots=False) if cases else None
    path.unlink(missing_ok=True)
    return folder
