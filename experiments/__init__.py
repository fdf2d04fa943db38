"""Published findings, run again: each folder holds the claim, the command and what came out."""

from __future__ import annotations

import sys
from types import TracebackType

from kvshare_research.core.errors import KvShareError


def _say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What is the caller's to mend is one line, as it is for the main command; anything else is shown whole."""
    if isinstance(error, KvShareError):
        print(f"error: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _say
