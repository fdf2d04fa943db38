"""How m blocks are shared among sources, and where computing the front meets fetching the back.

A source delivers its n-th block at setup + n * per_block (picoseconds, per_block >= 1). The split in whole blocks is
exact: no other finishes earlier. The reason fits in one line: the counts satisfy ``finish(i) <= next_finish(j)`` for
all sources i and j, and any other split makes some j deliver one block more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .costing import PrefillCoefficients, fetch_ps, prefill_ps


class Ints(Protocol):
    """A list or an integer array, as read."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> int: ...


class WritableInts(Ints, Protocol):
    """A list or an integer array, as written."""

    def __setitem__(self, index: int, value: int, /) -> None: ...


def finish_ps(source_setup_ps: int, per_block_ps: int, block_count: int) -> int:
    """When a source has delivered `block_count` blocks; an unused source is done at 0."""
    if block_count <= 0:
        return 0
    return source_setup_ps + block_count * per_block_ps


def next_finish_ps(source_setup_ps: int, per_block_ps: int, block_count: int) -> int:
    """When a source would have delivered one block more than `block_count`."""
    return source_setup_ps + (block_count + 1) * per_block_ps


def delivered_blocks(source_setup_ps: int, per_block_ps: int, time_ps: int) -> int:
    """Whole blocks that a source can have delivered by `time_ps`."""
    if time_ps <= source_setup_ps:
        return 0
    return (time_ps - source_setup_ps) // per_block_ps


def fill(
    block_count: int,
    setups_ps: Ints,
    per_blocks_ps: Ints,
    counts: WritableInts,
) -> int:
    """`counts` holds the blocks of each source, summing to `block_count`; returns when the last of them arrives.

    The water level is raised by bisection while no more than the total fits under it, until at most one block per
    source is missing; those go one by one to whoever would finish first, the lower index on a tie.
    """
    source_count = len(setups_ps)
    low_ps = 0
    high_ps = next_finish_ps(setups_ps[0], per_blocks_ps[0], block_count)
    given = 0
    while high_ps - low_ps > 1 and given + source_count < block_count:
        middle_ps = (low_ps + high_ps) // 2
        under = 0
        for i in range(source_count):
            under += delivered_blocks(setups_ps[i], per_blocks_ps[i], middle_ps)
        if under > block_count:
            high_ps = middle_ps
        else:
            low_ps = middle_ps
            given = under
    for i in range(source_count):
        counts[i] = delivered_blocks(setups_ps[i], per_blocks_ps[i], low_ps)
    while given < block_count:
        first = 0
        for i in range(1, source_count):
            if next_finish_ps(setups_ps[i], per_blocks_ps[i], counts[i]) < next_finish_ps(
                setups_ps[first], per_blocks_ps[first], counts[first]
            ):
                first = i
        counts[first] += 1
        given += 1
    last_ps = 0
    for i in range(source_count):
        last_ps = max(last_ps, finish_ps(setups_ps[i], per_blocks_ps[i], counts[i]))
    return last_ps


def split(block_count: int, sources: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], int]:
    """Blocks of each (setup_ps, per_block_ps) source so that the last arrives earliest, and when; changes nothing."""
    counts = [0] * len(sources)
    last_ps = fill(block_count, [s for s, _ in sources], [b for _, b in sources], counts)
    return tuple(counts), last_ps


def capped_ps(last_ps: int, first_setup_ps: int, block_count: int, receiver_per_block_ps: int) -> int:
    """A fetch from many sources is no faster than the receiver's own link takes it in, from the first arrival on."""
    return max(last_ps, first_setup_ps + block_count * receiver_per_block_ps)


def meet_ps(
    coefficients: PrefillCoefficients,
    cached_tokens: int,
    block_tokens: int,
    block_count: int,
    source_setup_ps: int,
    per_block_ps: int,
    front_blocks: int,
) -> int:
    """When both are done: the first `front_blocks` computed, the other blocks fetched, side by side."""
    computed_ps = prefill_ps(coefficients, front_blocks * block_tokens, cached_tokens)
    fetched_ps = fetch_ps(source_setup_ps, block_count - front_blocks, per_block_ps)
    return max(computed_ps, fetched_ps)


def front_of(
    coefficients: PrefillCoefficients,
    cached_tokens: int,
    block_tokens: int,
    block_count: int,
    source_setup_ps: int,
    per_block_ps: int,
) -> int:
    """The front that makes `meet_ps` least, in [0, block_count]; on a tie the longer one, which moves fewer bytes.

    Computing grows with the front and fetching shrinks, so the least lies where they cross or one block before
    (Cake, arXiv 2410.03065: compute from the front, load from the back, until the two meet).
    """
    low = 0
    high = block_count
    while low < high:
        middle = (low + high) // 2
        computed_ps = prefill_ps(coefficients, middle * block_tokens, cached_tokens)
        fetched_ps = fetch_ps(source_setup_ps, block_count - middle, per_block_ps)
        if computed_ps >= fetched_ps:
            high = middle
        else:
            low = middle + 1
    if low == 0:
        return 0
    at_crossing_ps = meet_ps(coefficients, cached_tokens, block_tokens, block_count, source_setup_ps, per_block_ps, low)
    one_before_ps = meet_ps(
        coefficients, cached_tokens, block_tokens, block_count, source_setup_ps, per_block_ps, low - 1
    )
    return low if at_crossing_ps <= one_before_ps else low - 1
