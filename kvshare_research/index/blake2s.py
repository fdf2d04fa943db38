"""Compiled span chains of keyed BLAKE2s (RFC 7693): the bytes of `hashing.py`'s readable form, 16 blocks at a time.

The spans of all stretches given, longest first, are cut into groups of `LANES`. Step j takes block j of every span of a
group, each in its own lane of one vector; only the last block of a span waits for the hash before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from .table import jit

SPAN_BLOCKS = 16  # of one message; part of what a hash means
LANES = 16
_WORDS, _WORD_BYTES = 16, 4  # of one compression
_PART_BYTES = _WORDS * _WORD_BYTES
_DIGEST_WORDS = 8
_IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
_START = np.array(_IV, np.uint32) ^ np.array([0x01010000 ^ 32 << 8 ^ 32, *[0] * 7], np.uint32)  # key and digest bytes
_ORDERS = (
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
    (14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3),
    (11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4),
    (7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8),
    (9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13),
    (2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9),
    (12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11),
    (13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10),
    (6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5),
    (10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0),
)  # the message schedule of RFC 7693, section 2.7
_MIXED = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip
_words = types.Array(types.uint32, 1, "C", readonly=True)
WORDS = types.Array(types.uint32, 2, "C", readonly=True)


def _compressor(lanes: int) -> Any:
    """The compression function F of RFC 7693, section 3.2, on `lanes` messages at once.

    compress(old, words, total_bytes, last, new): `old` and `new` are uint32 [8, lanes], `words` is [16, lanes].
    Written in LLVM's own vectors, so that it is parallel wherever the machine has them.
    """
    word = ir.IntType(32)
    kind = word if lanes == 1 else ir.VectorType(word, lanes)

    def constant(value: int) -> Any:
        return ir.Constant(kind, value if lanes == 1 else [value] * lanes)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        old, words, total_bytes, last, new = args
        bases = {}
        for at, array in ((0, old), (1, words), (4, new)):
            data = context.make_array(signature.args[at])(context, builder, array).data
            bases[at] = builder.bitcast(data, kind.as_pointer())

        def place(at: int, row: int) -> Any:
            return builder.gep(bases[at], [ir.Constant(word, row)])

        def read(at: int, row: int) -> Any:
            value = builder.load(place(at, row))
            value.align = _WORD_BYTES
            return value

        h, m = [read(0, i) for i in range(8)], [read(1, i) for i in range(_WORDS)]
        v = [*h, *map(constant, _IV)]
        v[12] = builder.xor(v[12], _same_in_all(builder, total_bytes, kind, lanes))
        v[14] = builder.xor(v[14], _same_in_all(builder, last, kind, lanes))
        for order in _ORDERS:
            for k, cells in enumerate(_MIXED):
                _mix(builder, constant, v, cells, m[order[2 * k]], m[order[2 * k + 1]])
        for i in range(8):
            stored = builder.store(builder.xor(builder.xor(h[i], v[i]), v[i + 8]), place(4, i))
            stored.align = _WORD_BYTES
        return context.get_dummy_value()

    def compress(_typing: Any, old: Any, words: Any, total_bytes: Any, last: Any, new: Any) -> Any:
        return types.void(old, words, types.uint32, types.uint32, new), code

    return intrinsic(compress)


def _same_in_all(builder: Any, value: Any, kind: Any, lanes: int) -> Any:
    if lanes == 1:
        return value
    undefined, zero = ir.Constant(kind, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    return builder.shuffle_vector(builder.insert_element(undefined, value, zero), undefined, ir.Constant(kind, None))


def _mix(builder: Any, constant: Callable[[int], Any], v: list[Any], cells: Any, x: Any, y: Any) -> None:
    """The mixing function G of RFC 7693, section 3.1."""
    a, b, c, d = cells

    def turned(value: Any, bits: int) -> Any:
        return builder.or_(builder.lshr(value, constant(bits)), builder.shl(value, constant(32 - bits)))

    for message, left, right in ((x, 16, 12), (y, 8, 7)):
        v[a] = builder.add(builder.add(v[a], message), v[b])
        v[d] = turned(builder.xor(v[d], v[a]), left)
        v[c] = builder.add(v[c], v[d])
        v[b] = turned(builder.xor(v[b], v[c]), right)


_compress, _compress_lanes = _compressor(1), _compressor(LANES)


@jit(forceinline=True)
def _take(tokens: Any, starts: Any, size: Any, words: Any) -> None:
    """Column l of `words` is the `size` tokens from starts[l] on, and zeros; what has no start stays as it is."""
    for lane in range(len(starts)):
        if starts[lane] >= 0:
            for t in range(size):
                words[t, lane] = tokens[starts[lane] + t]
    words[size:] = 0


@jit(forceinline=True)
def _line_up(counts: Any, spans: Any, lanes: Any) -> None:
    """Rows of `spans`: stretch, first block and number of blocks of each; `lanes` lists them longest first."""
    at = block = 0
    for stretch in range(len(counts)):
        for first in range(0, counts[stretch], SPAN_BLOCKS):
            spans[at, 0], spans[at, 1], spans[at, 2] = stretch, block + first, min(SPAN_BLOCKS, counts[stretch] - first)
            at += 1
        block += counts[stretch]
    placed = 0
    for length in range(SPAN_BLOCKS, 0, -1):
        for i in range(len(spans)):
            if spans[i, 2] == length:
                lanes[placed] = i
                placed += 1


@jit(forceinline=True)
def _key_states(keys: Any, keyed: Any) -> None:
    """The key opens every message: a row of `keyed` is the state after it."""
    words, state = np.zeros((_WORDS, 1), np.uint32), np.empty((8, 1), np.uint32)
    for row in range(len(keys)):
        words[:8, 0], state[:, 0] = keys[row], _START
        _compress(state, words, np.uint32(_PART_BYTES), np.uint32(0), state)
        keyed[row] = state[:, 0]


@jit(forceinline=True)
def _hash_spans(tokens: Any, block_tokens: Any, spans: Any, lanes: Any, keyed: Any, states: Any) -> None:
    """states[i // LANES, j, :, i % LANES] is the state of span lanes[i] after its block j, before its parent."""
    parts = (block_tokens + _WORDS - 1) // _WORDS
    words, starts = np.zeros((_WORDS, LANES), np.uint32), np.empty(LANES, np.int64)
    start = np.zeros((8, LANES), np.uint32)
    for group in range(len(states)):
        count = min(LANES, len(lanes) - group * LANES)
        for lane in range(count):
            start[:, lane] = keyed[spans[lanes[group * LANES + lane], 0]]
        state = start
        for j in range(spans[lanes[group * LANES], 2]):
            for part in range(parts):
                for lane in range(LANES):
                    span = lanes[min(group * LANES + lane, len(lanes) - 1)]
                    token = (spans[span, 1] + j) * block_tokens + part * _WORDS
                    starts[lane] = token if lane < count and j < spans[span, 2] else -1
                _take(tokens, starts, min(_WORDS, block_tokens - part * _WORDS), words)
                done = _PART_BYTES * (1 + parts * j + part + 1)
                _compress_lanes(state, words, np.uint32(done), np.uint32(0), states[group, j])
                state = states[group, j]


@jit(forceinline=True)
def _ends(spans: Any, places: Any, parents: Any, goes_on: Any, total_bytes: Any, states: Any, above: Any) -> None:
    """above[l // LANES, :, l % LANES] is what the blocks of the span in lane l hang from, by its place; `parents` are
    then the last digests of the stretches."""
    words, state = np.zeros((_WORDS, 1), np.uint32), np.empty((8, 1), np.uint32)
    before = -1
    for i in range(len(spans)):
        stretch, last = spans[i, 0], spans[i, 2] - 1
        if stretch != before and (goes_on[stretch] == 0 or before < 0):
            words[:_DIGEST_WORDS, 0] = parents[stretch]
        before = stretch
        group, lane = places[i] // LANES, places[i] % LANES
        above[group, :_DIGEST_WORDS, lane] = words[:_DIGEST_WORDS, 0]
        state[:, 0] = states[group, last, :, lane]
        _compress(state, words, np.uint32(total_bytes[last]), np.uint32(0xFFFFFFFF), state)
        words[:_DIGEST_WORDS, 0] = state[:, 0]
        parents[stretch] = state[:, 0]


@jit((WORDS, nb.uint32[:, ::1], nb.int64[::1], nb.int64[::1], _words, nb.int64, nb.uint32[:, ::1], nb.uint32[:, ::1]))
def chain(
    keys: Any, digests: Any, goes_on: Any, counts: Any, tokens: Any, block_tokens: Any, hashes: Any, marks: Any
) -> None:
    """Row i of `hashes` and of `marks` are the first 4 and the next 2 words of the digest of block i of `tokens`, which
    are counts[s] blocks of stretch s, one stretch after the other. digests[s] is the whole digest before its first
    block (not read if `goes_on`: it hangs from the stretch before, which has blocks), then that of its last."""
    parts = (block_tokens + _WORDS - 1) // _WORDS
    total_bytes = np.empty(SPAN_BLOCKS, np.int64)  # hashed by the end of each block of a span: key, blocks, parent
    for j in range(SPAN_BLOCKS):
        total_bytes[j] = _PART_BYTES * (1 + parts * (j + 1)) + _DIGEST_WORDS * _WORD_BYTES
    span_count = 0
    for stretch in range(len(counts)):
        span_count += (counts[stretch] + SPAN_BLOCKS - 1) // SPAN_BLOCKS
    spans, lanes = np.empty((span_count, 3), np.int64), np.empty(span_count, np.int64)
    places, keyed = np.empty(span_count, np.int64), np.empty((len(keys), 8), np.uint32)
    group_count = (span_count + LANES - 1) // LANES
    states = np.zeros((group_count, SPAN_BLOCKS, 8, LANES), np.uint32)
    above = np.zeros((group_count, _WORDS, LANES), np.uint32)
    _line_up(counts, spans, lanes)
    for place in range(span_count):
        places[lanes[place]] = place
    _key_states(keys, keyed)
    _hash_spans(tokens, block_tokens, spans, lanes, keyed, states)
    _ends(spans, places, digests, goes_on, total_bytes, states, above)
    for group in range(group_count):
        for j in range(spans[lanes[group * LANES], 2]):
            state = states[group, j]
            _compress_lanes(state, above[group], np.uint32(total_bytes[j]), np.uint32(0xFFFFFFFF), state)
            for lane in range(min(LANES, span_count - group * LANES)):
                span = lanes[group * LANES + lane]
                if j < spans[span, 2]:
                    block = spans[span, 1] + j
                    for i in range(4):
                        hashes[block, i] = state[i, lane]
                    marks[block, 0], marks[block, 1] = state[4, lane], state[5, lane]
