"""The block pool: one tensor `[layer][K/V][block][head][token][dim]` that engines read and transports copy.

The unit of transfer is (layer, run of blocks): `read_layer` on one pool gives the very bytes `write_layer` takes on
another, in the pool's dtype. Device pools are staged through host memory.
"""

# Letters of tensor names: L layer, C 0 for keys and 1 for values, B block, H KV head, T token in block, D head dim.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kvshare_research.core.errors import ConfigError, EngineError

from .base import ModelSpec

TORCH_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class KvPool:
    """`block_count` blocks of `block_tokens` tokens in all layers, allocated once and zeroed."""

    def __init__(self, spec: ModelSpec, *, block_tokens: int, pool_bytes: int, device: str = "cpu") -> None:
        """Raises ConfigError if not even one block fits, EngineError if the device has not got the memory."""
        if not 1 <= block_tokens <= spec.context_tokens:
            raise ConfigError(
                f"`block_tokens` is `{block_tokens}`, expected 1 to {spec.context_tokens}, the context of `{spec.name}`"
            )
        self.block_tokens = block_tokens
        self.block_bytes = spec.block_bytes(block_tokens)
        self.layer_block_bytes = spec.layer_block_bytes(block_tokens)
        self.block_count = pool_bytes // self.block_bytes
        if self.block_count < 1:
            raise ConfigError(
                f"`pool_bytes` is `{pool_bytes}`, expected at least {self.block_bytes}: one block of {block_tokens} "
                f"tokens of `{spec.name}` in {spec.dtype}"
            )
        shape = (spec.layer_count, 2, self.block_count, spec.kv_head_count, block_tokens, spec.head_dim)
        try:
            self.blocks_LCBHTD = torch.zeros(shape, dtype=TORCH_DTYPES[spec.dtype], device=device)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            raise EngineError(
                f"`pool_bytes` is `{pool_bytes}`: {device} cannot allocate that much; make it smaller"
            ) from error
        self.layer_count = spec.layer_count

    def layer_bytes(self, block_count: int) -> int:
        """Bytes that `read_layer` gives for this many blocks."""
        return block_count * self.layer_block_bytes

    def slot_index(self, slots: Sequence[int]) -> torch.Tensor:
        """The slots as an index on the pool's device; raises EngineError unless they are distinct and in the pool."""
        if any(not 0 <= slot < self.block_count for slot in slots):
            bad = next(slot for slot in slots if not 0 <= slot < self.block_count)
            raise EngineError(f"slot {bad} is outside the pool of {self.block_count} blocks")
        if len(set(slots)) != len(slots):
            raise EngineError("a slot is given twice; every block of a sequence needs its own")
        return torch.tensor(slots, dtype=torch.int64, device=self.blocks_LCBHTD.device)

    def read_layer(self, layer: int, slots: Sequence[int]) -> NDArray[np.uint8]:
        """A contiguous copy of the blocks of one layer, as bytes of shape [2][block][head][token][dim]."""
        self._check_layer(layer)
        blocks_CBHTD = self.blocks_LCBHTD[layer].index_select(1, self.slot_index(slots))
        # Viewing as uint8 lets bf16, which NumPy lacks, travel as it is.
        flat: NDArray[np.uint8] = blocks_CBHTD.reshape(-1).view(torch.uint8).cpu().numpy()
        return flat

    def write_layer(self, layer: int, slots: Sequence[int], buffer: Any) -> None:
        """The blocks of one layer hold what `read_layer` gave. `buffer` is anything with the buffer protocol.

        Raises EngineError, with the pool unchanged, if its size is not `layer_bytes(len(slots))`.
        """
        self._check_layer(layer)
        index = self.slot_index(slots)
        raw = np.frombuffer(buffer, dtype=np.uint8)
        if raw.size != self.layer_bytes(len(slots)):
            raise EngineError(
                f"{raw.size} bytes given for {len(slots)} blocks, expected {self.layer_bytes(len(slots))}"
            )
        if not raw.flags.writeable or raw.ctypes.data % self.blocks_LCBHTD.element_size():
            raw = raw.copy()  # torch wants writable, aligned memory even to read it
        pool_CBHTD = self.blocks_LCBHTD[layer]
        _, _, head_count, token_count, head_dim = pool_CBHTD.shape
        blocks_CBHTD = (
            torch.from_numpy(raw).view(pool_CBHTD.dtype).view(2, len(slots), head_count, token_count, head_dim)
        )
        pool_CBHTD.index_copy_(1, index, blocks_CBHTD.to(pool_CBHTD.device))

    def clear(self) -> None:
        """Every block is zero."""
        self.blocks_LCBHTD.zero_()

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < self.layer_count:
            raise EngineError(f"layer {layer} is outside the pool's {self.layer_count} layers")
