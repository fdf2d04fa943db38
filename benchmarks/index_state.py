"""A made-up fleet for the index benchmark: tenants, prompts with shared openings, who holds what, queries, the truth.

A tenant has a system prompt of 128 blocks and 8 few-shot openings of 64; prompts add a tail of 8 to 8,400 blocks;
tenants and prompts are popular by Zipf's law, popular prompts are on many nodes, 3 in 10 copies are cut short.
Queries: half are held whole somewhere, four in ten in part, one in ten not at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvshare_research.index.hashing import ROOT_PARENT, chain_digests

BLOCK_TOKENS, SYSTEM, SHOT, SHOTS = 16, 128, 64, 8
KEY = np.arange(8, dtype=np.uint32).tobytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A node stores (or removes) blocks [start, end) of a prompt."""

    node: int
    prompt: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A prompt to look up: its block numbers, tokens and hashes, and the run length on every node."""

    blocks: NDArray[np.int64]
    tokens: NDArray[np.uint32]
    keys: NDArray[np.uint64]
    depths: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Prompts as block numbers and as chain hashes, the events that fill an index, and queries by length."""

    node_count: int
    block_count: int
    prompts: list[NDArray[np.int64]]
    keys: list[NDArray[np.uint64]]
    stored: list[Event]
    removed: list[Event]
    queries: dict[int, list[Query]]

    @property
    def copy_count(self) -> int:
        return sum(e.end - e.start for e in self.stored)


def local_hashes(blocks: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A 64-bit name for the content of each block, for peers that chain themselves."""
    x = blocks.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def tokens_of(blocks: NDArray[np.int64]) -> NDArray[np.uint32]:
    """16 token ids below 128,000 per block, the same for the same block."""
    numbers = blocks[:, None] * BLOCK_TOKENS + np.arange(BLOCK_TOKENS)
    return (local_hashes(numbers) % np.uint64(128_000)).astype(np.uint32).reshape(-1)


def keys_of_blocks(blocks: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The chain hashes of a prompt, as the package makes them."""
    found = chain_digests(KEY, ROOT_PARENT, tokens_of(blocks), BLOCK_TOKENS)
    return np.frombuffer(found.hashes, np.uint64).reshape(-1, 2)


def _prompts(rng: np.random.Generator, block_count: int) -> tuple[list[NDArray[np.int64]], int]:
    tenants = max(4, min(256, block_count // 12_500))
    opening = SYSTEM + SHOT
    first = 1 + np.arange(tenants) * (SYSTEM + SHOTS * SHOT)
    free = int(first[-1]) + SYSTEM + SHOTS * SHOT
    share = 1 / np.arange(1, tenants + 1) ** 0.8
    share /= share.sum()
    prompts: list[NDArray[np.int64]] = []

    def add(length: int) -> None:
        nonlocal free
        at, shot = int(first[rng.choice(tenants, p=share)]), int(rng.integers(SHOTS))
        shots = at + SYSTEM + shot * SHOT
        tail = np.arange(free, free + length - opening)
        free += len(tail)
        prompts.append(np.concatenate([np.arange(at, at + SYSTEM), np.arange(shots, shots + SHOT), tail]))

    for _ in range(8):
        add(8192 + int(rng.integers(256)))
    for _ in range(24):
        add(1024 + int(rng.integers(512)))
    while free < block_count:
        kind = rng.random()
        if kind < 0.7:
            tail = rng.integers(8, 64)
        elif kind < 0.9:
            tail = rng.integers(128, 512)
        else:
            tail = rng.integers(832, 1400) if kind < 0.985 else rng.integers(8000, 8600)
        add(opening + int(min(tail, max(1, block_count - free))))
    return prompts, free


def _placed(
    rng: np.random.Generator, prompts: list[NDArray[np.int64]], rank: NDArray[np.int64], held: NDArray[np.bool_]
) -> list[Event]:
    """Fills `held` and says how, one stored event for each copy that adds something, in random order."""
    nodes = held.shape[0]
    pairs = []
    for s, prompt in enumerate(prompts):
        count = min(nodes, 1 + int(nodes * 0.75 * (rank[s] + 1) ** -0.6) + int(rng.poisson(1.0)))
        for n in rng.choice(nodes, size=count, replace=False):
            whole = rng.random() < 0.7
            pairs.append((int(n), s, len(prompt) if whole else int(rng.integers(1, len(prompt) + 1))))
    events = []
    for at in rng.permutation(len(pairs)):
        n, s, end = pairs[at]
        have = held[n, prompts[s][:end]]
        start = end if have.all() else int(np.argmin(have))
        if start < end:
            held[n, prompts[s][start:end]] = True
            events.append(Event(node=n, prompt=s, start=start, end=end))
    return events


def _query(blocks: NDArray[np.int64], held: NDArray[np.bool_]) -> Query:
    known = blocks < held.shape[1]
    length = len(blocks) if known.all() else int(np.argmin(known))
    runs = np.zeros(held.shape[0], np.int32)
    if length:
        have = held[:, blocks[:length]]
        runs[:] = np.where(have.all(1), length, np.argmin(have, 1))
    return Query(blocks=blocks, tokens=tokens_of(blocks), keys=keys_of_blocks(blocks), depths=runs)


def made(block_count: int, node_count: int, lengths: list[int], query_count: int, seed: int) -> State:
    """The fleet of that size; equal arguments give equal fleets."""
    rng = np.random.default_rng(seed)
    prompts, free = _prompts(rng, block_count)
    rank = rng.permutation(len(prompts))
    held = np.zeros((node_count, free), np.bool_)
    stored = _placed(rng, prompts, rank, held)
    popular = 1 / (rank + 1) ** 0.9
    sizes = np.array([len(p) for p in prompts])
    fresh = 1 << 40
    queries: dict[int, list[Query]] = {}
    for length in lengths:
        long = np.flatnonzero(sizes >= length)
        some = np.flatnonzero(sizes >= min(length, SYSTEM + SHOT + 1))
        queries[length] = []
        for i in range(query_count if length < 8192 else max(40, query_count // 3)):
            blocks = np.arange(fresh, fresh + length)
            fresh += length
            if i % 10 < 5:
                s = rng.choice(long, p=popular[long] / popular[long].sum())
                blocks = prompts[s][:length]
            elif i % 10 < 9:
                s = rng.choice(some, p=popular[some] / popular[some].sum())
                end = int(rng.integers(1, min(length, sizes[s]) + 1))
                blocks[:end] = prompts[s][:end]
            queries[length].append(_query(blocks, held))
    opening = SYSTEM + SHOT  # removals take tails that nobody shares
    tails = [stored[i] for i in rng.permutation(len(stored))[: max(1, len(stored) // 10)]]
    removed = [
        Event(node=e.node, prompt=e.prompt, start=max(opening, e.start), end=e.end) for e in tails if e.end > opening
    ]
    return State(
        node_count=node_count,
        block_count=free,
        prompts=prompts,
        keys=[keys_of_blocks(p) for p in prompts],
        stored=stored,
        removed=removed,
        queries=queries,
    )
