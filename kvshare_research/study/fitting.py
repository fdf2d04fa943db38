"""What can never be served is refused before a model is loaded, as far as the configuration alone tells."""

from __future__ import annotations

from typing import Any

from kvshare_research.core.errors import ConfigError


def check_fits(engine: Any, workload: Any) -> None:
    """ConfigError where the block is as long as a prompt, or one request needs more than a worker's whole pool.

    Says nothing of workloads whose prompts are only known when they are read, nor of engines whose size is not known.
    """
    prompt, output = getattr(workload, "prompt_tokens", None), getattr(workload, "output_tokens_max", 0)
    if not isinstance(prompt, int):
        return
    block = int(engine.block_tokens)
    if block >= prompt:
        raise ConfigError(
            f"`engine.block_tokens` is `{block}`, expected less than `workload.prompt_tokens`, which is `{prompt}`: "
            "only whole blocks before the last token are shared"
        )
    token_bytes = engine.kv_token_bytes()
    if token_bytes is None:
        return
    needed, room = -(-(prompt + output) // block), int(engine.pool_bytes) // (token_bytes * block)
    if room < needed:
        raise ConfigError(
            f"`engine.pool_bytes` is `{engine.pool_bytes}`, room for {room} blocks of {block} tokens, and a request of "
            f"{prompt} + {output} tokens takes {needed}; expected {needed * token_bytes * block} or more"
        )
