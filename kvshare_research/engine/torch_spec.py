"""The settings every torch engine has, checked before anything heavy is imported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvshare_research.core.errors import ConfigError

from .base import CHUNKINGS, DTYPE_BYTES, Engine, EngineSpec, Tokenizer, check_choice

if TYPE_CHECKING:
    import torch

DEVICES = ("cpu", "cuda")


def device_for(local_rank: int, visible_device_count: int) -> str:
    """The CUDA device of a rank: ranks of a host take its devices in turn. Raises ConfigError if none is visible."""
    if visible_device_count < 1:
        raise ConfigError(
            "`device` is `cuda`, but no GPU is visible; use `engine.device=cpu` or check CUDA_VISIBLE_DEVICES"
        )
    return f"cuda:{local_rank % visible_device_count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchEngineSpec(EngineSpec, ABC):
    """A transformers model in torch. Subclasses say where model and tokenizer come from.

    `chunking: canonical` cuts every prefill at multiples of `chunk_tokens` (null: of the block), which divide the
    block. So reuse, which may end at any block (also after a failed fetch, or within a split), leaves the very passes
    of a cold prefill, and results are bit-equal. `off` computes a stretch in one pass, and reuse gives equal greedy
    tokens in fp32.
    `attention_rows` last positions of each stretch tell how much they attend to each block (0: none do).
    """

    dtype: str = "fp32"
    device: str = "cpu"
    threads: int = 1  # of torch, on the CPU; exactness is only claimed for 1
    block_tokens: int = 16
    pool_bytes: int = 256 << 20
    chunking: str = "off"
    chunk_tokens: int | None = None
    attention_rows: int = 0

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, tuple(DTYPE_BYTES))
        check_choice("device", self.device, DEVICES)
        check_choice("chunking", self.chunking, CHUNKINGS)
        for field in ("threads", "block_tokens", "pool_bytes", "chunk_tokens"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ConfigError(f"`{field}` is `{value}`, expected at least 1")
        if self.chunking == "canonical" and self.block_tokens % (self.chunk_tokens or self.block_tokens):
            raise ConfigError(
                f"`chunk_tokens` is `{self.chunk_tokens}`, expected a divisor of `block_tokens` "
                f"(`{self.block_tokens}`): reuse may end at any block; raise `block_tokens` to it"
            )
        if self.attention_rows < 0 or (self.attention_rows and self.device != "cpu"):
            raise ConfigError(f"`attention_rows` is `{self.attention_rows}`, expected 0, or more with `device: cpu`")

    def kv_token_bytes(self) -> int | None:
        shape = self.kv_shape()
        return None if shape is None else 2 * shape[0] * shape[1] * shape[2] * DTYPE_BYTES[self.dtype]

    def kv_shape(self) -> tuple[int, int, int] | None:
        """Layers, KV heads and their dimension, as far as they are known without the model."""
        return None

    @abstractmethod
    def open_model(self) -> tuple[str, torch.nn.Module, Tokenizer]:
        """Name, network on the CPU in `dtype`, tokenizer. Raises EngineError if they cannot be had."""

    def load(self, local_rank: int) -> Engine:
        import torch

        from .torch_engine import TorchEngine

        device = device_for(local_rank, torch.cuda.device_count()) if self.device == "cuda" else "cpu"
        name, network, tokenizer = self.open_model()
        return TorchEngine(
            name=name,
            network=network.to(device),
            tokenizer=tokenizer,
            dtype=self.dtype,
            device=device,
            threads=self.threads,
            block_tokens=self.block_tokens,
            pool_bytes=self.pool_bytes,
            chunk_tokens=(self.chunk_tokens or self.block_tokens) if self.chunking == "canonical" else None,
            attention_rows=self.attention_rows,
        )
