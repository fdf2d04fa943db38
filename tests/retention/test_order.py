"""Which of two blocks goes first, by hand, for each policy."""

from __future__ import annotations

import pytest

from kvshare_research.core.ports import BlockView, Retention
from kvshare_research.retention.fifo import FifoRetention
from kvshare_research.retention.gdsf import GdsfRetention
from kvshare_research.retention.lfu import LfuRetention
from kvshare_research.retention.lrfu import LrfuRetention
from kvshare_research.retention.lru import LruRetention
from kvshare_research.retention.s3fifo import S3FifoRetention


def block(stored: int, used: int, count: int, depth: int = 0) -> BlockView:
    return BlockView(slot=0, scope_id=0, depth=depth, stored_us=stored, used_us=used, use_count=count, recompute_us=10)


NEW = block(stored=900, used=900, count=0)
OLD_FAVOURITE = block(stored=100, used=500, count=50)
REUSED = block(stored=200, used=800, count=1)
GDSF = GdsfRetention(worth=1.0, depth_ratio=0.5)


@pytest.mark.parametrize(
    ("policy", "goes_first_to_last"),
    [
        (LruRetention(), [OLD_FAVOURITE, REUSED, NEW]),
        (FifoRetention(), [OLD_FAVOURITE, REUSED, NEW]),
        (LfuRetention(), [NEW, REUSED, OLD_FAVOURITE]),
        (LrfuRetention(doubling_us=1), [OLD_FAVOURITE, REUSED, NEW]),
        (LrfuRetention(doubling_us=150), [NEW, REUSED, OLD_FAVOURITE]),
        (S3FifoRetention(), [NEW, OLD_FAVOURITE, REUSED]),
        (GDSF, [REUSED, NEW, OLD_FAVOURITE]),
        (GDSF, [block(0, 0, 1, depth=1), block(0, 0, 1, depth=4), block(0, 0, 3, depth=4)]),
        (LfuRetention(), [block(0, 10**12, 7), block(0, 10**12 + 1, 7), block(0, 0, 8)]),
    ],
)
def test_order(policy: Retention, goes_first_to_last: list[BlockView]) -> None:
    scores = [policy.score(b, 1000) for b in goes_first_to_last]
    assert scores == sorted(scores)
    assert len(set(scores)) == len(scores)
