"""Compiled span chains of keyed BLAKE2s (RFC 7693): the bytes of `hashing.py`'s readable form, 16 blocks at a time.

The prompt is cut into groups of `LANES` spans. Within a group step j takes block j of every span, each in its own lane
of one vector; only the last block of a span waits for the hash before it.
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
def _take(tokens: Any, block_tokens: Any, first: Any, part: Any, lanes: Any, words: Any) -> None:
    """Column l of `words` is part `part` of block `first` + l * SPAN_BLOCKS, zero where that has ended."""
    start = part * _WORDS
    size = min(_WORDS, block_tokens - start)
    for lane in range(lanes):
        at = (first + lane * SPAN_BLOCKS) * block_tokens + start
        if at + size <= len(tokens):
            for t in range(size):
                words[t, lane] = tokens[at + t]
    words[size:] = 0


@jit(forceinline=True)
def _ends(states: Any, parent: Any, total_bytes: Any, blocks: Any, parents: Any) -> None:
    """parents[:, l] is what the blocks of span l hang from; `parent` moves on to the last block of all."""
    for lane in range((blocks + SPAN_BLOCKS - 1) // SPAN_BLOCKS):
        last = min(SPAN_BLOCKS, blocks - lane * SPAN_BLOCKS) - 1
        state = np.empty((8, 1), np.uint32)
        for i in range(8):
            state[i, 0] = states[last, i, lane]
        for i in range(_DIGEST_WORDS):
            parents[i, lane] = parent[i, 0]
        _compress(state, parent, np.uint32(total_bytes[last]), np.uint32(0xFFFFFFFF), state)
        for i in range(_DIGEST_WORDS):
            parent[i, 0] = state[i, 0]


@jit((_words, nb.uint32[::1], _words, nb.int64, nb.uint32[:, ::1], nb.uint32[:, ::1]))
def chain(key: Any, digest: Any, tokens: Any, block_tokens: Any, hashes: Any, marks: Any) -> None:
    """Row i of `hashes` and of `marks` are the first 4 and the next 2 words of the digest of block i; `digest` is the
    whole one before the first block, then of the last."""
    parts = (block_tokens + _WORDS - 1) // _WORDS
    total_bytes = np.empty(SPAN_BLOCKS, np.int64)  # hashed by the end of each block of a span: key, blocks, parent
    for j in range(SPAN_BLOCKS):
        total_bytes[j] = _PART_BYTES * (1 + parts * (j + 1)) + _DIGEST_WORDS * _WORD_BYTES
    above, keyed = np.zeros((_WORDS, 1), np.uint32), np.empty((8, 1), np.uint32)
    above[:8, 0], keyed[:, 0] = key, _START
    _compress(keyed, above, np.uint32(_PART_BYTES), np.uint32(0), keyed)  # the key opens every message: done once
    above[:] = 0
    above[:_DIGEST_WORDS, 0] = digest
    words, parents = np.zeros((_WORDS, LANES), np.uint32), np.zeros((_WORDS, LANES), np.uint32)
    start, states = np.empty((8, LANES), np.uint32), np.empty((SPAN_BLOCKS, 8, LANES), np.uint32)
    for i in range(8):
        start[i] = keyed[i, 0]
    for first in range(0, len(hashes), SPAN_BLOCKS * LANES):
        blocks = min(SPAN_BLOCKS * LANES, len(hashes) - first)
        lanes, steps = (blocks + SPAN_BLOCKS - 1) // SPAN_BLOCKS, min(SPAN_BLOCKS, blocks)
        state = start
        for j in range(steps):
            for part in range(parts):
                _take(tokens, block_tokens, first + j, part, lanes, words)
                done = _PART_BYTES * (1 + parts * j + part + 1)
                _compress_lanes(state, words, np.uint32(done), np.uint32(0), states[j])
                state = states[j]
        _ends(states, above, total_bytes, blocks, parents)
        for j in range(steps):
            _compress_lanes(states[j], parents, np.uint32(total_bytes[j]), np.uint32(0xFFFFFFFF), states[j])
            for lane in range((blocks - j + SPAN_BLOCKS - 1) // SPAN_BLOCKS):
                block = first + lane * SPAN_BLOCKS + j
                for i in range(4):
                    hashes[block, i] = states[j, i, lane]
                marks[block, 0], marks[block, 1] = states[j, 4, lane], states[j, 5, lane]
    digest[:] = above[:_DIGEST_WORDS, 0]
