"""NVIDIA Dynamo's KvRouter without its servers: files for discovery, workers that exist but serve nothing.

    python -m benchmarks.kvrouter FOLDER NODES      (by `benchmarks.decision`: the workers, in a process of their own)

Its index is the approximate one, which learns from its own choices: every prompt that fills the state is asked once and
noted on the worker chosen. So it holds each prompt on one node, which is less than the other contenders hold.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .index_state import BLOCK_TOKENS, Query, State, tokens_of

ENDPOINT, MODEL = "bench.backend.generate", "bench"
START_S = 120


def runtime(loop: Any) -> Any:
    from dynamo._core import DistributedRuntime  # type: ignore[import-not-found]

    return DistributedRuntime(loop, "file", "tcp", event_plane="zmq")


class KvRouterPeer:
    """`lookup` is `KvRouter.best_worker` of a list of token ids: hash, lookup, cost of every worker, choice."""

    name = "dynamo KvRouter.best_worker"
    note = "whole decision; also tracks load, and crosses asyncio; approximate index, one holder per prompt"

    def __init__(self, state: State) -> None:
        os.environ.setdefault("DYN_LOG", "error")
        from dynamo._core import KvRouter, KvRouterConfig

        self._folder = tempfile.TemporaryDirectory()
        os.environ["DYN_FILE_KV"] = self._folder.name
        command = [sys.executable, "-m", "benchmarks.kvrouter", self._folder.name, str(state.node_count)]
        self._workers = subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=subprocess.DEVNULL)
        self._loop = asyncio.new_event_loop()

        async def start() -> None:
            self._endpoint = runtime(self._loop).endpoint(ENDPOINT)
            client = await self._endpoint.client()
            while len(client.instance_ids()) < state.node_count:
                assert self._workers.poll() is None, "the workers have ended"
                await asyncio.sleep(0.1)
            self._router = KvRouter(
                self._endpoint, BLOCK_TOKENS, KvRouterConfig(use_kv_events=False, router_ttl_secs=3600)
            )
            while len((await self._router.get_overlap_scores(list(range(64))))["workers"]) < state.node_count:
                await asyncio.sleep(0.1)

        self._loop.run_until_complete(asyncio.wait_for(start(), START_S))

    def fill(self, state: State) -> None:
        """Every prompt is held somewhere."""

        async def ask() -> None:
            for prompt in state.prompts:
                await self._router.best_worker(tokens_of(prompt).tolist(), update_indexer=True)

        self._loop.run_until_complete(ask())

    def query(self, query: Query) -> Any:
        return query.tokens.tolist()

    def lookup(self, given: Any) -> Any:
        async def ask() -> Any:
            return await self._router.best_worker(given)

        return self._loop.run_until_complete(ask())

    def close(self) -> None:
        """The workers are gone."""
        self._workers.terminate()
        self._workers.wait()
        self._folder.cleanup()


async def serve(node_count: int) -> None:
    """So many workers that are known to the router and never get a request."""
    from dynamo._core import ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model

    async def handler(request: Any, context: Any = None) -> Any:
        yield {}

    serving = []
    for _ in range(node_count):
        endpoint, config = runtime(asyncio.get_running_loop()).endpoint(ENDPOINT), ModelRuntimeConfig()
        config.total_kv_blocks, config.max_num_batched_tokens = 10_000_000, 8192
        await register_model(
            ModelInput.Tokens, ModelType.Chat, endpoint, MODEL, MODEL, worker_type=WorkerType.Aggregated,
            kv_cache_block_size=BLOCK_TOKENS, runtime_config=config, skip_model_assets=True,
        )  # fmt: skip
        serving.append(asyncio.ensure_future(endpoint.serve_endpoint(handler)))
    await asyncio.gather(*serving)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    os.environ["DYN_FILE_KV"] = sys.argv[1]
    asyncio.run(serve(int(sys.argv[2])))
