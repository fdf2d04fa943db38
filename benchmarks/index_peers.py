"""Other peers of the index. None is a global index from Python, so two are asked one node after another.

vLLM's block pool and SGLang's tree are what one engine keeps; LMCache's directory is global and tells holders of each
block, from which the runs are worked out here.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import stubs
from .index_contenders import Flat
from .index_state import BLOCK_TOKENS, Event, Query, State, tokens_of


def names(keys: NDArray[np.uint64]) -> list[bytes]:
    """32 bytes per block, as these peers take them."""
    return [row.tobytes() * 2 for row in keys]


class VllmPools:
    name = "vLLM BlockPool, one per node"
    note = "what an engine keeps; all nodes are asked in turn; its allocation of blocks is not timed"

    def __init__(self, state: State) -> None:
        pool, self._utils, _ = stubs.vllm()
        counts = np.zeros(state.node_count, np.int64)
        for e in state.stored:
            counts[e.node] += e.end - e.start
        self._pools = [pool.BlockPool(2 * int(n) + 16, True, BLOCK_TOKENS) for n in counts]

    def events(self, state: State, events: Sequence[Event], removal: bool) -> list[Any]:
        with_group = self._utils.make_block_hash_with_group_id
        given = []
        for e in events:
            keys = [with_group(name, 0) for name in names(state.keys[e.prompt][e.start : e.end])]
            blocks = [] if removal else self._pools[e.node].get_new_blocks(len(keys))
            given.append((e.node, keys[::-1] if removal else keys, blocks))
        return given

    def store(self, event: Any) -> None:
        node, keys, blocks = event
        insert = self._pools[node].cached_block_hash_to_block.insert
        for key, block in zip(keys, blocks, strict=True):
            block.set_block_hash(key, BLOCK_TOKENS)
            insert(key, block)

    def remove(self, event: Any) -> None:
        node, keys, _ = event
        held = self._pools[node].cached_block_hash_to_block
        for key in keys:
            held.pop(key, held.get_one_block(key).block_id)

    def finish(self) -> None: ...

    def query(self, query: Query) -> Any:
        return names(query.keys)

    def lookup(self, given: Any) -> Any:
        depths = np.zeros(len(self._pools), np.int32)
        for node, pool in enumerate(self._pools):
            cached, depth = pool.get_cached_block, 0
            for name in given:
                if cached(name, [0]) is None:
                    break
                depth += 1
            depths[node] = depth
        return depths

    def depths(self, answer: Any, query: Query) -> NDArray[np.int32]:
        return answer  # type: ignore[no-any-return]

    def size_bytes(self) -> int | None:
        return None


class SglangTrees:
    name = "SGLang tree (Rust), one per node"
    note = "what an engine keeps; tokens in; all nodes are asked in turn; it cannot be told to remove a block"

    def __init__(self, state: State) -> None:
        import torch

        self._torch, self._tree = torch, stubs.sglang_tree()
        params = self._tree.TreeCoreInitParamsBinding(page_size=BLOCK_TOKENS, device="cpu")
        self._trees = [self._tree.RustUnifiedTreeCoreBinding(params, [0]) for _ in range(state.node_count)]

    def events(self, state: State, events: Sequence[Event], removal: bool) -> list[Any]:
        if removal:
            return []
        return [(e.node, array("q", tokens_of(state.prompts[e.prompt][: e.end]).tolist())) for e in events]

    def store(self, event: Any) -> None:
        node, tokens = event
        self._trees[node].insert(self._tree.InsertParamsBinding(tokens, self._torch.arange(len(tokens))))

    def remove(self, event: Any) -> None:
        raise NotImplementedError("it cannot be told to remove a block")

    def finish(self) -> None: ...

    def query(self, query: Query) -> Any:
        return self._tree.MatchParamsBinding(array("q", query.tokens.tolist()))

    def lookup(self, given: Any) -> Any:
        return [tree.match_prefix(given).device_prefix_len for tree in self._trees]

    def depths(self, answer: Any, query: Query) -> NDArray[np.int32]:
        return np.array(answer, np.int32) // BLOCK_TOKENS

    def size_bytes(self) -> int | None:
        return None


class LmcacheDirectory:
    name = "LMCache KeyDirectory"
    note = "global; tells the holders of each block, the runs are worked out here"

    def __init__(self, state: State) -> None:
        from lmcache.v1.distributed.api import ObjectKey, Tier  # type: ignore[import-not-found]
        from lmcache.v1.mp_coordinator import api  # type: ignore[import-not-found]
        from lmcache.v1.mp_coordinator.views.key_directory import KeyDirectory  # type: ignore[import-not-found]

        self._key, self._tier, self._api, self._directory = ObjectKey, Tier.L1, api, KeyDirectory()
        self._sent, self._node_count = [0] * state.node_count, state.node_count

    def _keys(self, keys: NDArray[np.uint64]) -> list[Any]:
        return [self._key(chunk_hash=row.tobytes(), model_name="m", kv_rank=0) for row in keys]

    def events(self, state: State, events: Sequence[Event], removal: bool) -> list[Any]:
        kind = self._api.CacheEventType.DELETE if removal else self._api.CacheEventType.STORE
        given = []
        for node, _, keys in Flat.events(self, state, events, True):  # type: ignore[arg-type]
            self._sent[node] += 1
            entries = [
                self._api.CacheEventEntry(key=key.to_encoded_object_key(), size_bytes=0 if removal else 1)
                for key in self._keys(keys)
            ]
            given.append(
                self._api.CacheEventBatch(
                    instance_id=str(node), incarnation=0, seq=self._sent[node], event_type=kind, tier=self._tier,
                    backend="cpu", entries=entries,
                )
            )  # fmt: skip
        return given

    def store(self, event: Any) -> None:
        self._directory.consume(event)

    remove = store

    def finish(self) -> None: ...

    def query(self, query: Query) -> Any:
        return self._keys(query.keys)

    def lookup(self, given: Any) -> Any:
        alive: set[str] | None = None
        depths: dict[str, int] = {}
        depth = 0
        for placements in self._directory.lookup(given):
            here = {p.instance_id for p in placements}
            here = here if alive is None else alive & here
            depths |= dict.fromkeys((alive or set()) - here, depth)
            alive = here
            if not alive:
                break
            depth += 1
        return depths | dict.fromkeys(alive or (), depth)

    def depths(self, answer: Any, query: Query) -> NDArray[np.int32]:
        return np.array([answer.get(str(node), 0) for node in range(self._node_count)], np.int32)

    def size_bytes(self) -> int | None:
        return None
