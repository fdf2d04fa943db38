"""Chain digests: recorded vectors, chaining, and what must change them."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.index.hashing import (
    ROOT_PARENT,
    SPAN_BLOCKS,
    Stretch,
    _chain_compiled,
    _chain_hashlib,
    chain_digests,
    digests_of,
)

KEY = bytes(range(32))
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40).map(lambda t: np.array(t, dtype=np.uint32))


@pytest.mark.parametrize(
    ("token_count", "block_tokens", "hashes", "marks"),
    [
        (
            32,
            16,
            "29a0c19bb7ac902dd7bf7176a4a316446bcb57ca9660e77bc6e55d93f7929703",
            "aebb069d628d655506660fbb0fd26737",
        ),
        (5, 2, "d4d088007d1bc9cf80c37fc0dde8813cb27116aca3f2ce3aa85bc1eaf8b08443", "a5aa742847f42e81f25fede0f5558301"),
        (1, 2, "", ""),
    ],
)
def test_recorded_vectors(token_count: int, block_tokens: int, hashes: str, marks: str) -> None:
    tokens = np.arange(token_count, dtype=np.uint32)
    found = chain_digests(KEY, ROOT_PARENT, tokens, block_tokens)
    assert (found.hashes.hex(), found.marks.hex()) == (hashes, marks)


def test_the_library_keeps_the_published_vectors() -> None:
    """RFC 7693, appendix B, and the first of the reference implementation's keyed vectors."""
    abc, empty = hashlib.blake2s(b"abc"), hashlib.blake2s(b"", key=KEY)
    assert abc.hexdigest() == "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982"
    assert empty.hexdigest() == "48a8997da407876b3d79c0d92325ad3b89cbb754d86ab71aee047ad345fd2c49"


def test_a_block_is_keyed_blake2s_of_its_span_so_far_and_the_block_before_the_span() -> None:
    tokens = np.arange(2 * (SPAN_BLOCKS + 2), dtype=np.uint32)
    padded = [tokens[i : i + 2].tobytes() + bytes(56) for i in range(0, len(tokens), 2)]

    def digest(message: list[bytes], parent: bytes) -> bytes:
        return hashlib.blake2s(b"".join(message) + parent, key=KEY).digest()

    first = [digest(padded[: i + 1], ROOT_PARENT) for i in range(SPAN_BLOCKS)]
    digests = [*first, *(digest(padded[SPAN_BLOCKS : SPAN_BLOCKS + i + 1], first[-1]) for i in range(2))]
    found = chain_digests(KEY, ROOT_PARENT, tokens, 2)
    assert found.hashes == b"".join(d[:16] for d in digests)
    assert found.marks == b"".join(d[16:24] for d in digests)
    assert found.last == digests[-1]


@settings(deadline=None)
@given(block_tokens=st.integers(1, 20), count=st.integers(0, 40), data=st.data())
def test_continuing_from_the_end_of_a_span_equals_one_pass(block_tokens: int, count: int, data: st.DataObject) -> None:
    tokens = np.arange(count * block_tokens, dtype=np.uint32)
    whole = chain_digests(KEY, ROOT_PARENT, tokens, block_tokens)
    assert (len(whole.hashes), len(whole.marks)) == (16 * count, 8 * count)
    cut = data.draw(st.integers(0, count // SPAN_BLOCKS)) * SPAN_BLOCKS
    front = chain_digests(KEY, ROOT_PARENT, tokens[: cut * block_tokens], block_tokens)
    rest = chain_digests(KEY, front.last, tokens[cut * block_tokens :], block_tokens)
    assert (front.hashes + rest.hashes, front.marks + rest.marks, rest.last) == whole


@given(tokens=TOKENS.filter(len), data=st.data())
def test_any_changed_token_key_or_parent_changes_all_that_follows_and_nothing_before(
    tokens: np.ndarray, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(tokens) - 1))
    other = tokens.copy()
    other[at] ^= np.uint32(1 << data.draw(st.integers(0, 31)))
    a, b = (chain_digests(KEY, ROOT_PARENT, t, 1) for t in (tokens, other))
    for one, two, size in ((a.hashes, b.hashes, 16), (a.marks, b.marks, 8)):
        same = [one[i : i + size] == two[i : i + size] for i in range(0, len(one), size)]
        assert same == [i < at for i in range(len(tokens))]
    for key, parent in ((KEY[::-1], ROOT_PARENT), (KEY, ROOT_PARENT[:-1] + b"\1")):
        assert chain_digests(key, parent, tokens, 1).hashes[:16] != a.hashes[:16]


def test_impossible_arguments_are_refused() -> None:
    tokens = np.arange(4, dtype=np.uint32)
    for key, parent, block in ((KEY[:31], ROOT_PARENT, 2), (KEY, b"", 2), (KEY, ROOT_PARENT, 0)):
        with pytest.raises(ValueError, match="expected 32, 32 and at least 1"):
            chain_digests(key, parent, tokens, block)
    with pytest.raises(ValueError, match="uint32"):
        chain_digests(KEY, ROOT_PARENT, tokens.astype(np.int64), 2)  # type: ignore[arg-type]


@settings(deadline=None)
@given(
    key=st.binary(min_size=32, max_size=32),
    parent=st.binary(min_size=32, max_size=32),
    block_tokens=st.integers(1, 70),
    block_count=st.integers(0, 4) | st.integers(15, 34) | st.integers(250, 300),
    data=st.data(),
)
def test_the_compiled_chain_is_the_library_s(
    key: bytes, parent: bytes, block_tokens: int, block_count: int, data: st.DataObject
) -> None:
    """From less than one compression (64 bytes) per block to five; spans and groups of spans, full and partial."""
    seed = data.draw(st.integers(0, 1000))
    tokens = np.random.default_rng(seed).integers(
        0, 2**32, block_tokens * block_count + block_tokens // 2, dtype=np.uint32
    )
    expected = _chain_hashlib(key, parent, tokens.tobytes(), 4 * block_tokens)
    assert _chain_compiled(key, parent, tokens, block_tokens) == expected


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(
        st.lists(st.sampled_from([1, 2, 15, 16, 17, 33]), min_size=1, max_size=3), min_size=1, max_size=20
    ),
    block_tokens=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
def test_prompts_hashed_together_are_hashed_as_each_alone(
    lengths: list[list[int]], block_tokens: int, seed: int
) -> None:
    """Stretches of any number of blocks under keys of their own, each prompt's going on from one to the next."""
    chance = np.random.default_rng(seed)
    stretches, expected = [], []
    for prompt in lengths:
        parent = ROOT_PARENT
        for at, blocks in enumerate(prompt):
            key = chance.bytes(32)
            tokens = chance.integers(0, 2**32, blocks * block_tokens, dtype=np.uint32)
            expected.append(_chain_hashlib(key, parent, tokens.tobytes(), 4 * block_tokens))
            stretches.append(Stretch(key, tokens, at > 0))
            parent = expected[-1].last
    assert digests_of(stretches, block_tokens) == expected
