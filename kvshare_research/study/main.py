"""The job of `python -m kvshare_research`: play a study, show its tables, leave a folder that says how."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvshare_research.core.errors import ConfigError, KvShareError
from kvshare_research.core.nouns import Status

if TYPE_CHECKING:
    from kvshare_research.config import Run
    from kvshare_research.driver.cluster import Cluster
    from kvshare_research.provenance import Provenance
    from kvshare_research.report.progress import Progress

    from .salvage import Diary
    from .session import Session
    from .simulated import SimulatedSession

    Open = Callable[[Progress, Diary], Session | SimulatedSession]


def run(cfg: Mapping[str, Any], comm: Any) -> int:
    """The exit code of the study on this rank; rank 0 plays it, the others serve."""
    from kvshare_research import launch
    from kvshare_research.config import check
    from kvshare_research.driver.mpi import launch as launch_ranks

    from .assembly import StudyAssembly
    from .session import Session
    from .simulated import SimulatedSession

    checked = check(cfg, cfg.keys())
    if not checked.parts["driver"].needs_ranks:
        return _lead(checked, lambda bar, _: SimulatedSession(run=checked, progress=bar), "")

    def lead(cluster: Cluster) -> int:
        library = launch.mpi_library()
        return _lead(
            checked, lambda bar, diary: Session(run=checked, cluster=cluster, progress=bar, diary=diary), library
        )

    return launch_ranks(lead, StudyAssembly())


def _lead(run: Run, open_session: Open, mpi_library: str) -> int:
    """Rank 0: reuse a matching result, or play the study; what was measured is written even if the end is early."""
    from kvshare_research import provenance, report

    from .salvage import alone

    study = run.parts["study"]
    seeds = tuple(sorted({run.values.seed + s for block in study.blocks for s in block.seeds}))
    now = provenance.collect(run.resolved, seeds, mpi_library)
    if not run.values.force and provenance.may_reuse(provenance.read(run.folder), now):
        report.show(run.folder)
        print(f"\nnothing was run: {run.folder} holds the result of this very setting; `force=true` runs it again")
        return 0
    _require_writable(run.folder.parent)
    with alone(run.folder):
        return _play(run, open_session, now)


def _play(run: Run, open_session: Open, now: Provenance) -> int:
    """Rank 0: plays the study, alone with the run's folder."""
    from kvshare_research import provenance, report
    from kvshare_research.driver.played import Interrupted

    from .plan import cases
    from .salvage import Diary, diary_path, salvage

    if (left := salvage(run)) is not None:
        print(f"an earlier run of this setting was killed; what it had measured is in {left}")
    report.clean(run.folder)
    with Diary(diary_path(run), provenance.to_plain(now) | {"config": dict(run.resolved)}, command()) as diary:
        with report.progress(stages=len(cases(run.parts["study"])) + 2) as bar:
            session = open_session(bar, diary)
            try:
                session.play()
            except (KvShareError, Interrupted, SystemExit):  # also a signal, a worker lost, a case not to be built
                folder = _write(run, session, now, partial=True)
                diary.close()
                if session.results:
                    print(f"what was measured until then is in {folder}, marked partial", file=sys.stderr, flush=True)
                raise
        folder = _write(run, session, now, partial=False)
        diary.close()
    if session.results:
        report.show(folder)
    if (unserved := _unserved(session)) is not None:
        raise KvShareError(unserved)
    return 0


def _unserved(session: Session | SimulatedSession) -> str | None:
    """What to say where no request was served, or none played; else None."""
    outcomes = [outcome for case in session.results for outcome in case.outcomes]
    if not outcomes:
        left_out = next((f"; {name}: {why}" for name, why in session.notes.items() if name.startswith("left out")), "")
        return f"no request was played{left_out}"
    if any(outcome.status == Status.DONE for outcome in outcomes):
        return None
    return f"no request was served; the first: {outcomes[0].reason}"


def _require_writable(folder: Path) -> None:
    """ConfigError before any work, where its results could not be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(f"`output_root`: nothing can be written to {folder}: {error.strerror}") from error


def _write(run: Run, session: Session | SimulatedSession, now: Provenance, *, partial: bool) -> Path:
    """All files of the run; the resolved configuration, provenance and logs beside the results."""
    from kvshare_research import provenance, report

    if not session.results:
        return run.folder
    record = provenance.to_plain(now) | {"notes": session.notes, "config": dict(run.resolved)}
    folder = report.write(session.results, record, run.folder, command(), partial, plots=run.values.plots)
    for title, logs in session.logs.items():
        for place, data in logs.items():
            provenance.write_atomic(folder / "logs" / _file_name(title) / f"{place}.log", data)
    if not partial and _unserved(session) is None:  # else it is no result to be used again
        provenance.write_json(folder / provenance.FILE_NAME, provenance.to_plain(now))
    return folder


def _file_name(title: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in title)


def command() -> str:
    """What makes this result again."""
    return shlex.join(["python", "-m", "kvshare_research", *sys.argv[1:]])
