"""`python -m kvshare_research`: the main job; `--help` explains the groups."""

from __future__ import annotations

import sys
from typing import Any

from .cli import app


@app("config", module=__package__)
def command(cfg: Any, comm: Any) -> int:
    """Serves the workload as configured, measures, and writes results; returns the exit code."""
    from .study.main import run

    return int(run(cfg, comm))


def main() -> None:
    """The console script: ends the process with the command's exit code."""
    sys.exit(command())


if __name__ == "__main__":
    main()
