"""Prefill and greedy decode of one transformers model over a `KvPool`, one sequence at a time."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, final

import blake3
import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from kvshare_research.core.errors import EngineError

from .base import (
    DecodeResult,
    Engine,
    ModelSpec,
    PrefillResult,
    TokenArray,
    Tokenizer,
    check_stretch,
    chunk_ends,
)
from .linear import use_onednn
from .paged import ATTENTION_NAME, Workspace, paged_cache, watching
from .pool import KvPool

FINGERPRINT_LOGITS = 8


@final
class TorchEngine(Engine):
    """See `Engine`. `network` is in `dtype` on `device`; every layer must cache plain keys and values."""

    def __init__(
        self,
        *,
        name: str,
        network: Any,
        tokenizer: Tokenizer,
        dtype: str,
        device: str,
        threads: int,
        block_tokens: int,
        pool_bytes: int,
        chunk_tokens: int | None,
        attention_rows: int = 0,
    ) -> None:
        if tokenizer.vocabulary_count > network.get_input_embeddings().num_embeddings:
            raise EngineError(
                f"`{name}`: the tokenizer has {tokenizer.vocabulary_count} tokens, the model only "
                f"{network.get_input_embeddings().num_embeddings}; they do not belong together"
            )
        if device == "cpu" and network.config._attn_implementation == "sdpa" and network._supports_attention_backend:
            network.set_attn_implementation(ATTENTION_NAME)
        elif attention_rows:
            raise EngineError(f"`{name}` brings its own attention, which reports none; use attention_rows=0")
        if device == "cpu":
            use_onednn(network)
        self._network = network
        self._device = device
        self._threads = threads
        self._chunk_tokens = chunk_tokens
        self._attention_rows = attention_rows
        names = inspect.signature(network.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"  # renamed in transformers 5.24
        self._fixed: dict[str, Any] = {"use_cache": True}
        if "logits_to_keep" in names:
            self._fixed["logits_to_keep"] = 1
        self._spec = self._probe(name, dtype)
        self._tokenizer = tokenizer
        self._pool = KvPool(self._spec, block_tokens=block_tokens, pool_bytes=pool_bytes, device=device)
        self._workspace = Workspace(self._pool)

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def pool(self) -> KvPool:
        return self._pool

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def reset(self) -> None:
        self._pool.clear()
        self._workspace = Workspace(self._pool)

    @torch.inference_mode()
    def prefill(self, tokens: TokenArray, start_token: int, end_token: int, slots: Sequence[int]) -> PrefillResult:
        check_stretch(
            self._spec, self._pool, start=start_token, end=end_token, sequence_tokens=len(tokens), slots=slots
        )
        self._check_token(int(tokens.max()))
        torch.set_num_threads(self._threads)  # holds per calling thread
        begun = time.perf_counter_ns()
        index = self._open_sequence(slots, start_token, end_token)
        gathered = time.perf_counter_ns()
        ids = torch.from_numpy(tokens[start_token:end_token].astype("int64")).to(self._device)
        cache = paged_cache(self._workspace, start_token)
        logits = torch.empty(0)
        with watching(self._attention_rows, end_token) as seen:
            for start, end in pairwise((start_token, *chunk_ends(start_token, end_token, self._chunk_tokens))):
                logits = self._forward(ids[start - start_token : end - start_token], cache)
        self._store(index, start_token, end_token)
        first_token: int | None = None
        top_logits: tuple[float, ...] = ()
        if end_token == len(tokens):
            first_token = int(logits.argmax())
            top_logits = tuple(logits.topk(min(FINGERPRINT_LOGITS, len(logits))).values.tolist())
        self._wait()
        return PrefillResult(
            first_token=first_token,
            elapsed_us=(time.perf_counter_ns() - gathered) // 1000,
            merge_us=(gathered - begun) // 1000,
            logit_fingerprint=top_logits,
            attention=() if seen is None else seen.by_block(self._pool.block_tokens),
        )

    @torch.inference_mode()
    def decode(self, first_token: int, start_position: int, token_count: int, slots: Sequence[int]) -> DecodeResult:
        # The last token is returned, not fed back, so it gets no keys and values.
        end_position = start_position + token_count
        if token_count < 1 or first_token in self._spec.end_token_ids:
            return DecodeResult(tokens=(), elapsed_us=0)
        check_stretch(
            self._spec, self._pool, start=start_position, end=end_position, sequence_tokens=end_position, slots=slots
        )
        self._check_token(first_token)
        torch.set_num_threads(self._threads)
        begun = time.perf_counter_ns()
        index = self._open_sequence(slots, start_position, end_position)
        cache = paged_cache(self._workspace, start_position)
        produced: list[int] = []
        token = torch.tensor([first_token], device=self._device)
        while len(produced) < token_count:
            token = self._forward(token, cache).argmax().reshape(1)
            produced.append(int(token))
            if produced[-1] in self._spec.end_token_ids:
                break
        self._store(index, start_position, start_position + len(produced))
        self._wait()
        return DecodeResult(tokens=tuple(produced), elapsed_us=(time.perf_counter_ns() - begun) // 1000)

    def _check_token(self, token: int) -> None:
        if not 0 <= token < self._spec.vocabulary_count:
            raise EngineError(
                f"`{self._spec.name}`: token {token} is outside its vocabulary of {self._spec.vocabulary_count}"
            )

    def _open_sequence(self, slots: Sequence[int], start: int, end: int) -> torch.Tensor:
        """The workspace holds the positions before `start` and has room up to `end`; returns the slots as an index."""
        block_tokens = self._pool.block_tokens
        block_count = -(-end // block_tokens)
        index = self._pool.slot_index(slots[:block_count])
        self._workspace.reserve(block_count)
        self._workspace.gather(index[: -(-start // block_tokens)])
        self._wait()
        return index

    def _store(self, index: torch.Tensor, start: int, end: int) -> None:
        block_tokens = self._pool.block_tokens
        first = start // block_tokens
        self._workspace.scatter(index[first : -(-end // block_tokens)], first, end)

    def _forward(self, ids: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Logits after the last of `ids`; their keys and values are appended to the cache."""
        output = self._network(input_ids=ids[None], **{self._cache_argument: cache}, **self._fixed)
        logits: torch.Tensor = output.logits[0, -1]
        return logits

    def _wait(self) -> None:
        if self._device != "cpu":
            torch.cuda.synchronize(self._device)

    @torch.inference_mode()
    def _probe(self, name: str, dtype: str) -> ModelSpec:
        """What the model really caches, seen by running one token; raises EngineError if a pool cannot hold it."""
        config = self._network.config.get_text_config()
        probe = DynamicCache(config=config)
        others = sorted({type(layer).__name__ for layer in probe.layers if type(layer) is not DynamicLayer})
        if others:
            raise EngineError(f"`{name}` has layers of kind {', '.join(others)}; only full attention can share blocks")
        self._forward(torch.zeros(1, dtype=torch.int64, device=self._device), probe)
        layers: list[Any] = probe.layers
        shapes = {tuple(t.shape) for layer in layers if layer.is_initialized for t in (layer.keys, layer.values)}
        if len(shapes) != 1 or not all(layer.is_initialized for layer in layers):
            raise EngineError(
                f"`{name}` does not cache keys and values of one shape in every layer; it cannot use a block pool"
            )
        ((_, kv_head_count, _, head_dim),) = shapes
        end = self._network.generation_config.eos_token_id
        return ModelSpec(
            name=name,
            layer_count=len(layers),
            kv_head_count=kv_head_count,
            head_dim=head_dim,
            dtype=dtype,
            context_tokens=int(config.max_position_embeddings),
            vocabulary_count=self._network.get_input_embeddings().num_embeddings,
            end_token_ids=() if end is None else (int(end),) if isinstance(end, int) else tuple(map(int, end)),
            fingerprint=fingerprint(self._network),
        )


def fingerprint(network: Any) -> str:
    """A hash of the configuration and every weight and buffer, so that only equal models exchange blocks."""
    hasher = blake3.blake3()
    ignored = ("_name_or_path", "transformers_version", "_attn_implementation")
    config = {key: value for key, value in network.config.to_dict().items() if key not in ignored}
    hasher.update(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(network.state_dict().items()):
        hasher.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        hasher.update(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy())
    return hasher.hexdigest()[:32]
