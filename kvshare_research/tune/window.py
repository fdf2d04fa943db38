"""A window of requests as arrays: when they arrive, how long they are, and which stretches of prefix they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Chain, Request

Arrival = tuple[Request, Chain]
Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

STEP_ROWS = 4  # widths are rounded up, so that a few compiled versions serve all windows


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """`paths[i]` are the shared stretches at the start of prompt i, first one first, `path_tokens` their lengths.

    A stretch is a longest run of blocks that the same prompts pass; those that only one prompt passes can never be a
    hit and are left out. `stretch_count` itself stands where a path has ended. Times are ms since the first arrival.
    """

    arrival_ms: Floats
    tokens: Floats
    output_tokens: Floats
    ingress: Ints
    paths: Ints
    path_tokens: Floats
    reusable_tokens: Floats  # whole blocks, without the last token
    stretch_count: int

    def __len__(self) -> int:
        return len(self.arrival_ms)


def window_of(arrivals: Sequence[Arrival]) -> Window:
    """The arrays of these requests, in order of arrival; ConfigError if there is none."""
    if not arrivals:
        raise ConfigError("a window has no requests, expected at least one; shorten `tune.window_requests`")
    passes: Counter[bytes] = Counter()
    hashes = [chain.block_hashes(0, chain.block_count) for _, chain in arrivals]
    for row in hashes:
        passes.update(row)
    numbers: dict[bytes, int] = {}
    paths: list[list[tuple[int, int]]] = []
    for row, (_, chain) in zip(hashes, arrivals, strict=True):
        path: list[tuple[int, int]] = []
        before = 0
        for block in row:
            count = passes[block]
            if count < 2:
                break
            if count == before:
                path[-1] = (path[-1][0], path[-1][1] + chain.block_tokens)
            else:
                path.append((numbers.setdefault(block, len(numbers)), chain.block_tokens))
            before = count
        paths.append(path)
    width = -(-max(1, *(len(p) for p in paths)) // STEP_ROWS) * STEP_ROWS
    names = np.full((len(paths), width), len(numbers), np.int32)
    lengths = np.zeros((len(paths), width), np.float32)
    for i, path in enumerate(paths):
        for j, (name, tokens) in enumerate(path):
            names[i, j], lengths[i, j] = name, tokens
    requests = [request for request, _ in arrivals]
    start_us = requests[0].arrival_us
    reusable = [min((r.token_count - 1) // c.block_tokens, c.block_count) * c.block_tokens for r, c in arrivals]
    return Window(
        arrival_ms=np.array([(r.arrival_us - start_us) / 1e3 for r in requests], np.float32),
        tokens=np.array([r.token_count for r in requests], np.float32),
        output_tokens=np.array([r.output_tokens_max for r in requests], np.float32),
        ingress=np.array([r.ingress for r in requests], np.int32),
        paths=names,
        path_tokens=lengths,
        reusable_tokens=np.array(reusable, np.float32),
        stretch_count=len(numbers),
    )
