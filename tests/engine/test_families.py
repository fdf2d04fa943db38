"""Not only Llama: other families of transformers, randomly drawn, give the tokens of their own `generate`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from kvshare_research.core.errors import EngineError
from kvshare_research.engine.tokenizer import ByteTokenizer
from kvshare_research.engine.torch_engine import TorchEngine

SIZES: dict[str, Any] = {"vocab_size": 257, "bos_token_id": None, "eos_token_id": 256, "pad_token_id": 256}
COMMON: dict[str, Any] = {
    **SIZES,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
GROUPED: dict[str, Any] = {**COMMON, "num_key_value_heads": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "GPT2": {**SIZES, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "GPTNeoX": COMMON,
    "Qwen2": GROUPED,
    "Qwen3": {**GROUPED, "head_dim": 16},
    "Gemma": {**GROUPED, "head_dim": 16},
    "Olmo2": GROUPED,
    "Phi3": {**GROUPED, "sliding_window": None},
    "Mixtral": {**GROUPED, "num_local_experts": 2, "sliding_window": None},
    "Granite": GROUPED,
    "OPT": {**SIZES, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
            "max_position_embeddings": 128, "word_embed_proj_dim": 32},
}  # fmt: skip


def engine_of(network: Any) -> TorchEngine:
    return TorchEngine(
        name=type(network).__name__,
        network=network.eval(),
        tokenizer=ByteTokenizer(),
        dtype="fp32",
        device="cpu",
        threads=1,
        block_tokens=4,
        pool_bytes=1 << 20,
        chunk_tokens=None,
    )


def drawn(family: str, settings: dict[str, Any]) -> Any:
    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(**settings, initializer_range=0.3)
    return getattr(transformers, f"{family}ForCausalLM" if family != "GPT2" else "GPT2LMHeadModel")(config)


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_equal_generate_cold_and_reused(family: str) -> None:
    network = drawn(family, FAMILIES[family])
    tokens = np.random.default_rng(3).integers(0, 256, 75).astype(np.uint32)
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    expected = network.eval().generate(ids, max_new_tokens=8, do_sample=False)[0, 75:].tolist()
    engine = engine_of(network)
    for start in (0, 40):
        result = engine.prefill(tokens, start, 75, range(21))
        assert result.first_token is not None
        answer = [result.first_token, *engine.decode(result.first_token, 75, 7, range(21)).tokens]
        assert answer == expected, start


@pytest.mark.parametrize(
    ("family", "settings", "kind"),
    [
        ("Mistral", {**GROUPED, "sliding_window": 8}, "DynamicSlidingWindowLayer"),
        ("Gemma2", {**GROUPED, "head_dim": 16}, "DynamicSlidingWindowLayer"),
        ("Mamba", {**SIZES, "hidden_size": 32, "num_hidden_layers": 2}, "LinearAttentionLayer"),
    ],
)
def test_layers_that_do_not_keep_every_position_are_refused(family: str, settings: dict[str, Any], kind: str) -> None:
    with pytest.raises(EngineError, match=f"has layers of kind {kind}; only full attention can share blocks"):
        engine_of(drawn(family, settings))
