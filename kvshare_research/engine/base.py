"""What every engine gives: a model's identity, a block pool, a tokenizer, prefill and greedy decode.

`null` engines (replay, simulator) need only `ModelSpec`; everything heavy is imported when an `EngineSpec` loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.errors import ConfigError, EngineError, did_you_mean

if TYPE_CHECKING:
    from .pool import KvPool

TokenArray = NDArray[np.uint32]

DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
CHUNKINGS = ("off", "canonical")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What of a model decides the meaning and the size of a KV block. Equal fingerprints may exchange blocks."""

    name: str
    layer_count: int
    kv_head_count: int
    head_dim: int
    dtype: str  # a key of DTYPE_BYTES: of the weights, the pool and the wire
    context_tokens: int
    vocabulary_count: int
    end_token_ids: tuple[int, ...]
    fingerprint: str  # hash of the configuration and of every weight, in this dtype

    def block_bytes(self, block_tokens: int) -> int:
        """Bytes of the keys and values of one block in all layers."""
        return self.layer_count * self.layer_block_bytes(block_tokens)

    def layer_block_bytes(self, block_tokens: int) -> int:
        """Bytes of the keys and values of one block in one layer."""
        return 2 * self.kv_head_count * self.head_dim * block_tokens * DTYPE_BYTES[self.dtype]


class Tokenizer(Protocol):
    """Text to token ids and back. Segments are encoded one by one, so no special token is ever added."""

    @property
    def version(self) -> str:
        """Equal versions encode every text alike; goes into the block hash namespace."""

    @property
    def vocabulary_count(self) -> int:
        """One more than the largest id that `encode` gives."""

    def encode(self, text: str) -> TokenArray: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillResult:
    """`elapsed_us` is computing, `merge_us` copying reused blocks for attention; the call took their sum."""

    first_token: int | None  # None when the stretch ends before the prompt does
    elapsed_us: int
    merge_us: int
    logit_fingerprint: tuple[float, ...]  # the 8 largest logits at the last position, largest first; else empty
    attention: tuple[float, ...] = ()  # mass on each block up to the end of the stretch, where it is reported


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeResult:
    """The tokens after the first one; ends with an end token if one came, at most `token_count` long."""

    tokens: tuple[int, ...]
    elapsed_us: int  # the whole call


class Engine(Protocol):
    """One model on one device with its pool. Not for use by two threads at once."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def pool(self) -> KvPool: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def prefill(self, tokens: TokenArray, start_token: int, end_token: int, slots: Sequence[int]) -> PrefillResult:
        """The keys and values of positions [start_token, end_token) are in the pool; those before are read from it.

        `tokens` is the whole prompt and `slots[i]` the pool slot of block i of the sequence. Raises EngineError,
        before anything is written, if stretch, tokens or slots do not fit the prompt, the context or the pool.
        """

    def decode(self, first_token: int, start_position: int, token_count: int, slots: Sequence[int]) -> DecodeResult:
        """Up to `token_count` greedy tokens follow `first_token`, which stands at `start_position`.

        All positions before are read from the pool, the new ones are written to it. Stops after an end token.
        """

    def reset(self) -> None:
        """The pool is all zeros; nothing of earlier requests is left."""


class EngineSpec(Protocol):
    """A frozen description of an engine; only `load` imports and reads anything heavy."""

    def open_tokenizer(self) -> Tokenizer:
        """The tokenizer alone, for ranks that compute nothing. Raises EngineError if it cannot be had."""

    def kv_token_bytes(self) -> int | None:
        """Bytes of keys and values of one token, told by the configuration alone; None where only the model tells.
        Raises EngineError if there is no model where the configuration says."""

    def load(self, local_rank: int) -> Engine:
        """The engine on the device of this rank (counted within its host). Raises ConfigError or EngineError."""


def check_choice(field: str, given: str, choices: Sequence[str]) -> None:
    """Nothing, or a ConfigError naming the field and the nearest choice."""
    if given not in choices:
        raise ConfigError(f"`{field}` is `{given}`{did_you_mean(given, choices)}")


def chunk_ends(start_token: int, end_token: int, chunk_tokens: int | None) -> tuple[int, ...]:
    """Where each forward pass over [start_token, end_token) ends: at every multiple of `chunk_tokens`, and at the end.

    The cuts do not depend on the start, so the passes after a reused prefix of whole chunks are the very passes
    of a cold prefill. None means one pass.
    """
    if chunk_tokens is None:
        return (end_token,)
    first = (start_token // chunk_tokens + 1) * chunk_tokens
    return (*range(first, end_token, chunk_tokens), end_token)


def check_stretch(
    spec: ModelSpec, pool: KvPool, *, start: int, end: int, sequence_tokens: int, slots: Sequence[int]
) -> None:
    """Nothing, or an EngineError: [start, end) must lie in the sequence, the context, the pool and the slots given."""
    if not 0 <= start < end <= sequence_tokens:
        raise EngineError(
            f"`{spec.name}`: stretch [{start}, {end}) is empty or outside the {sequence_tokens} tokens given"
        )
    if sequence_tokens > spec.context_tokens:
        raise EngineError(
            f"`{spec.name}`: {sequence_tokens} tokens exceed its context of {spec.context_tokens}; "
            "shorten the prompt or the output"
        )
    if pool.block_count * pool.block_tokens < end:
        raise EngineError(
            f"`{spec.name}`: {end} tokens exceed the pool of {pool.block_count} blocks of {pool.block_tokens} tokens; "
            f"raise `pool_bytes` to {-(-end // pool.block_tokens) * pool.block_bytes} or more"
        )
    if len(slots) * pool.block_tokens < end:
        raise EngineError(
            f"`{spec.name}`: {len(slots)} slots of {pool.block_tokens} tokens cannot hold {end} tokens; "
            "give one slot per block"
        )
