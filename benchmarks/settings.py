"""Settings of a benchmark from its command line: `name=value` for each that is not the default, or `--help`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import NoReturn, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kvshare_research.core.errors import did_you_mean

_COMMENT = re.compile(r"^\s+(\w+): .*?  # (.+)$", re.MULTILINE)
T = TypeVar("T")


def given(kind: type[T], arguments: Sequence[str] | None = None) -> T:
    """The settings as asked. `--help` prints what the benchmark does and what can be set, and ends the process; what
    cannot be read ends it with one line."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if {"--help", "-h"} & set(words):
        print(help_text(kind))
        raise SystemExit(0)
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for word in words:
        name, equals, _ = word.partition("=")
        if not equals or name not in known:
            _refuse(f"cannot use `{word}`, expected name=value{did_you_mean(name.lstrip('-'), known)}")
    try:
        made = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), OmegaConf.from_dotlist(words)))
    except OmegaConfBaseException as error:
        _refuse(f"`{error.full_key}`: {str(error).splitlines()[0]}")
    assert isinstance(made, kind)
    return made


def help_text(kind: type[object]) -> str:
    """What the module of these settings says of itself, and each setting with its default and comment."""
    module = sys.modules[kind.__module__]
    spec = getattr(module, "__spec__", None)
    comments = dict(_COMMENT.findall(inspect.getsource(kind)))
    defaults = OmegaConf.structured(kind)
    rows = [
        f"  {name + '=' + _spelt(value):<40}  {comments.get(name, '')}".rstrip() for name, value in defaults.items()
    ]
    command = f"python -m {kind.__module__ if spec is None else spec.name} [name=value ...]"
    return "\n".join([command, "", inspect.getdoc(module) or "", "", "Settings (name=value):", *rows])


def _spelt(value: object) -> str:
    if OmegaConf.is_list(value):
        return "[" + ",".join(map(_spelt, value)) + "]"  # type: ignore[call-overload]
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _refuse(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)
