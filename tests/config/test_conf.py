"""Every file under conf/ is something that can be run: it composes, builds, and has no key that nobody reads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from kvshare_research.config import check, config_hash, declared, plain
from kvshare_research.core.errors import ConfigError

ROOT = Path(__file__).parents[2] / "conf"
COMMANDS = sorted(path.stem for path in ROOT.glob("*.yaml"))
CHOICES = [f"{path.parent.name}={path.stem}" for path in sorted(ROOT.glob("*/*.yaml"))]
GROUPS = declared([ROOT], "config")
PLACEHOLDER = "given_by_the_user"  # for values that have no default, for example the folder of a model


@pytest.fixture(scope="module", autouse=True)
def hydra() -> Iterator[None]:
    with initialize_config_dir(str(ROOT), version_base="1.3"):
        yield


@cache
def composed(command: str, *overrides: str) -> Any:
    """The plain config of a command, with placeholders where a person must give a value."""
    cfg = compose(command, list(overrides))
    _fill(cfg)
    return plain(cfg)


def _fill(node: Any) -> None:
    for key in node if OmegaConf.is_dict(node) else ():
        if OmegaConf.is_missing(node, key):
            node[key] = PLACEHOLDER
        elif OmegaConf.is_dict(node[key]):
            _fill(node[key])


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_can_be_run(choice: str) -> None:
    """It composes, builds, and one wrong key in it is refused by name."""
    group = choice.partition("=")[0]
    assert group in GROUPS | {"experiment"}, f"no command lists the group `{group}`"
    data = composed("config", choice)
    run = check(data, GROUPS)
    if group == "experiment":
        return
    assert group in run.parts
    with pytest.raises(ConfigError, match="misspelt"):
        check({**data, group: {**data[group], "misspelt": 1}}, GROUPS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_composes_as_it_is(command: str) -> None:
    """Without an override nothing is missing; the main job's configuration is checked whole."""
    data = composed(command)
    assert data
    if command == "config":
        run = check(data, declared([ROOT], command))
        assert run.folder.name == config_hash(run.resolved)


def test_presets_only_choose_and_set_what_exists() -> None:
    """A preset introduces no key of its own: whatever it sets, the default config has."""
    known = set(compose("config").keys())
    for path in sorted((ROOT / "experiment").glob("*.yaml")):
        text = path.read_text()
        assert text.startswith("# @package _global_"), path.name
        own = set(yaml.safe_load(text)) - {"defaults"}
        assert own <= known, f"{path.name} sets {own - known}"


def test_choices_give_different_hashes() -> None:
    """Two choices of one group are two different experiments."""
    by_group: dict[str, list[str]] = {}
    for choice in CHOICES:
        by_group.setdefault(choice.partition("=")[0], []).append(config_hash(composed("config", choice)))
    by_group.pop("experiment", None)  # a preset may spell out what is the default
    assert {group for group, hashes in by_group.items() if len(set(hashes)) < len(hashes)} == set()
