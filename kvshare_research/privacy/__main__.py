"""`python -m kvshare_research.privacy`: try to refute what the disclosure mechanisms claim."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from kvshare_research.cli import app

if TYPE_CHECKING:
    from collections.abc import Mapping


@app("privacy_audit", module="kvshare_research.privacy")
def main(cfg: Mapping[str, Any], comm: Any) -> int:
    """Runs the audit and prints its bounds; 1 if something is refuted that should hold, or the reverse."""
    from kvshare_research.build import build
    from kvshare_research.config import plain

    code: int = build(plain(cfg)["audit"], "audit").run()
    return code


if __name__ == "__main__":
    sys.exit(main())
