"""Keyed chain hashes of token blocks. The package reaches this only through `guard/namespace.py`, which owns the keys.

A block's hash is keyed BLAKE2b-128 (RFC 7693, section 2.9) over parent hash || tokens as little-endian uint32, so equal
hashes mean equal prompts up to and including that block, under one key, but for a collision (2^-64 after 2^32 blocks,
even for an adversary that knows the key). Without the key nobody can predict or test a hash. A pseudo-random
function such as SipHash-128 would do while keys stay on serving ranks, and is faster; but then one leaked key lets
its reader forge collisions that serve one prompt's cache for another, which BLAKE2b does not.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np
from numpy.typing import NDArray

KEY_BYTES = 32
DIGEST_BYTES = 16
ROOT_PARENT = bytes(DIGEST_BYTES)  # the parent of a first block


def chain_hashes(key: bytes, parent: bytes, tokens: NDArray[np.uint32], block_tokens: int) -> bytes:
    """`DIGEST_BYTES` per full block of `tokens`, first block first, chained from `parent`; a partial tail is ignored.

    Continuing from the last hash of one call gives what a single call over both stretches gives (at equal key, cut
    at a block boundary). Raises ValueError on a key, parent or block size that cannot be meant.
    """
    if len(key) != KEY_BYTES or len(parent) != DIGEST_BYTES or block_tokens < 1:
        raise ValueError(
            f"key of {len(key)} bytes, parent of {len(parent)}, blocks of {block_tokens} tokens;"
            f" expected {KEY_BYTES}, {DIGEST_BYTES} and at least 1"
        )
    if tokens.dtype != np.uint32 or tokens.ndim != 1:
        raise ValueError(f"tokens are {tokens.dtype} of {tokens.ndim} dimensions; expected one-dimensional uint32")
    if "kvshare_research.index.table" in sys.modules:  # the flat index has loaded the compiler: same bytes, sooner
        return _chain_compiled(key, parent, tokens, block_tokens)
    return _chain_hashlib(key, parent, tokens.astype("<u4", copy=False).tobytes(), 4 * block_tokens)


def _chain_compiled(key: bytes, parent: bytes, tokens: NDArray[np.uint32], block_tokens: int) -> bytes:
    from .blake2b import chain

    hashes = np.empty((len(tokens) // block_tokens, 2), np.uint64)
    words = np.frombuffer(key, np.uint64), np.frombuffer(parent, np.uint64)
    chain(*words, np.ascontiguousarray(tokens), block_tokens, hashes)
    return hashes.tobytes()


def _chain_hashlib(key: bytes, parent: bytes, data: bytes, block_bytes: int) -> bytes:
    """The readable form, and the one every kernel is compared with."""
    hashes = []
    for start in range(0, len(data) - block_bytes + 1, block_bytes):
        parent = hashlib.blake2b(parent + data[start : start + block_bytes], key=key, digest_size=DIGEST_BYTES).digest()
        hashes.append(parent)
    return b"".join(hashes)
