"""Chain hashes: recorded vectors, chaining, and what must change them."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.index.hashing import (
    DIGEST_BYTES,
    ROOT_PARENT,
    _chain_compiled,
    _chain_hashlib,
    chain_hashes,
)

KEY = bytes(range(32))
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40).map(lambda t: np.array(t, dtype=np.uint32))


@pytest.mark.parametrize(
    ("token_count", "block_tokens", "expected"),
    [
        (32, 16, "8e8c528ce0dae081804a19e509ca2c847aaa688f5b193d7c43640b7af47c4514"),
        (5, 2, "f62ad954ef076bfb992b2f37a840daf238c80c16e0a436ddb60b161a763f3123"),
        (1, 2, ""),
    ],
)
def test_recorded_vectors(token_count: int, block_tokens: int, expected: str) -> None:
    tokens = np.arange(token_count, dtype=np.uint32)
    assert chain_hashes(KEY, ROOT_PARENT, tokens, block_tokens).hex() == expected


def test_first_block_is_keyed_blake2b_of_parent_and_little_endian_tokens() -> None:
    tokens = np.array([1, 0x01020304], dtype=np.uint32)
    message = ROOT_PARENT + bytes([1, 0, 0, 0, 4, 3, 2, 1])
    expected = hashlib.blake2b(message, key=KEY, digest_size=16).digest()
    assert chain_hashes(KEY, ROOT_PARENT, tokens, 2) == expected


@given(tokens=TOKENS, block_tokens=st.integers(1, 20), cut=st.integers(0, 20))
def test_continuing_from_a_block_boundary_equals_one_pass(
    tokens: np.ndarray, block_tokens: int, cut: int
) -> None:
    whole = chain_hashes(KEY, ROOT_PARENT, tokens, block_tokens)
    assert len(whole) == len(tokens) // block_tokens * DIGEST_BYTES
    cut = min(cut, len(tokens) // block_tokens)
    front = chain_hashes(KEY, ROOT_PARENT, tokens[: cut * block_tokens], block_tokens)
    parent = front[-DIGEST_BYTES:] or ROOT_PARENT
    assert front + chain_hashes(KEY, parent, tokens[cut * block_tokens :], block_tokens) == whole


@given(tokens=TOKENS.filter(len), data=st.data())
def test_any_changed_token_key_or_parent_changes_all_that_follows_and_nothing_before(
    tokens: np.ndarray, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(tokens) - 1))
    other = tokens.copy()
    other[at] ^= np.uint32(1 << data.draw(st.integers(0, 31)))
    a, b = (chain_hashes(KEY, ROOT_PARENT, t, 1) for t in (tokens, other))
    same = [a[i : i + 16] == b[i : i + 16] for i in range(0, len(a), 16)]
    assert same == [i < at for i in range(len(tokens))]
    assert chain_hashes(KEY[::-1], ROOT_PARENT, tokens, 1)[:16] != a[:16]
    assert chain_hashes(KEY, b"\1" + ROOT_PARENT[1:], tokens, 1)[:16] != a[:16]


def test_impossible_arguments_are_refused() -> None:
    tokens = np.arange(4, dtype=np.uint32)
    for key, parent, block in ((KEY[:31], ROOT_PARENT, 2), (KEY, b"", 2), (KEY, ROOT_PARENT, 0)):
        with pytest.raises(ValueError, match="expected 32, 16 and at least 1"):
            chain_hashes(key, parent, tokens, block)
    with pytest.raises(ValueError, match="uint32"):
        chain_hashes(KEY, ROOT_PARENT, tokens.astype(np.int64), 2)  # type: ignore[arg-type]


@settings(deadline=None)
@given(
    key=st.binary(min_size=32, max_size=32),
    parent=st.binary(min_size=16, max_size=16),
    block_tokens=st.integers(1, 70),
    block_count=st.integers(0, 4),
    data=st.data(),
)
def test_the_compiled_chain_is_the_library_s(
    key: bytes, parent: bytes, block_tokens: int, block_count: int, data: st.DataObject
) -> None:
    """From less than one compression block (128 bytes) to three, full and partial."""
    seed = data.draw(st.integers(0, 1000))
    tokens = np.random.default_rng(seed).integers(0, 2**32, block_tokens * block_count + 1, dtype=np.uint32)
    expected = _chain_hashlib(key, parent, tokens.tobytes(), 4 * block_tokens)
    assert _chain_compiled(key, parent, tokens, block_tokens)[: len(expected)] == expected
