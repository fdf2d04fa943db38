"""What holds of every engine: each file in conf/engine is picked up."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from kvshare_research.build import build
from kvshare_research.engine.base import EngineSpec

FOLDER = Path(__file__).parents[2] / "conf" / "engine"
NAMES = [path.stem for path in sorted(FOLDER.glob("*.yaml"))]


def given(name: str) -> Any:
    config = OmegaConf.load(FOLDER / f"{name}.yaml")
    if "model" in config:
        config.model = "/models/mine"
    return OmegaConf.to_container(config, resolve=True)


def test_the_expected_ones_are_there() -> None:
    assert {"huggingface", "smollm", "tiny"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_documented_frozen_value_and_its_file_names_every_setting(name: str) -> None:
    spec = build(given(name), "engine", EngineSpec)
    assert EngineSpec in type(spec).__mro__
    assert type(spec).__doc__
    assert {field.name for field in fields(spec)} == set(given(name)) - {"_target_"}
    assert pickle.loads(pickle.dumps(spec)) == spec == build(given(name), "engine", EngineSpec)
    assert hash(spec) == hash(pickle.loads(pickle.dumps(spec)))
    with pytest.raises(FrozenInstanceError):
        spec.dtype = "fp16"


def test_importing_a_spec_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys, kvshare_research.engine.tiny, kvshare_research.engine.smollm, kvshare_research.engine.huggingface;"
        "print([m for m in ('torch', 'transformers', 'safetensors', 'tokenizers', 'blake3') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=FOLDER.parents[1], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
