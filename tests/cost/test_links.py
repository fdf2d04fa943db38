"""The link table: it converges, it prices tails and silence, and a change leaves the old table as it was."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvshare_research.core.errors import ConfigError
from kvshare_research.cost.links import LinkMatrix, LinkModel, LinkTable, matrix_of

MODEL = LinkModel(rtt_us=1_000, ps_per_byte=1_000, stale_us=1_000_000)
MIB = 1 << 20


def test_unmeasured_links_are_as_assumed_and_the_diagonal_is_free() -> None:
    matrix = LinkTable.start(3, MODEL).matrix(10**9)
    assert [[link.rtt_us for link in row] for row in matrix] == [[0, 1000, 1000], [1000, 0, 1000], [1000, 1000, 0]]
    assert matrix[0][1].rtt_high_us == 1000 + 2 * 500
    assert not np.diagonal(matrix.layers, axis1=1, axis2=2).any()


def test_a_constant_link_is_learned_exactly_and_its_spread_goes() -> None:
    table = LinkTable.start(2, MODEL)
    for _ in range(60):
        table = table.measured(0, 1, 0, 10_000, 0)
        table = table.measured(0, 1, MIB, 10_000 + MIB // 125, 0)  # 1 Gbit/s: 125 bytes a microsecond
    link = table.matrix(0)[0][1]
    assert link.rtt_us == 10_000
    assert abs(link.ps_per_byte - 8_000) <= 2
    assert link.rtt_high_us - link.rtt_us <= 10
    assert table.matrix(0)[1][0].rtt_us == 1_000  # the other direction is another link


def test_the_high_value_covers_most_of_what_comes_next() -> None:
    """Log-normal round trips around 20 ms: at least 85 % of the next samples lie under the quantile of the moment."""
    draw = random.Random(3)
    table = LinkTable.start(2, MODEL)
    covered: list[bool] = []
    for _ in range(400):
        sample = int(20_000 * draw.lognormvariate(0, 0.5))
        covered.append(sample <= table.matrix(0)[0][1].rtt_high_us)
        table = table.measured(0, 1, 0, sample, 0)
    assert sum(covered[50:]) >= 0.85 * len(covered[50:])
    assert not all(covered)
    assert 15_000 < table.matrix(0)[0][1].rtt_us < 35_000


def test_silence_widens_up_to_half_of_the_mean() -> None:
    table = LinkTable.start(2, MODEL).measured(0, 1, 0, 2_000, 0)
    at = [table.matrix(now)[0][1].rtt_high_us for now in (0, 500_000, 1_000_000, 10**9)]
    assert at == [4_000, 4_500, 5_000, 5_000]


def test_a_short_transfer_says_nothing_of_the_rate() -> None:
    table = LinkTable.start(2, MODEL).measured(0, 1, 100, 50_000, 0)
    assert table.matrix(0)[0][1].ps_per_byte == MODEL.ps_per_byte


@given(st.lists(st.integers(1, 10**9), max_size=8))
def test_bytes_under_way_return_to_nothing(sizes: list[int]) -> None:
    start = LinkTable.start(2, MODEL)
    table = start
    for size in sizes:
        table = table.sending(1, 0, size)
    assert table.matrix(0)[1][0].inflight_bytes == sum(sizes)
    for size in sizes:
        table = table.sending(1, 0, -size)
    assert table.matrix(0)[1][0].inflight_bytes == 0 == start.matrix(0)[1][0].inflight_bytes


def test_rows_and_matrices_say_the_same() -> None:
    table = LinkTable.start(3, MODEL).measured(0, 2, 0, 7_000, 0).sending(2, 1, 55)
    matrix = table.matrix(0)
    again = matrix_of(tuple(matrix))
    assert isinstance(again, LinkMatrix)
    assert tuple(again) == tuple(matrix) == matrix[:]
    assert matrix_of(matrix) is matrix


def test_a_negative_prior_is_refused() -> None:
    with pytest.raises(ConfigError, match="rtt_us"):
        LinkModel(rtt_us=-1)
