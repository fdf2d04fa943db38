"""What `--help` says, read from `conf/` itself, and what a failed composition means, in one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .core.errors import did_you_mean

_GROUP = re.compile(r"^\s+- (?!override)(\w+): *\"?(\w+)\"? *(?:# *(.*))?$")
_NESTED = re.compile(r"^( +)(\w+): *(.*?)(?: +# *(.*))?$")
_VALUE = re.compile(r"^(\w+): *(.*?)(?: +# *(.*))?$")


def help_text(folders: list[Path], config_name: str, module: str) -> str:
    """How to call the command: its own values, each group with its choices (the default in brackets), and the run-level
    values it reads, with the comments of its config, else of the main one."""
    text, main = ((_home(folders, name) / f"{name}.yaml").read_text() for name in (config_name, MAIN))
    groups, known = _groups(text), {group: comment for group, _, comment in _groups(main)}
    lines = [f"python -m {module} {'[group=choice] ' if groups else ''}[key=value] [--multirun]"]
    about = text.splitlines()[0].lstrip("# ").removeprefix(f"python -m {module}: ")
    lines += ["", about[0].upper() + about[1:]]
    if own := _own_values(text):
        lines += ["", "Values of this command (key=value):", *own]
    if groups:
        lines += ["", "Groups (group=choice; group.key=value sets a value of the choice):"]
    for group, default, comment in groups:
        choices = (f"[{stem}]" if stem == default else stem for stem in options(folders, group))
        lines += [f"  {group:<12}{comment or known.get(group, '')}", f"  {'':<12}  {' '.join(choices)}"]
    names = [group for group, _, _ in groups]
    unread = set() if config_name == MAIN else {key for key, group in _READ_WITH.items() if group not in names}
    said = {key: comment for key, _, comment in _values(main)}
    lines += ["", "Run-level values (key=value):"]
    read = [row for row in _values(text) if row[0] not in unread]
    lines += [_line(key, value, comment or said.get(key, "")) for key, value, comment in read]
    with_ranks = [_RANKS] if "driver" in names else []
    return "\n".join([*lines, "", _FLAGS, *with_ranks, *([_RESULTS] if config_name == MAIN else [])])


def _groups(text: str) -> list[tuple[str, str, str]]:
    """(group, default, comment) of a config, in its order."""
    found = (_GROUP.match(line) for line in text.splitlines())
    return [(f[1], f[2], f[3] or "") for f in found if f]


def _values(text: str) -> list[tuple[str, str, str]]:
    """(key, value, comment) of what stands at the top level of a config and is one value."""
    found = (_VALUE.match(line) for line in text.splitlines())
    return [(f[1], f[2], f[3] or "") for f in found if f and f[2]]


def _own_values(text: str) -> list[str]:
    """The values of what only this command has: the top-level block that names a class."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("  _target_:")), None)
    if start is None:
        return []
    path, out = [lines[start - 1].partition(":")[0]], []
    for line in lines[start + 1 :]:
        found = _NESTED.match(line)
        if not line.startswith(" "):
            break
        if found:
            path = [*path[: len(found[1]) // 2], found[2]]
            out += [_line(".".join(path), found[3], found[4] or "")] if found[3] else []
    return out


def _line(key: str, value: str, comment: str) -> str:
    return f"  {key + '=' + value:<40}  {comment}".rstrip()


MAIN = "config"
# What a command without the group does not read; "": the main command alone does.
_READ_WITH = {
    **dict.fromkeys(("name", "output_root", "force", "plots"), ""),
    **dict.fromkeys(("ranks", "actions", "secret_file"), "driver"),
    "data_root": "workload",
    "cache_root": "engine",
}
_FLAGS = """\
Flags:
  --cfg job      print the composed configuration and stop
  --multirun     one run per combination: selector=cheapest,gorgo seed=0,1,2
  --config-dir   a further folder of configs, laid out like conf/
  --hydra-help   what Hydra itself offers"""
_RANKS = "A run with real ranks starts mpiexec by itself; under mpiexec, mpirun or srun it uses the ranks it is given."
_RESULTS = (
    "Results go to <output_root>/<name>/<hash of the configuration>; a finished run is not repeated unless force=true."
)


def explain(error: BaseException, folders: list[Path], config_name: str, overrides: list[str]) -> str:
    """One line for what Hydra could not compose: what was given, and the nearest thing that exists."""
    message = str(error)
    missing = getattr(error, "missing_cfg_file", None)
    if missing:
        group, _, choice = str(missing).rpartition("/")
        if not group:
            return f"there is no config `{choice}`{did_you_mean(choice, options(folders, ''))}"
        return f"`{group}` has no choice `{choice}`{did_you_mean(choice, getattr(error, 'options', None) or [])}"
    unreadable = getattr(error, "override", None)
    if unreadable is not None:
        return f"cannot read the argument `{unreadable}`: {_first_line(message)}"
    mistyped = re.search(r"Could not (?:override|delete)(?: from config\.)? '([^'=]+)'", message)
    if mistyped:
        from .config import nearest_key

        key = mistyped.group(1)
        return f"there is no key `{key}`{nearest_key(key, _known_keys(folders, config_name, key, overrides))}"
    several = re.match(r"Ambiguous value for argument '([^']+)'", message)
    if several:
        given = several.group(1)
        key, _, value = given.partition("=")
        return f"`{given}` has several values: add --multirun for one run each, or write `{key}=[{value}]` for a list"
    return _first_line(message)


def _first_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0] if lines else "the configuration cannot be composed"


def options(folders: list[Path], group: str) -> list[str]:
    """The choices of a group over all config folders, sorted."""
    return sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})


def _home(folders: list[Path], config_name: str) -> Path:
    return next(folder for folder in folders if (folder / f"{config_name}.yaml").is_file())


def _known_keys(folders: list[Path], config_name: str, mistyped: str, overrides: list[str]) -> list[str]:
    """The keys of the config without the mistyped one; of the default config where that does not compose either."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    from .config import keys

    good = [o for o in overrides if o.lstrip("+~").partition("=")[0] != mistyped and not o.startswith("hydra.")]
    paths = ", ".join(f"'file://{folder}'" for folder in folders)
    with initialize_config_dir(str(_home(folders, config_name)), version_base="1.3"):
        for attempt in (good, []):
            try:
                cfg: Any = OmegaConf.to_container(
                    compose(config_name, [*attempt, f"hydra.searchpath=[{paths}]"]), resolve=False
                )
            except HydraException:
                continue
            return keys(cfg)
    return []
