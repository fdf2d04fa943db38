"""A small command over a temporary conf/, for tests of what every command has in common."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from kvshare_research.cli import app
from kvshare_research.core.errors import EngineError


@app("probe", module="tests.config.probe")
def command(cfg: Any, comm: Any) -> int:
    """Says who runs it, then does what `name` asks for."""
    rank, size = (comm.Get_rank(), comm.Get_size()) if comm is not None else (0, 1)
    sys.stdout.write(
        f"rank {rank} of {size} seed {cfg.seed} tenancy {cfg.tenancy._target_.rpartition('.')[2]} pid {os.getpid()}\n"
    )
    sys.stdout.flush()
    if cfg.name == "raise" and rank == size - 1:
        raise EngineError("the model folder `x` is empty; give `engine.model` a folder with config.json")
    if cfg.name == "bug" and rank == size - 1:
        raise KeyError("surprise")
    if cfg.name in ("raise", "bug", "hang"):
        time.sleep(60)
    return 3 if cfg.name == "three" else 0


if __name__ == "__main__":
    sys.exit(command())
