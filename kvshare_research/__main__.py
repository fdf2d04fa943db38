"""`python -m kvshare_research`: the main job; `--help` explains the groups."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .cli import app

if TYPE_CHECKING:
    from .config import Run


def _salvage(run: Run) -> str:
    from .study.salvage import BeingRun, alone, diary_path, salvage

    if not diary_path(run).is_file():
        return ""
    try:
        with alone(run.folder):
            folder = salvage(run)
    except BeingRun:  # the diary of a run that lives; the ranks have said so
        return ""
    return "" if folder is None else f"the run was killed; what was measured until then is in {folder}, marked partial"


@app("config", module=__package__, salvage=_salvage)
def command(cfg: Any, comm: Any) -> int:
    """Serves the workload as configured, measures, and writes results; returns the exit code."""
    from .study.main import run

    return int(run(cfg, comm))


def main() -> None:
    """The console script: ends the process with the command's exit code."""
    sys.exit(command())


if __name__ == "__main__":
    main()
