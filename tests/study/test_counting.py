"""What is kept of an answer tells equal from different, and nothing else."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.study.counting import digest_of

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=6)
KEY, OTHER = b"k" * 32, b"l" * 32


@given(TOKENS, TOKENS)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_digests_are_equal_where_answers_are(one: list[int], two: list[int]) -> None:
    assert (digest_of(one, KEY) == digest_of(two, KEY)) == (one == two)
    assert digest_of(one, KEY) == digest_of(tuple(one), KEY)
    if one:
        assert digest_of(one, KEY) != digest_of(one, OTHER)  # who lacks the key cannot try answers
        assert len(digest_of(one, KEY)) == 32
