"""The transformers cache that lives in a `KvPool`: a sequence is gathered once, extended in place, and stored back.

Attention wants the keys of a head side by side, the pool keeps them by block so that blocks can travel. A `Workspace`
is the bridge: one contiguous sequence for all layers, reused from call to call.
"""

# Letters of tensor names: L layer, C 0 for keys and 1 for values, H KV head, S position, D head dim; N batch of one.

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from .pool import KvPool

ATTENTION_NAME = "kvshare_grouped"


class Workspace:
    """Keys and values of one sequence in all layers, in a buffer that grows by doubling and is never shrunk."""

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool
        self.kv_LCHSD = self._allocate(0)

    def _allocate(self, block_count: int) -> torch.Tensor:
        layer_count, _, _, head_count, block_tokens, head_dim = self._pool.blocks_LCBHTD.shape
        shape = (layer_count, 2, head_count, block_count * block_tokens, head_dim)
        return torch.zeros(shape, dtype=self._pool.blocks_LCBHTD.dtype, device=self._pool.blocks_LCBHTD.device)

    def reserve(self, block_count: int) -> None:
        """At least `block_count` blocks fit; contents are lost if it had to grow."""
        capacity_blocks = self.kv_LCHSD.shape[3] // self._pool.block_tokens
        if block_count > capacity_blocks:
            self.kv_LCHSD = self._allocate(max(block_count, 2 * capacity_blocks))

    def _by_block(self, layer: int, start: int, end: int) -> torch.Tensor:
        """Blocks [start, end) of a layer as a view of shape [2][head][block][token][dim]."""
        tokens = self._pool.block_tokens
        kv_CHSD = self.kv_LCHSD[layer, :, :, start * tokens : end * tokens]
        _, head_count, _, head_dim = kv_CHSD.shape
        return kv_CHSD.view(2, head_count, end - start, tokens, head_dim)

    def gather(self, index: torch.Tensor) -> None:
        """The first `len(index)` blocks hold what the pool has in these slots."""
        count = len(index)
        for layer, pool_CBHTD in enumerate(self._pool.blocks_LCBHTD if count else ()):
            self._by_block(layer, 0, count).copy_(pool_CBHTD.index_select(1, index).transpose(1, 2))

    def scatter(self, index: torch.Tensor, start_block: int, end_token: int) -> None:
        """The pool has blocks [start_block, ...) of the sequence up to `end_token`, zeros after it in the last block.

        Zeros, because a block must never carry what an earlier sequence left in the workspace.
        """
        end_block = start_block + len(index)
        self.kv_LCHSD[:, :, :, end_token : end_block * self._pool.block_tokens].zero_()
        for layer, pool_CBHTD in enumerate(self._pool.blocks_LCBHTD):
            pool_CBHTD.index_copy_(1, index, self._by_block(layer, start_block, end_block).transpose(1, 2))


class PagedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no types
    """One layer of the sequence in a `Workspace`; `length` positions are valid."""

    is_sliding = False
    is_compileable = False
    is_croppable = False

    def __init__(self, kv_CHSD: torch.Tensor, length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kv_CHSD = kv_CHSD
        self.length = length
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the workspace is allocated beforehand."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The new positions are appended; views of the whole sequence, no copy of the old part."""
        end = self.length + key_states.shape[-2]
        self._kv_CHSD[0, :, self.length : end] = key_states[0]
        self._kv_CHSD[1, :, self.length : end] = value_states[0]
        self.length = end
        kv_NCHSD = self._kv_CHSD[None, :, :, :end]
        return kv_NCHSD[:, 0], kv_NCHSD[:, 1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


def paged_cache(workspace: Workspace, length: int) -> Cache:
    """A cache over the workspace whose first `length` positions are valid in every layer."""
    return Cache(layers=[PagedLayer(kv_CHSD, length) for kv_CHSD in workspace.kv_LCHSD])


@final
class AttentionMass:
    """How much the last `rows` positions of a pass attend to each position, averaged over heads; layers add up."""

    def __init__(self, rows: int, token_count: int) -> None:
        self._rows = rows
        self._mass_S = torch.zeros(token_count)
        self._layers = 0

    def add(self, query: torch.Tensor, key: torch.Tensor, scaling: float | None) -> None:
        """One layer of one pass: queries [1][head][row][dim], of which only the last are looked at, and all keys."""
        rows, seen = min(self._rows, query.shape[2]), key.shape[2]
        last = query[0, :, -rows:].float().reshape(key.shape[1], -1, rows, query.shape[-1])
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        weight = torch.einsum("hgrd,hsd->hgrs", last, key[0].float()) * scale
        causal = torch.ones(rows, seen, dtype=torch.bool, device=key.device).tril(seen - rows)
        weight = weight.masked_fill(~causal, float("-inf")).softmax(-1)
        self._mass_S[:seen] += weight.mean((0, 1)).sum(0).cpu()
        self._layers += 1

    def by_block(self, block_tokens: int) -> tuple[float, ...]:
        """The mass on each block, averaged over the layers' passes."""
        parts = (self._mass_S[at : at + block_tokens] for at in range(0, len(self._mass_S), block_tokens))
        return tuple(float(part.sum()) / max(1, self._layers) for part in parts)


_watch = threading.local()  # an engine computes in one thread


@contextmanager
def watching(rows: int, token_count: int) -> Iterator[AttentionMass | None]:
    """Passes inside report their attention to what is yielded; nothing is yielded, nor computed, for 0 rows."""
    _watch.mass = AttentionMass(rows, token_count) if rows else None
    try:
        yield _watch.mass
    finally:
        _watch.mass = None


QUERY_ROWS = 64  # a slice of queries attends only to the keys it may see: a third less work at 512 tokens


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention of one unpadded sequence, as transformers' `sdpa`, without repeating the keys of grouped heads.

    For CPUs. A model that asks for more (a bias, a soft cap, attention sinks) gets transformers' own function.
    """
    special = any(kwargs.get(name) is not None for name in ("position_bias", "softcap", "s_aux", "sliding_window"))
    if special or query.shape[0] != 1 or kwargs.get("is_causal") is False:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    query_count, key_count = query.shape[2], key.shape[2]
    mass: AttentionMass | None = getattr(_watch, "mass", None)
    if mass is not None:
        mass.add(query, key, scaling)
    outputs = []
    for start in range(0, query_count, QUERY_ROWS):
        end = min(start + QUERY_ROWS, query_count)
        seen = key_count - query_count + end
        if attention_mask is not None:
            mask = attention_mask[:, :, start:end, :seen]
        elif start > 0:  # transformers leaves the mask out where the `is_causal` flag says it all
            mask = torch.ones(end - start, seen, dtype=torch.bool, device=query.device).tril(seen - (end - start))
        else:
            mask = None
        outputs.append(
            torch.nn.functional.scaled_dot_product_attention(
                query[:, :, start:end],
                key[:, :, :seen],
                value[:, :, :seen],
                attn_mask=mask,
                dropout_p=dropout,
                scale=scaling,
                is_causal=mask is None and end > 1,
                enable_gqa=True,
            )
        )
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION_NAME, grouped_attention)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
