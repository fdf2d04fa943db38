"""`python -m kvshare_research.attack`: how well a hostile tenant guesses a secret, by guard and signal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from kvshare_research.cli import app


@app("attack", module="kvshare_research.attack")
def main(cfg: Mapping[str, Any], comm: Any) -> int:
    """Prints one row per tenancy and signal; 1 if a row is not as it must be."""
    from kvshare_research.build import build
    from kvshare_research.config import plain

    code: int = build(plain(cfg)["attack"], "attack").run()
    return code


if __name__ == "__main__":
    sys.exit(main())
