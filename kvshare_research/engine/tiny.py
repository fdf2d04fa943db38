"""A random Llama of a few thousand weights: for tests and dry runs, loads in well under a second, needs no file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from kvshare_research.core.errors import ConfigError

from .torch_spec import TorchEngineSpec

if TYPE_CHECKING:
    import torch

    from .base import Tokenizer

END_TOKEN = 256  # the bytes are 0 to 255


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny(TorchEngineSpec):
    """Random weights, the same for the same `seed` and shape on every machine with this torch."""

    layer_count: int = 2
    head_count: int = 4
    kv_head_count: int = 2
    head_dim: int = 8
    context_tokens: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        super(Tiny, self).__post_init__()  # slots: the class is made anew, and a bare super() knows the first one
        for field in ("layer_count", "head_count", "kv_head_count", "head_dim", "context_tokens"):
            if getattr(self, field) < 1:
                raise ConfigError(f"`engine.{field}` is `{getattr(self, field)}`, expected at least 1")
        if self.head_count % self.kv_head_count:
            raise ConfigError(
                f"`engine.head_count` is `{self.head_count}`, expected a multiple of `engine.kv_head_count` "
                f"(`{self.kv_head_count}`): heads share KV heads evenly"
            )
        if self.head_dim % 2:
            raise ConfigError(f"`engine.head_dim` is `{self.head_dim}`, expected an even number: positions turn pairs")

    def open_model(self) -> tuple[str, torch.nn.Module, Tokenizer]:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        from .pool import TORCH_DTYPES
        from .tokenizer import ByteTokenizer

        config = LlamaConfig(
            vocab_size=END_TOKEN + 1,
            hidden_size=self.head_count * self.head_dim,
            intermediate_size=2 * self.head_count * self.head_dim,
            num_hidden_layers=self.layer_count,
            num_attention_heads=self.head_count,
            num_key_value_heads=self.kv_head_count,
            max_position_embeddings=self.context_tokens,
            bos_token_id=None,
            eos_token_id=END_TOKEN,
            initializer_range=0.3,  # wide enough that the next token depends on the whole prompt
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network: torch.nn.Module = LlamaForCausalLM(config)
        return f"tiny-{self.seed}", network.to(TORCH_DTYPES[self.dtype]).eval(), ByteTokenizer()

    def kv_shape(self) -> tuple[int, int, int]:
        return self.layer_count, self.kv_head_count, self.head_dim

    def open_tokenizer(self) -> Tokenizer:
        from .tokenizer import ByteTokenizer

        return ByteTokenizer()
