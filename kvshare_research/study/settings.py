"""The configuration of one case: the run's own, with the case's choices put in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from kvshare_research.cli import conf_root
from kvshare_research.core.errors import ConfigError, did_you_mean

from .plan import Case

AXES = ("selector", "tenancy", "link", "disclosure", "prefetch")


def choice(
    group: str, name: str, root: Path | None = None, *, within: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The plain content of `conf/<group>/<name>.yaml`, with what it takes from the rest of the configuration `within`;
    ConfigError names the nearest one."""
    folder = (root or conf_root()) / group
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = [p.stem for p in folder.glob("*.yaml")]
        raise ConfigError(f"the study names {group} `{name}`{did_you_mean(name, known)}")
    whole = OmegaConf.create({**(within or {}), group: OmegaConf.load(path)})
    loaded = OmegaConf.to_container(whole[group], resolve=True)
    assert isinstance(loaded, dict)
    return {str(k): v for k, v in loaded.items()}


def case_config(resolved: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """What the machines of this case are built from; plain values, no key among them."""
    config = {k: v for k, v in resolved.items() if k != "study"}
    for axis in AXES:
        name = getattr(case, axis)
        if name is not None:
            config[axis] = choice(axis, name, within=resolved)
    if case.block.actions:
        config["actions"] = [action.name.lower() for action in case.block.actions]
    workload = dict(config["workload"])
    if case.overlap is not None:
        if "overlap" not in workload:
            raise ConfigError("the study dials `overlap`, but this workload has no such field; use workload=generated")
        workload["overlap"] = case.overlap
    config["workload"] = workload
    return config


def names(resolved: Mapping[str, Any], case: Case) -> dict[str, str]:
    """The effective choice of each axis by name, for labels."""
    return {axis: getattr(case, axis) or name_of(axis, resolved[axis]) for axis in AXES}


def name_of(group: str, component: Mapping[str, Any]) -> str:
    """The YAML of the group that says just this; where values were changed by hand, the module's name and a star."""
    for path in sorted((conf_root() / group).glob("*.yaml")):
        said = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        assert isinstance(said, dict)
        said.pop("defaults", None)
        run_level = {key for key, value in said.items() if isinstance(value, str) and value.startswith("${")}
        if without(component, run_level) == without(said, run_level):
            return path.stem
    return f"{component['_target_'].split('.')[-2]}*"


def without(values: Mapping[Any, Any], keys: set[Any]) -> dict[Any, Any]:
    """The other values."""
    return {key: value for key, value in values.items() if key not in keys}


def canonical(value: Mapping[str, Any]) -> str:
    """Equal text for equal settings."""
    return json.dumps(value, sort_keys=True)
