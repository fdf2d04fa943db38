"""Compiled keyed BLAKE2b-128 chains (RFC 7693): the bytes of `hashing.py`'s readable form, without a call per block."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from numba.core import types

from .table import U, jit

COMPRESS_BYTES = 128
_IV = np.array(
    [
        0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
        0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179,
    ],
    dtype=np.uint64,
)  # fmt: skip
_words = types.Array(types.uint64, 1, "C", readonly=True)
_tokens = types.Array(types.uint32, 1, "C", readonly=True)


@jit(forceinline=True)
def _turn(x: Any, bits: Any) -> Any:
    return (x >> U(bits)) | (x << U(64 - bits))


@jit(forceinline=True)
def _g(a: Any, b: Any, c: Any, d: Any, x: Any, y: Any) -> Any:
    """The mixing function G of RFC 7693, section 3.1."""
    a = a + b + x
    d = _turn(d ^ a, 32)
    c = c + d
    b = _turn(b ^ c, 24)
    a = a + b + y
    d = _turn(d ^ a, 16)
    c = c + d
    b = _turn(b ^ c, 63)
    return a, b, c, d


@jit(forceinline=True)
def _round(v: Any, m: Any, order: Any) -> Any:
    """One round: the message words are taken in `order`."""
    v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15 = v
    v0, v4, v8, v12 = _g(v0, v4, v8, v12, m[order[0]], m[order[1]])
    v1, v5, v9, v13 = _g(v1, v5, v9, v13, m[order[2]], m[order[3]])
    v2, v6, v10, v14 = _g(v2, v6, v10, v14, m[order[4]], m[order[5]])
    v3, v7, v11, v15 = _g(v3, v7, v11, v15, m[order[6]], m[order[7]])
    v0, v5, v10, v15 = _g(v0, v5, v10, v15, m[order[8]], m[order[9]])
    v1, v6, v11, v12 = _g(v1, v6, v11, v12, m[order[10]], m[order[11]])
    v2, v7, v8, v13 = _g(v2, v7, v8, v13, m[order[12]], m[order[13]])
    v3, v4, v9, v14 = _g(v3, v4, v9, v14, m[order[14]], m[order[15]])
    return v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15


@jit()
def _compress(h: Any, m: Any, at: Any, total_bytes: Any, last: Any) -> None:
    """The compression function F of RFC 7693, section 3.2, of words `m[at : at + 16]`."""
    x = (
        m[at], m[at + 1], m[at + 2], m[at + 3], m[at + 4], m[at + 5], m[at + 6], m[at + 7],
        m[at + 8], m[at + 9], m[at + 10], m[at + 11], m[at + 12], m[at + 13], m[at + 14], m[at + 15],
    )  # fmt: skip
    v = (
        h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7], _IV[0], _IV[1], _IV[2], _IV[3],
        _IV[4] ^ U(total_bytes), _IV[5], _IV[6] ^ U(0 - last), _IV[7],
    )  # fmt: skip
    v = _round(v, x, (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
    v = _round(v, x, (14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3))
    v = _round(v, x, (11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4))
    v = _round(v, x, (7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8))
    v = _round(v, x, (9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13))
    v = _round(v, x, (2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9))
    v = _round(v, x, (12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11))
    v = _round(v, x, (13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10))
    v = _round(v, x, (6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5))
    v = _round(v, x, (10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0))
    v = _round(v, x, (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
    v = _round(v, x, (14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3))
    for i in range(8):
        h[i] ^= v[i] ^ v[i + 8]


@jit((_words, _words, _tokens, nb.int64, nb.uint64[:, ::1]))
def chain(key: Any, parent: Any, tokens: Any, block_tokens: Any, hashes: Any) -> None:
    """hashes[i] is the hash of block i: key of 4 words, parent of 2, one row of 2 per full block."""
    size = 16 + 4 * block_tokens
    parts = (size + COMPRESS_BYTES - 1) // COMPRESS_BYTES
    message = np.zeros(parts * 16, np.uint64)
    halves = message.view(np.uint32)
    keyed, h = np.empty(8, np.uint64), np.empty(8, np.uint64)
    keyed[:] = _IV
    keyed[0] ^= U(0x01010000 ^ (32 << 8) ^ 16)  # one node, 32 bytes of key, 16 bytes of digest
    message[:4] = key
    if parts > 1:
        message[4:16] = U(0)
    _compress(keyed, message, 0, COMPRESS_BYTES, 0)  # the key is the first block of every message: done once
    message[:] = U(0)
    message[0], message[1] = parent[0], parent[1]
    for i in range(len(hashes)):
        for t in range(block_tokens):
            halves[4 + t] = tokens[i * block_tokens + t]
        h[:] = keyed
        for part in range(parts - 1):
            _compress(h, message, part * 16, COMPRESS_BYTES * (part + 2), 0)
        _compress(h, message, (parts - 1) * 16, COMPRESS_BYTES + size, 1)
        hashes[i, 0] = message[0] = h[0]
        hashes[i, 1] = message[1] = h[1]
