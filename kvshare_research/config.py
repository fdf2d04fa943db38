"""What a whole run is: run-level values, and one component per group of `conf/`, all checked before anything starts."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from .build import TARGET, build, convert
from .core import ports
from .core.errors import ConfigError, did_you_mean
from .core.nouns import Action

# Keys that say where and how to run, not what: they change no number, so they are no part of the identity of a result.
PLACE_KEYS = (
    *("output_root", "cache_root", "force", "debug", "plots"),
    *("driver.mpiexec", "driver.mpiexec_args", "engine.cache_root"),
)
SEED_MAX = 2**32 - 1  # what every random generator in use takes
SEAMS: dict[str, type] = {
    "index": ports.Index,
    "tenancy": ports.Tenancy,
    "cost": ports.Cost,
    "selector": ports.Selector,
    "retention": ports.Retention,
    "schedule": ports.Schedule,
    "prefetch": ports.Prefetch,
    "disclosure": ports.Disclosure,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The run-level values of `conf/config.yaml`; everything else in a config is a component."""

    name: str
    seed: int
    ranks: int
    actions: tuple[Action, ...]
    data_root: str | None
    secret_file: str | None
    cache_root: str
    output_root: str
    force: bool
    plots: bool
    debug: bool

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= SEED_MAX:
            raise ConfigError(f"`seed` is `{self.seed}`, expected 0 to {SEED_MAX}")
        if self.ranks < 2:
            raise ConfigError(f"`ranks` is `{self.ranks}`, expected 2 or more: one router and at least one worker")
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise ConfigError(f"`name` is `{self.name}`, expected the name of a folder")
        if Action.RECOMPUTE not in self.actions:
            raise ConfigError("`actions` leaves out `recompute`, which must always remain possible")
        if len(set(self.actions)) != len(self.actions):
            raise ConfigError("`actions` lists an action twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A checked configuration: `values` run-level, `parts` the component of each group, `resolved` the plain data."""

    values: RunConfig
    parts: Mapping[str, Any]
    resolved: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        """Where the results of exactly this configuration live."""
        return Path(self.values.output_root) / self.values.name / config_hash(self.resolved)


def plain(cfg: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """`cfg` as plain dicts and lists with interpolations resolved; ConfigError names a missing value."""
    try:
        data = OmegaConf.to_container(OmegaConf.create(cfg), resolve=True, throw_on_missing=True)  # type: ignore[arg-type]
    except OmegaConfBaseException as error:
        raise ConfigError(f"`{error.full_key}`: {str(error).splitlines()[0]}") from None
    assert isinstance(data, dict)
    data.pop("hydra", None)
    return {str(key): value for key, value in data.items()}


def check(
    cfg: DictConfig | Mapping[str, Any], declared_groups: Iterable[str], tenants_file: str = "conf/tenants"
) -> Run:
    """The whole configuration as values, every key read and of the right type; else ConfigError in one line.

    `declared_groups` are the groups of the command: an addition outside them is something nobody reads.
    `tenants_file` is what messages call the party table.
    """
    data = plain(cfg)
    names = {field.name for field in dataclasses.fields(RunConfig)}
    known = names | set(declared_groups)
    for key in data:
        if key not in known:
            raise ConfigError(f"nothing reads `{key}`{did_you_mean(key, known)}")
    run = convert({key: value for key, value in data.items() if key in names}, RunConfig, "")
    parts = {key: _part(key, value, tenants_file) for key, value in data.items() if key not in names}
    return Run(values=run, parts=parts, resolved=data)


def _part(key: str, value: Any, tenants_file: str) -> Any:
    """The component of a group; the party table is data, read by its own strict reader."""
    if key != "tenants":
        return build(value, key, SEAMS.get(key))
    from .workload.parties import load_parties

    return load_parties(value, tenants_file)


def declared(folders: Iterable[Path], config_name: str) -> set[str]:
    """The groups that the command's own config lists, and the components it holds itself."""
    path = next(path for folder in folders if (path := folder / f"{config_name}.yaml").is_file())
    data: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    listed = {key for entry in data.get("defaults", ()) if isinstance(entry, dict) for key in entry}
    own = {key for key, value in data.items() if isinstance(value, dict)}
    return {key.lstrip("/") for key in listed | own if " " not in key} - {"experiment", "hydra"}


def config_hash(resolved: Mapping[str, Any]) -> str:
    """16 hex digits that say what was run: equal for equal settings in any order, process and place."""
    kept = json.loads(json.dumps(resolved))
    for key in PLACE_KEYS:
        _drop(kept, key.split("."))
    canonical = json.dumps(kept, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def keys(data: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Every dotted key of a config, inner and leaf."""
    found = []
    for key, value in data.items():
        found.append(f"{prefix}{key}")
        if isinstance(value, Mapping):
            found += keys(value, f"{prefix}{key}.")
    return [key for key in found if not key.endswith(TARGET)]


def nearest_key(given: str, known: Iterable[str]) -> str:
    """A hint for a mistyped dotted key: the nearest sibling where its parent exists, else the nearest of all."""
    known = list(known)
    parent, _, _leaf = given.rpartition(".")
    if parent and parent in known:
        siblings = [k for k in known if k.rpartition(".")[0] == parent]
        return did_you_mean(given, siblings)
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    return f"; did you mean `{near[0]}`?" if near else "; `--cfg job` lists every key"


def _drop(data: Any, path: list[str]) -> None:
    for step in path[:-1]:
        data = data.get(step) if isinstance(data, dict) else None
    if isinstance(data, dict):
        data.pop(path[-1], None)
