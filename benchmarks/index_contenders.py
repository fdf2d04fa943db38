"""What is compared: each contender turns a state into its own inputs (not timed), then stores, removes and looks up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.nouns import Chain, Match
from kvshare_research.index.flat import FlatIndex, FlatStore, keys_of
from kvshare_research.index.plain import PlainStore
from kvshare_research.index.reference import ReferenceStore

from .index_state import BLOCK_TOKENS, Event, Query, State, local_hashes, tokens_of


class Contender(Protocol):
    """`note` says what is timed that others do not do, or the other way round."""

    name: str
    note: str

    def events(self, state: State, events: Sequence[Event], removal: bool) -> list[Any]: ...
    def store(self, event: Any) -> None: ...
    def remove(self, event: Any) -> None: ...
    def finish(self) -> None:
        """All events are applied."""

    def query(self, query: Query) -> Any: ...
    def lookup(self, query: Any) -> Any: ...
    def depths(self, answer: Any, query: Query) -> NDArray[np.int32]: ...
    def size_bytes(self) -> int | None: ...


class Flat:
    """Ours, on arrays of hashes; the answer is an array of depths."""

    name, note = "flat", "hashes as an array, as the tokenizer and the hash kernel hand them on"

    def __init__(self, state: State) -> None:
        store = FlatIndex(compiled=True).new_store(state.node_count)
        assert isinstance(store, FlatStore)
        self.index = store
        self._depths = np.empty(store.column_count, np.int32)
        self.lookup: Callable[[Any], Any] = lambda keys: store.match_keys(keys, self._depths)

    def events(self, state: State, events: Sequence[Event], removal: bool) -> list[Any]:
        given = []
        for e in events:
            keys = state.keys[e.prompt]
            start = e.start - 1 if e.start and not removal else e.start
            part = keys[start : e.end]
            given.append((e.node, e.start > 0, np.ascontiguousarray(part[::-1]) if removal else part))
        return given

    def store(self, event: Any) -> None:
        node, has_parent, keys = event
        self.index.store_keys(node, 0, has_parent, keys)

    def remove(self, event: Any) -> None:
        self.index.remove_keys(event[0], 0, event[2])

    def finish(self) -> None: ...

    def query(self, query: Query) -> Any:
        return query.keys

    def depths(self, answer: Any, query: Query) -> NDArray[np.int32]:
        return np.array(answer[: len(query.depths)])

    def size_bytes(self) -> int | None:
        return self.index.size_bytes


class FlatFromList(Flat):
    name, note = "flat, list of bytes in", "hashes as a Python list of 16-byte strings"

    def __init__(self, state: State, index: FlatStore) -> None:
        self.index = index
        depths = np.empty(index.column_count, np.int32)
        self.lookup = lambda hashes: index.match_keys(keys_of(b"".join(hashes)), depths)

    def query(self, query: Query) -> Any:
        data = query.keys.tobytes()
        return [data[i : i + 16] for i in range(0, len(data), 16)]


class FlatFromInts(FlatFromList):
    name, note = "flat, list of ints in", "hashes as a list of 64-bit ints, two to a hash: the conversion is the cost"

    def __init__(self, state: State, index: FlatStore) -> None:
        self.index = index
        depths = np.empty(index.column_count, np.int32)
        self.lookup = lambda ints: index.match_keys(np.array(ints, np.uint64).reshape(-1, 2), depths)

    def query(self, query: Query) -> Any:
        return query.keys.reshape(-1).tolist()


class FlatMatch(FlatFromList):
    name, note = "flat, Match out", "the package's seam: Chain in, one Run object per holder out"

    def __init__(self, state: State, index: FlatStore | PlainStore | ReferenceStore) -> None:
        self.index = index  # type: ignore[assignment]
        self.lookup = index.match

    def query(self, query: Query) -> Any:
        return Chain(hashes=query.keys.tobytes(), scope_ends=((0, len(query.keys)),), block_tokens=BLOCK_TOKENS)

    def depths(self, answer: Match, query: Query) -> NDArray[np.int32]:
        depths = np.zeros(len(query.depths), np.int32)
        for run in answer.runs:
            depths[run.node] = run.block_count
        return depths


class Bytes(FlatMatch):
    """Stores that take 16-byte strings."""

    def events(self, state: State, events: Sequence[Event], removal: bool) -> list[Any]:
        given = []
        for node, has_parent, keys in Flat.events(self, state, events, removal):
            hashes = [row.tobytes() for row in keys]
            parent = hashes.pop(0) if has_parent and not removal else None
            given.append((node, parent, hashes))
        return given

    def store(self, event: Any) -> None:
        self.index.store(event[0], 0, event[1], event[2])

    def remove(self, event: Any) -> None:
        self.index.remove(event[0], 0, event[2])

    def size_bytes(self) -> int | None:
        return None


class Plain(Bytes):
    name, note = "plain", "no compiled code"

    def __init__(self, state: State) -> None:
        super().__init__(state, PlainStore(state.node_count))


class Reference(Bytes):
    name, note = "reference", "the specification"

    def __init__(self, state: State) -> None:
        super().__init__(state, ReferenceStore(state.node_count))


class DynamoTree:
    """NVIDIA Dynamo's RadixTree through its Python binding: JSON events and lists of ints in, a dict out."""

    name, note = "dynamo RadixTree", "includes a hop to its own thread, list conversion and a dict per answer"

    def __init__(self, state: State) -> None:
        os.environ.setdefault("DYN_LOG", "error")
        from dynamo._core import RadixTree  # type: ignore[import-not-found]

        self._tree = RadixTree()
        self._next_id = 0
        tree = self._tree
        self.lookup: Callable[[Any], Any] = lambda hashes: tree.find_matches(hashes).scores

    def events(self, state: State, events: Sequence[Event], removal: bool) -> list[Any]:
        from msgspec.json import encode

        given = []
        for e in events:
            chain = state.keys[e.prompt][:, 0]
            if removal:
                data: dict[str, Any] = {"removed": {"block_hashes": chain[e.start : e.end][::-1].tolist()}}
            else:
                local = local_hashes(state.prompts[e.prompt][e.start : e.end]).tolist()
                blocks = [
                    {"block_hash": c, "tokens_hash": h, "mm_extra_info": None}
                    for c, h in zip(chain[e.start : e.end].tolist(), local, strict=True)
                ]
                data = {"stored": {"parent_hash": int(chain[e.start - 1]) if e.start else None, "blocks": blocks}}
            self._next_id += 1
            given.append((e.node, encode({"event_id": self._next_id, "dp_rank": 0, "data": data})))
        return given

    def store(self, event: Any) -> None:
        self._tree.apply_event(*event)

    remove = store

    def finish(self) -> None:
        self._tree.find_matches([1])  # answers come in order, so what was sent before is applied

    def query(self, query: Query) -> Any:
        return local_hashes(query.blocks).tolist()

    def depths(self, answer: Any, query: Query) -> NDArray[np.int32]:
        depths = np.zeros(len(query.depths), np.int32)
        for (node, _), depth in answer.items():
            depths[node] = depth
        return depths

    def size_bytes(self) -> int | None:
        return None


class DynamoSelection:
    """NVIDIA Dynamo's SelectionService: engines' events over ZMQ in, the chosen worker out, from token ids."""

    name, note = "dynamo SelectionService.select", "whole decision; also tracks load and queues, and crosses asyncio"

    def __init__(self, state: State) -> None:
        os.environ.setdefault("DYN_LOG", "error")
        import zmq
        from dynamo._core import SelectionService

        self._loop, context = asyncio.new_event_loop(), zmq.Context.instance()
        self._sockets, self._sent = [], [0] * state.node_count

        async def start() -> None:
            self._service = SelectionService(indexer_threads=2)
            for node in range(state.node_count):
                socket = context.socket(zmq.PUB)
                socket.setsockopt(zmq.SNDHWM, 0)
                port = socket.bind_to_random_port("tcp://127.0.0.1")
                self._sockets.append(socket)
                worker = {
                    "worker_id": node,
                    "endpoint": f"http://127.0.0.1:{9000 + node}",
                    "kv_events_endpoint": f"tcp://127.0.0.1:{port}",
                    "block_size": BLOCK_TOKENS,
                    "max_num_batched_tokens": 8192,
                    "total_kv_blocks": 10_000_000,
                }
                await self._service.upsert_worker(worker)
            await asyncio.sleep(1.0)

        self._loop.run_until_complete(start())

    def lookup(self, given: Any) -> Any:
        async def select() -> Any:
            return await self._service.select(given)

        return self._loop.run_until_complete(select())

    def events(self, state: State, events: Sequence[Event], removal: bool) -> list[Any]:
        from msgspec.msgpack import encode

        given = []
        for e in events:
            chain = state.keys[e.prompt][:, 0]
            hashes = chain[e.start : e.end].tolist()
            if removal:
                body = ["BlockRemoved", hashes[::-1], "GPU"]
            else:
                tokens = tokens_of(state.prompts[e.prompt][e.start : e.end]).tolist()
                parent = int(chain[e.start - 1]) if e.start else None
                body = ["BlockStored", hashes, parent, tokens, BLOCK_TOKENS, None, "GPU"]
            given.append((e.node, encode([0.0, [body], None])))
        return given

    def store(self, event: Any) -> None:
        node, payload = event
        self._sockets[node].send_multipart([b"", self._sent[node].to_bytes(8, "big"), payload])
        self._sent[node] += 1

    remove = store

    def finish(self) -> None:
        """One more block on every node, asked for until all have it."""
        from msgspec.msgpack import encode

        tokens = tokens_of(np.array([1 << 50])).tolist()
        body = ["BlockStored", [1 << 50], None, tokens, BLOCK_TOKENS, None, "GPU"]
        for node in range(len(self._sockets)):
            self.store((node, encode([0.0, [body], None])))

        async def wait() -> None:
            while True:
                answer = await self._service.overlap_scores({"token_ids": tokens})
                if sum(w["device_blocks"] > 0 for w in answer["workers"]) == len(self._sockets):
                    return
                await asyncio.sleep(0.01)

        self._loop.run_until_complete(asyncio.wait_for(wait(), 300))

    def query(self, query: Query) -> Any:
        return {"token_ids": query.tokens.tolist()}

    def depths(self, answer: Any, query: Query) -> NDArray[np.int32]:
        raise NotImplementedError("it answers with a choice, not with depths")

    def size_bytes(self) -> int | None:
        return None
