"""The error tree. The type says who is to blame; the message says what to do.

KvShareError
  ConfigError     the author of a config, a file or a command line
  RemoteError     another rank, engine or publisher
  EngineError     the model: missing, corrupt, or not fitting the request
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class KvShareError(Exception):
    """Base of every error this project raises on purpose; shown to people as one line."""


class ConfigError(KvShareError):
    """The configuration cannot mean anything: what was given, what was expected, the nearest choice."""


class RemoteError(KvShareError):
    """Another process sent something impossible or stopped answering."""


class EngineError(KvShareError):
    """The model cannot be loaded or cannot run what was asked."""


def did_you_mean(given: str, choices: Iterable[str]) -> str:
    """``; did you mean `x`?`` for the nearest choice, else the list of choices; changes nothing.

    Of names in spaces (`aws:us-east-1`) only those of the space that was given are meant, where there are any.
    """
    known = sorted(choices)
    space = given[: given.find(":") + 1]
    if inside := [c.removeprefix(space) for c in known if space and c.startswith(space)]:
        given, known = given.removeprefix(space), inside
    else:
        space = ""
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    if near:
        return f"; did you mean `{space}{near[0]}`?"
    return f"; choices: {', '.join(f'`{space}{c}`' for c in known)}" if known else ""
