"""Which of two blocks goes first, by hand, for each policy."""

from __future__ import annotations

import pytest

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.ports import BlockView, Retention
from kvshare_research.retention.belady import BeladyRetention
from kvshare_research.retention.fair_floors import FairFloorsRetention
from kvshare_research.retention.fifo import FifoRetention
from kvshare_research.retention.gdsf import GdsfRetention
from kvshare_research.retention.h2o import H2oRetention
from kvshare_research.retention.lfu import LfuRetention
from kvshare_research.retention.look_ahead import LookAheadRetention
from kvshare_research.retention.lrfu import LrfuRetention
from kvshare_research.retention.lru import LruRetention
from kvshare_research.retention.prefixshield import PrefixShieldRetention
from kvshare_research.retention.s3fifo import S3FifoRetention
from kvshare_research.retention.ttl import TtlRetention


def block(stored: int, used: int, count: int, depth: int = 0, **more: float) -> BlockView:
    return BlockView(
        slot=0, scope_id=0, depth=depth, stored_us=stored, used_us=used, use_count=count, recompute_us=10, **more  # type: ignore[arg-type]
    )  # fmt: skip


def used(at_us: int, count: int = 0, **more: float) -> BlockView:
    return block(0, at_us, count, **more)


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
        # expire at 550 (user), 600 (tenant), 700 (session), 1100 (public)
        (
            TtlRetention(ttl_us=(1000, 500, 200, 50, 50)),
            [used(500, level=3), used(400, level=2), used(650, level=4), used(100)],
        ),
        (LookAheadRetention(), [used(100), used(900), used(10, wanted=1), used(20, wanted=1), used(5, wanted=2)]),
        # at 1000: recent since 900, then by mass, then by use
        (
            H2oRetention(recent_us=100),
            [used(800, attention=1), used(10, attention=2), used(20, attention=2), used(901)],
        ),
        # 20, 7 and 7, 0 beyond the floor
        (
            FairFloorsRetention(),
            [
                used(999, account_used=20),
                used(10, account_used=9, account_reserved=2),
                used(20, account_used=7),
                used(1, account_used=4, account_reserved=4),
            ],
        ),
        # debts of 9 and 2.5; without debt by reuse, then by use
        (
            PrefixShieldRetention(refill_blocks_per_s=1, burst_blocks=8),
            [
                used(999, 5, balance_blocks=-9),
                used(100, 3, balance_blocks=-2.5),
                used(200, 0, balance_blocks=-2.5),
                used(1, balance_blocks=0),
                used(2, balance_blocks=8),
                used(0, 1),
                used(0, 2),
                used(1, 9),
            ],
        ),
        (BeladyRetention(), [used(999), used(998, next_use_us=4000), used(1, next_use_us=2000), used(2, wanted=1)]),
    ],
)
def test_order(policy: Retention, goes_first_to_last: list[BlockView]) -> None:
    scores = [policy.score(b, 1000) for b in goes_first_to_last]
    assert scores == sorted(scores)
    assert len(set(scores)) == len(scores)


def test_a_bucket_refills_up_to_its_burst_and_may_be_overdrawn() -> None:
    policy = PrefixShieldRetention(refill_blocks_per_s=2, burst_blocks=8)
    assert policy.refilled(float("inf"), 0) == 8
    assert policy.refilled(-3, 1_000_000) == -1
    assert policy.refilled(7, 10_000_000) == 8
    assert LruRetention().refilled(5, 1) == 0


def test_values_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ConfigError, match="5 times, for public to session"):
        TtlRetention(ttl_us=(1, 2))
    with pytest.raises(ConfigError, match="more than 0"):
        PrefixShieldRetention(refill_blocks_per_s=0, burst_blocks=1)
