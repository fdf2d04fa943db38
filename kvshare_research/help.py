"""What `--help` says, read from `conf/` itself, and what a failed composition means, in one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .core.errors import did_you_mean

_GROUP = re.compile(r"^\s+- (?!override)(\w+): *\"?(\w+)\"? *(?:# *(.*))?$")
_VALUE = re.compile(r"^(\w+): *(.*?)(?: +# *(.*))?$")


def help_text(folders: list[Path], config_name: str, module: str) -> str:
    """How to call the command, each group with its choices (the default in brackets), and the run-level values."""
    text = (_home(folders, config_name) / f"{config_name}.yaml").read_text()
    groups = [found.groups("") for line in text.splitlines() if (found := _GROUP.match(line))]
    lines = [
        f"python -m {module} [group=choice] [key=value] [--multirun]",
        "",
        text.splitlines()[0].lstrip("# "),
        "",
        "Groups (group=choice; group.key=value sets a value of the choice):",
    ]
    for group, default, comment in groups:
        choices = (f"[{stem}]" if stem == default else stem for stem in options(folders, group))
        lines += [f"  {group:<12}{comment}", f"  {'':<12}  {' '.join(choices)}"]
    values = [found.groups("") for line in text.splitlines() if (found := _VALUE.match(line))]
    lines += ["", "Run-level values (key=value):"]
    for key, value, comment in values:
        if key not in ("defaults", "hydra"):
            lines.append(f"  {key + '=' + value:<40}  {comment}".rstrip())
    return "\n".join([*lines, "", _FLAGS])


_FLAGS = """\
Flags:
  --cfg job      print the composed configuration and stop
  --multirun     one run per combination: selector=cheapest,gorgo seed=0,1,2
  --config-dir   a further folder of configs, laid out like conf/
  --hydra-help   what Hydra itself offers
A run with real ranks starts mpiexec by itself; under mpiexec, mpirun or srun it uses the ranks it is given.
Results go to <output_root>/<name>/<hash of the configuration>; a finished run is not repeated unless force=true."""


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
