"""Progress for people: a bar on a terminal, plain lines elsewhere, nothing on other ranks than 0."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO, final

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

PLAIN_LINES = 10  # lines per stage when there is no terminal


class Progress(Protocol):
    """What a running job tells. A stage is one case or one step of preparation."""

    def stage(self, what: str, total: int | None = None) -> None:
        """A stage begins; `total` steps if known. The one before is over."""

    def advance(self, steps: int = 1, note: str = "") -> None:
        """`steps` more of the stage are done; `note` says what is happening now."""

    def say(self, text: str) -> None:
        """A line that stays."""


@final
class Silent:
    """Says nothing: for ranks other than 0 and for libraries."""

    def stage(self, what: str, total: int | None = None) -> None:
        del what, total

    def advance(self, steps: int = 1, note: str = "") -> None:
        del steps, note

    def say(self, text: str) -> None:
        del text


@final
class Lines:
    """Plain lines for logs: a stage's begin, every tenth of it, its end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._what, self._total, self._done, self._said = "", 0, 0, 0

    def stage(self, what: str, total: int | None = None) -> None:
        self._what, self._total, self._done, self._said = what, total or 0, 0, 0
        self.say(f"{what}: {total} steps" if total else what)

    def advance(self, steps: int = 1, note: str = "") -> None:
        self._done += steps
        reached = PLAIN_LINES * self._done // self._total if self._total else 0
        if reached > self._said:
            self._said = reached
            self.say(f"{self._what}: {self._done} of {self._total}" + (f", {note}" if note else ""))

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


@final
class Bars:
    """A bar of the whole job and one of the stage, with what is happening now."""

    def __init__(self, progress: RichProgress, stages: int | None) -> None:
        self._progress = progress
        self._begun = 0
        self._whole = progress.add_task("all", total=stages, note="")
        self._stage = progress.add_task("", total=None, note="", visible=False)

    def stage(self, what: str, total: int | None = None) -> None:
        self._progress.update(self._whole, completed=self._begun)
        self._begun += 1
        self._progress.remove_task(self._stage)  # a reset would keep the total of the stage before where none is given
        self._stage = self._progress.add_task(what, total=total, note="")

    def end(self) -> None:
        """The last stage is over, too."""
        self._progress.update(self._whole, completed=self._begun)

    def advance(self, steps: int = 1, note: str = "") -> None:
        self._progress.update(self._stage, advance=steps, note=note)

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)


@contextmanager
def progress(stages: int | None = None, *, rank: int = 0, stream: TextIO | None = None) -> Iterator[Progress]:
    """Report progress, of `stages` stages if known, until the block ends. On stderr, so that stdout stays data."""
    out = sys.stderr if stream is None else stream
    if rank != 0:
        yield Silent()
        return
    if not out.isatty():
        yield Lines(out)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with RichProgress(*columns, console=Console(file=out)) as bars:
        told = Bars(bars, stages)
        yield told
        told.end()
