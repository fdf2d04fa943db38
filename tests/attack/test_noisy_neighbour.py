"""Floors keep the victims' cache and a fair schedule their turn; without them a flood takes both."""

from __future__ import annotations

from dataclasses import replace

from kvshare_research.attack.noisy_neighbour import GUARDS, NoisyNeighbour, Suffered

SMALL = NoisyNeighbour(
    nodes=1, capacity_blocks=64, us_per_token=200, hot_prefixes=2, prefix_blocks=6, victim_gap_us=120_000,
    aggressor_gap_us=25_000, aggressor_blocks=8, calm_us=2_000_000, flood_us=6_000_000, seed=3,
)  # fmt: skip


def suffered(name: str) -> Suffered:
    (guard,) = [g for g in GUARDS if g.name == name]
    return SMALL.suffered(guard)


def test_a_flood_takes_turn_and_cache_where_nothing_stands_against_it() -> None:
    calm, bare, guarded = suffered("no aggressor"), suffered("shared pool, fcfs"), suffered("floors, vtc")
    assert calm.answered_ratio == 1
    assert bare.answered_ratio < 0.9
    assert bare.hit_ratio < calm.hit_ratio - 0.1
    assert guarded.hit_ratio > calm.hit_ratio - 0.05
    assert guarded.ttft_p99_us < bare.ttft_p99_us / 5


def test_the_verdict_can_fail() -> None:
    rows = [suffered(name) for name in ("no aggressor", "shared pool, fcfs", "floors, vtc")]
    unprotected = [replace(row, hit_ratio=0.0) if row.guard == "floors, vtc" else row for row in rows]
    assert not SMALL.protects(unprotected)
