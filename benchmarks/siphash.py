"""SipHash-2-4 with 128 bits (Aumasson and Bernstein, 2012), compiled: what a pseudo-random function would cost."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

U = np.uint64
VECTOR_0 = "a3817f04ba25a8e66df67214c7550293"  # of the empty message, key 00..0f: the reference implementation's first


@nb.njit(forceinline=True)
def _turn(x: Any, bits: Any) -> Any:
    return (x << U(bits)) | (x >> U(64 - bits))


@nb.njit(forceinline=True)
def _rounds(v0: Any, v1: Any, v2: Any, v3: Any, count: Any) -> Any:
    for _ in range(count):
        v0, v2 = v0 + v1, v2 + v3
        v1, v3 = _turn(v1, 13) ^ v0, _turn(v3, 16) ^ v2
        v0 = _turn(v0, 32)
        v2, v0 = v2 + v1, v0 + v3
        v1, v3 = _turn(v1, 17) ^ v2, _turn(v3, 21) ^ v0
        v2 = _turn(v2, 32)
    return v0, v1, v2, v3


@nb.njit
def siphash128(key: Any, words: Any, size_bytes: Any) -> Any:
    """The two words of the digest of `size_bytes` bytes; the last word of `words` holds what is left over, or zeros."""
    v0, v1 = key[0] ^ U(0x736F6D6570736575), key[1] ^ U(0x646F72616E646F6D) ^ U(0xEE)
    v2, v3 = key[0] ^ U(0x6C7967656E657261), key[1] ^ U(0x7465646279746573)
    for i in range(size_bytes // 8 + 1):
        m = words[i] if i < size_bytes // 8 else words[i] | (U(size_bytes & 255) << U(56))
        v3 ^= m
        v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 2)
        v0 ^= m
    v2 ^= U(0xEE)
    v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 4)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= U(0xDD)
    v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 4)
    return first, v0 ^ v1 ^ v2 ^ v3


@nb.njit
def chain(key: Any, tokens: Any, block_tokens: Any, hashes: Any) -> None:
    """A link per block: row i is the hash of row i - 1 and the tokens of block i (an even number)."""
    words = np.zeros(3 + block_tokens // 2, np.uint64)
    halves = words.view(np.uint32)
    for i in range(len(hashes)):
        for t in range(block_tokens):
            halves[4 + t] = tokens[i * block_tokens + t]
        words[0], words[1] = siphash128(key, words, 16 + 4 * block_tokens)
        hashes[i, 0], hashes[i, 1] = words[0], words[1]


def siphash128_chain(key: Any, tokens: Any, block_tokens: int) -> Any:
    hashes = np.empty((len(tokens) // block_tokens, 2), np.uint64)
    chain(key, tokens, block_tokens, hashes)
    return hashes


def checked() -> None:
    """Raises AssertionError unless the published vector comes out."""
    found = siphash128(np.frombuffer(bytes(range(16)), np.uint64), np.zeros(1, np.uint64), 0)
    assert np.array(found, np.uint64).tobytes().hex() == VECTOR_0
