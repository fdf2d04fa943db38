"""`python -m kvshare_research.tune`: tuned weights of a selector for a trace and a fleet."""

from __future__ import annotations

import sys
from typing import Any

from kvshare_research.cli import app


@app("tune", module="kvshare_research.tune")
def main(cfg: Any, comm: Any) -> int:
    """Searches, confirms and measures on held-out windows; returns the exit code."""
    from .main import run

    return run(cfg, comm)


if __name__ == "__main__":
    sys.exit(main())
