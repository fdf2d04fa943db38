"""Compiled kernels of the flat index: one hash table for all nodes and tiers, in flat arrays, without allocation.

A *column* is a (tier, node) pair, one bit of a mask of W words. A block has an id; row id of `rows` is
`key (2 words) | closed mask (W) | raw mask (W)`, row id of `links` is `parent, first child, next and previous sibling`.
The raw mask says who holds the block, the closed mask who holds it and all its ancestors:

    closed(block) = raw(block) & closed(parent(block)),        closed(root) = all ones

Closed masks only shrink along a chain, so that a lookup may gallop and bisect; that is exact only because every
change restores the equation at once (`_settle`), whatever the order of stores and removals.

Ids start at 1; id 0 stands for "no block" and, as a parent, for "before the first block". The tables are
in `table.py`.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from .table import (
    CHILD,
    CONTRADICTIONS,
    DROPPED,
    ENTRIES,
    EXTRAS,
    FREE,
    FREE_ID,
    HAND,
    KEY_WORDS,
    KEYS,
    LIVE,
    NEXT,
    NEXT_ID,
    OFFSETS,
    PARENT,
    PREV,
    REFUSED,
    ROWS,
    SLOTS,
    TABLES,
    UNKNOWN,
    U,
    announce,
    ctz,
    erase,
    extra_at,
    extra_drop,
    find,
    jit,
    mix,
    place,
)


# ------------------------------------------------------------- the forest of blocks
@jit()
def _settle(t: Any, top: Any, w: Any) -> None:
    """Word `w` of the closed mask of `top` has changed: below it, closed = raw & closed(parent) again."""
    rows, links, unrooted = t.rows, t.links, t.unrooted
    words = (rows.shape[1] - KEY_WORDS) // 2
    closed, raw = KEY_WORDS + w, KEY_WORDS + words + w
    c = links[top, CHILD]
    while c != 0:
        want, had = rows[c, raw] & rows[links[c, PARENT], closed], rows[c, closed]
        if want != had:
            rows[c, closed] = want
            change = want ^ had
            while change != U(0):
                bit = ctz(change)
                unrooted[(w << 6) + bit] += -1 if (want >> U(bit)) & U(1) else 1
                change &= change - U(1)
            if links[c, CHILD] != 0:
                c = links[c, CHILD]
                continue
        while links[c, NEXT] == 0:
            c = links[c, PARENT]
            if c == top:
                return
        c = links[c, NEXT]


@jit()
def _unlink(t: Any, block: Any) -> None:
    links = t.links
    parent, following, previous = links[block, PARENT], links[block, NEXT], links[block, PREV]
    if parent > 0:
        if previous != 0:
            links[previous, NEXT] = following
        else:
            links[parent, CHILD] = following
        if following != 0:
            links[following, PREV] = previous


@jit()
def _reap(t: Any, block: Any, keep: Any) -> None:
    """Blocks that nobody holds and nothing hangs from are gone, from `block` upwards, but never `keep`."""
    rows, links, meta = t.rows, t.links, t.meta
    words = (rows.shape[1] - KEY_WORDS) // 2
    while block > 0 and block != keep and links[block, CHILD] == 0:
        for q in range(KEY_WORDS + words, KEY_WORDS + 2 * words):
            if rows[block, q] != U(0):
                return
        parent = links[block, PARENT]
        _unlink(t, block)
        erase(t, block)
        links[block, PARENT], links[block, NEXT] = FREE, meta[FREE_ID]
        meta[FREE_ID] = block
        meta[LIVE] -= 1
        block = np.int64(parent)


@jit()
def _drop_tail(t: Any, keep: Any) -> bool:
    """One block that nothing hangs from, and that is no root, is forgotten on all nodes; False if there is none.

    The hand goes round the ids and climbs the chain it is on: chains are shortened from their ends, one by one.
    """
    rows, links, meta, unrooted = t.rows, t.links, t.meta, t.unrooted
    words = (rows.shape[1] - KEY_WORDS) // 2
    for _ in range(meta[NEXT_ID]):
        block = meta[HAND]
        if block < 1 or block >= meta[NEXT_ID]:
            block = np.int64(1)
        meta[HAND] = block + 1
        parent = links[block, PARENT]
        if parent == FREE or parent == 0 or links[block, CHILD] != 0 or block == keep:
            continue
        for w in range(words):
            bits, closed = rows[block, KEY_WORDS + words + w], rows[block, KEY_WORDS + w]
            while bits != U(0):
                column = (w << 6) + ctz(bits)
                unrooted[column] -= 0 if (closed >> U(column & 63)) & U(1) else 1
                meta[ENTRIES] -= 1
                if meta[EXTRAS]:
                    extra_drop(t, (U(block) << U(20)) | U(column))
                bits &= bits - U(1)
            rows[block, KEY_WORDS + words + w] = rows[block, KEY_WORDS + w] = U(0)
        _reap(t, block, keep)
        meta[DROPPED] += 1
        if parent > 0:
            meta[HAND] = parent
        return True
    return False


# The next two take single arrays: taking them out of the tuple costs an atomic count each, on the hottest path.
@jit(forceinline=True)
def _new_block(slots: Any, rows: Any, links: Any, meta: Any, k0: Any, k1: Any) -> Any:
    """The id of a new block that nobody holds and whose parent is unknown."""
    block = meta[FREE_ID]
    if block:
        meta[FREE_ID] = links[block, NEXT]
    else:
        block = meta[NEXT_ID]
        meta[NEXT_ID] += 1
    rows[block, 0], rows[block, 1] = k0, k1
    for q in range(KEY_WORDS, rows.shape[1]):
        rows[block, q] = U(0)
    links[block, PARENT] = UNKNOWN
    links[block, CHILD] = links[block, NEXT] = links[block, PREV] = 0
    place(slots, (mix(k0, k1) << U(32)) | U(block))
    meta[LIVE] += 1
    return block


@jit(forceinline=True)
def _hang(links: Any, block: Any, parent: Any) -> None:
    """`block` is the first child of `parent`."""
    links[block, PARENT] = parent
    if parent > 0:
        first = links[parent, CHILD]
        links[block, NEXT] = first
        if first != 0:
            links[first, PREV] = block
        links[parent, CHILD] = block


@jit()
def _graft(t: Any, block: Any, parent: Any) -> None:
    """A known block, whose parent nobody had announced, hangs from `parent`, with what already hung from it."""
    rows, links, meta, unrooted = t.rows, t.links, t.meta, t.unrooted
    above = np.int64(parent)
    while above > 0 and links[block, CHILD] != 0:
        if above == block:  # a publisher's bug: a block would be its own ancestor
            meta[CONTRADICTIONS] += 1
            return
        above = np.int64(links[above, PARENT])
    _hang(links, block, parent)
    words = (rows.shape[1] - KEY_WORDS) // 2
    for w in range(words):
        bits = rows[block, KEY_WORDS + words + w] & rows[parent, KEY_WORDS + w]
        if bits != U(0):
            rows[block, KEY_WORDS + w] = bits
            while bits != U(0):
                unrooted[(w << 6) + ctz(bits)] -= 1
                bits &= bits - U(1)
            _settle(t, block, w)


# ------------------------------------------------------------- changes
@jit(nb.int64(TABLES, nb.int64, nb.int64, nb.int64, KEYS, nb.int64))
def store(t: Any, live_max: Any, column: Any, has_parent: Any, keys: Any, done: Any) -> Any:
    """One more copy of each key from `done` on is in `column`; `keys[0]` is the parent if `has_parent`, not stored.

    Returns how many keys are dealt with: less than all when `extra` must grow first. There must be room for all
    keys in `slots`, `rows` and `links`.
    """
    slots, rows, links, meta, unrooted, extra = t.slots, t.rows, t.links, t.meta, t.unrooted, t.extra
    words = (rows.shape[1] - KEY_WORDS) // 2
    w, bit = column >> 6, U(1) << U(column & 63)
    closed, raw = KEY_WORDS + w, KEY_WORDS + words + w
    parent = np.int64(0)
    if done > 0:
        parent = find(slots, rows, keys[done - 1, 0], keys[done - 1, 1])
    for at in range(done, len(keys)):
        announce(slots, rows, links, keys, at)
        block = find(slots, rows, keys[at, 0], keys[at, 1])
        fresh = block == 0
        if fresh:
            if live_max and meta[LIVE] >= live_max and not _drop_tail(t, parent):
                meta[REFUSED] += len(keys) - at
                return len(keys)
            block = _new_block(slots, rows, links, meta, keys[at, 0], keys[at, 1])
        if at == 0 and has_parent:
            parent = block
            continue
        if fresh:
            _hang(links, block, parent)
        elif links[block, PARENT] == UNKNOWN:
            _graft(t, block, parent)
        elif links[block, PARENT] != parent:
            meta[CONTRADICTIONS] += 1
        if rows[block, raw] & bit:
            if 2 * meta[EXTRAS] >= len(extra):
                return np.int64(at)
            i = extra_at(extra, (U(block) << U(20)) | U(column))
            if extra[i, U(0)] == U(0):
                extra[i, U(0)], extra[i, U(1)] = (U(block) << U(20)) | U(column), U(0)
                meta[EXTRAS] += 1
            extra[i, U(1)] += U(1)
        else:
            rows[block, raw] |= bit
            meta[ENTRIES] += 1
            above = links[block, PARENT]
            if above >= 0 and rows[above, closed] & bit:
                rows[block, closed] |= bit
                if links[block, CHILD] != 0 and unrooted[column]:
                    _settle(t, block, w)
            else:
                unrooted[column] += 1
        parent = block
    return np.int64(len(keys))


@jit(nb.int64(TABLES, nb.int64, KEYS))
def remove(t: Any, column: Any, keys: Any) -> Any:
    """One copy fewer of each key in `column`; returns how many were not there."""
    slots, rows, links, meta, unrooted, extra = t.slots, t.rows, t.links, t.meta, t.unrooted, t.extra
    words = (rows.shape[1] - KEY_WORDS) // 2
    w, bit = column >> 6, U(1) << U(column & 63)
    closed, raw = KEY_WORDS + w, KEY_WORDS + words + w
    unknown = 0
    for at in range(len(keys)):
        announce(slots, rows, links, keys, at)
        block = find(slots, rows, keys[at, 0], keys[at, 1])
        if block == 0 or not rows[block, raw] & bit:
            unknown += 1
            continue
        if meta[EXTRAS]:
            i = extra_at(extra, (U(block) << U(20)) | U(column))
            if extra[i, U(0)] != U(0):
                extra[i, U(1)] -= U(1)
                if extra[i, U(1)] == U(0):
                    extra_drop(t, extra[i, U(0)])
                continue
        rows[block, raw] &= ~bit
        meta[ENTRIES] -= 1
        if rows[block, closed] & bit:
            rows[block, closed] &= ~bit
            if links[block, CHILD] != 0:
                _settle(t, block, w)
        else:
            unrooted[column] -= 1
        if rows[block, raw] == U(0) and links[block, CHILD] == 0:
            _reap(t, block, np.int64(0))
    return unknown


@jit((TABLES, nb.int64))
def clear(t: Any, column: Any) -> None:
    """Nothing is left in `column`."""
    rows, links, meta, unrooted = t.rows, t.links, t.meta, t.unrooted
    words = (rows.shape[1] - KEY_WORDS) // 2
    w, bit = column >> 6, U(1) << U(column & 63)
    for block in range(1, meta[NEXT_ID]):
        if links[block, PARENT] != FREE and rows[block, KEY_WORDS + words + w] & bit:
            rows[block, KEY_WORDS + w] &= ~bit
            rows[block, KEY_WORDS + words + w] &= ~bit
            meta[ENTRIES] -= 1
            if meta[EXTRAS]:
                extra_drop(t, (U(block) << U(20)) | U(column))
            _reap(t, np.int64(block), np.int64(0))
    unrooted[column] = 0


# ------------------------------------------------------------- lookup
@jit()
def _emit(bits: Any, depth: Any, base: Any, depths: Any) -> None:
    while bits != U(0):
        depths[base + ctz(bits)] = depth
        bits &= bits - U(1)


@jit()
def _closed(slots: Any, rows: Any, keys: Any, at: Any, w: Any) -> Any:
    block = find(slots, rows, keys[at, 0], keys[at, 1])
    return rows[block, KEY_WORDS + w] if block != 0 else U(0)


@jit()
def _tell_ends(
    slots: Any, rows: Any, keys: Any, w: Any, low: Any, high: Any, held_low: Any, held_high: Any, depths: Any, todo: Any
) -> None:
    """Who holds block `low` but not block `high` is told where its run ends: bisection, shared by all columns.

    `todo` has room for the stretches still to be looked at, the lowest on top.
    """
    todo[0, 0], todo[0, 1], todo[0, 2], todo[0, 3] = U(low), U(high), held_low, held_high
    count = 1
    while count:
        count -= 1
        low, high, held_low, held_high = todo[count, 0], todo[count, 1], todo[count, 2], todo[count, 3]
        if high - low == U(1):
            _emit(held_low & ~held_high, np.int64(high), w << 6, depths)
            continue
        middle = (low + high) >> U(1)
        held = (_closed(slots, rows, keys, middle, w) & held_low) | held_high
        if held != held_high:
            todo[count, 0], todo[count, 1], todo[count, 2], todo[count, 3] = middle, high, held, held_high
            count += 1
        if held != held_low:
            todo[count, 0], todo[count, 1], todo[count, 2], todo[count, 3] = low, middle, held_low, held
            count += 1


@jit()
def _match_word(slots: Any, rows: Any, keys: Any, held: Any, w: Any, depths: Any, todo: Any) -> None:
    """Depths of the 64 columns of word `w`, given the closed mask of the first block: gallop, bisect where it drops."""
    last, at, step = len(keys) - 1, 0, 1
    while held != U(0):
        if at == last:
            _emit(held, last + 1, w << 6, depths)
            return
        end = min(at + step, last)
        kept = _closed(slots, rows, keys, end, w) & held
        if kept != held:
            _tell_ends(slots, rows, keys, w, at, end, held, kept, depths, todo)
            held = kept
        at = end
        step <<= 1


@jit((SLOTS, ROWS, KEYS, nb.int32[::1]))
def match(slots: Any, rows: Any, keys: Any, depths: Any) -> None:
    """depths[column] is the length of the run of `keys` from the first one that the column holds."""
    depths[:] = 0
    if len(keys):
        block = find(slots, rows, keys[0, 0], keys[0, 1])
        if block != 0:
            todo = np.empty((64, 4), np.uint64)
            for w in range((rows.shape[1] - KEY_WORDS) // 2):
                if rows[block, KEY_WORDS + w] != U(0):
                    _match_word(slots, rows, keys, rows[block, KEY_WORDS + w], w, depths, todo)


@jit((SLOTS, ROWS, KEYS, nb.int32[::1], nb.int64, nb.int64[:, ::1]))
def match_runs(slots: Any, rows: Any, keys: Any, depths: Any, tier_count: Any, runs: Any) -> Any:
    """`runs` begins with (node, tier, depth) of who holds any of `keys`, sorted; returns how many, and the longest."""
    match(slots, rows, keys, depths)
    node_count, count, longest = len(depths) // tier_count, 0, np.int64(0)
    for node in range(node_count):
        for tier in range(tier_count):
            depth = np.int64(depths[tier * node_count + node])
            if depth > 0:
                runs[count, 0], runs[count, 1], runs[count, 2] = node, tier, depth
                count += 1
                if depth > longest:
                    longest = depth
    return count, longest


@jit((SLOTS, ROWS, KEYS, OFFSETS, nb.int32[:, ::1]))
def match_many(slots: Any, rows: Any, keys: Any, offsets: Any, depths: Any) -> None:
    """Row i of `depths` is the answer for keys[offsets[i]:offsets[i + 1]]."""
    for i in range(len(offsets) - 1):
        match(slots, rows, keys[offsets[i] : offsets[i + 1]], depths[i])
