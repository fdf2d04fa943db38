"""Keyed chain digests of token blocks. The package reaches this only through `guard/namespace.py`, which owns the keys.

A span is `SPAN_BLOCKS` consecutive blocks. The digest of a block is keyed BLAKE2s-256 (RFC 7693, section 2.9) over all
tokens of its span up to its end, then the digest of the block before the span. Tokens are little-endian uint32, each
block filled with zeros to whole compressions of 64 bytes. Its first half is the block's hash, and its next bytes are
the block's mark, by which a collision of hashes is noticed: what is chained is the whole.

What it buys: the length of a message tells how many blocks it has and its last 32 bytes are the parent, so equal
digests mean equal prompts up to and including that block, under one key. An adversary that knows the key finds two
prompts of one hash after some 2^64 trials, of one hash and mark after some 2^96; whoever lacks it can neither predict
nor test a hash. A link per block (the hash of parent and tokens) buys the same; but there 1,024 blocks are 1,024
compressions one after another, here 64, and all others go 16 at a time. What is given up for that: a chain goes on
without its tokens only where a span ends.

A pseudo-random function such as SipHash-128 would do while keys stay on serving ranks; but then one leaked key lets its
reader forge collisions at will that serve one prompt's cache for another, which BLAKE2s does not.
`benchmarks/hashing.py` times both.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.nouns import HASH_BYTES, MARK_BYTES

KEY_BYTES = 32
DIGEST_BYTES = 32
ROOT_PARENT = bytes(DIGEST_BYTES)  # the parent of a first block
SPAN_BLOCKS = 16  # part of what a hash means: another value gives other hashes
_COMPRESSION_BYTES = 64
NO_TOKENS = np.empty(0, np.uint32)


class Digests(NamedTuple):
    """`HASH_BYTES` and `MARK_BYTES` of the digest of each block, first block first, and the whole of the last one."""

    hashes: bytes
    marks: bytes
    last: bytes


class Stretch(NamedTuple):
    """Tokens under one key: from the first block on (`ROOT_PARENT`), or going on after the stretch before."""

    key: bytes
    tokens: NDArray[np.uint32]
    goes_on: bool


def digests_of(stretches: Sequence[Stretch], block_tokens: int) -> list[Digests]:
    """As `chain_digests` of each; where several prompts are at hand they are hashed in the lanes of one vector."""
    if "kvshare_research.index.table" in sys.modules:
        return _compiled(stretches, ROOT_PARENT, block_tokens)
    found: list[Digests] = []
    for key, tokens, goes_on in stretches:
        found.append(chain_digests(key, found[-1].last if goes_on else ROOT_PARENT, tokens, block_tokens))
    return found


def chain_digests(key: bytes, parent: bytes, tokens: NDArray[np.uint32], block_tokens: int) -> Digests:
    """Of every full block of `tokens`, chained from `parent`; a partial tail is ignored.

    Continuing from the last digest of one call gives what a single call over both stretches gives, at equal key, if
    cut at the end of a span. One key goes with one block size. Raises ValueError on a key, parent or block size that
    cannot be meant.
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


def _chain_compiled(key: bytes, parent: bytes, tokens: NDArray[np.uint32], block_tokens: int) -> Digests:
    return _compiled([Stretch(key, tokens, False)], parent, block_tokens)[0]


def _compiled(stretches: Sequence[Stretch], root: bytes, block_tokens: int) -> list[Digests]:
    from .blake2s import chain

    counts = [len(stretch.tokens) // block_tokens for stretch in stretches]
    whole = [stretch.tokens[: count * block_tokens] for stretch, count in zip(stretches, counts, strict=True)]
    tokens = np.ascontiguousarray(whole[0]) if len(whole) == 1 else np.concatenate([*whole, NO_TOKENS])
    total = sum(counts)
    hashes, marks = np.empty((total, HASH_BYTES // 4), np.uint32), np.empty((total, MARK_BYTES // 4), np.uint32)
    keys = np.frombuffer(b"".join([stretch.key for stretch in stretches]), np.uint32).reshape(-1, KEY_BYTES // 4)
    lasts = np.frombuffer(root * len(counts), np.uint32).reshape(-1, DIGEST_BYTES // 4).copy()
    goes_on = np.array([stretch.goes_on for stretch in stretches], np.int64)
    chain(keys, lasts, goes_on, np.array(counts, np.int64), tokens, block_tokens, hashes, marks)
    all_hashes, all_marks, all_lasts = hashes.tobytes(), marks.tobytes(), lasts.tobytes()
    found, start = [], 0
    for i, count in enumerate(counts):
        end = start + count
        found.append(
            Digests(
                all_hashes[start * HASH_BYTES : end * HASH_BYTES],
                all_marks[start * MARK_BYTES : end * MARK_BYTES],
                all_lasts[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES],
            )
        )
        start = end
    return found


def _chain_hashlib(key: bytes, parent: bytes, data: bytes, block_bytes: int) -> Digests:
    """The readable form, and the one the kernel is compared with."""
    zeros = bytes(-block_bytes % _COMPRESSION_BYTES)
    digests: list[bytes] = []
    span = hashlib.blake2s(key=key)
    for start in range(0, len(data) - block_bytes + 1, block_bytes):
        if digests and len(digests) % SPAN_BLOCKS == 0:
            parent = digests[-1]
            span = hashlib.blake2s(key=key)
        span.update(data[start : start + block_bytes] + zeros)
        block = span.copy()
        block.update(parent)
        digests.append(block.digest())
    hashes = b"".join(digest[:HASH_BYTES] for digest in digests)
    marks = b"".join(digest[HASH_BYTES : HASH_BYTES + MARK_BYTES] for digest in digests)
    return Digests(hashes, marks, digests[-1] if digests else parent)
