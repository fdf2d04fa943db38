"""Rows conserve what they count, pair what belongs together, and never exceed the bound."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from kvshare_research.core.nouns import Action, Outcome, Status
from kvshare_research.metrics.pairing import group_cases
from kvshare_research.metrics.pulls import pulls
from kvshare_research.metrics.records import CaseResult, Label
from kvshare_research.metrics.summary import Row, summarise

from .synthetic import make_case, make_study


def _rows(*cases: CaseResult) -> dict[str, Row]:
    return {row.key.selector: row for row in summarise(cases)}


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), overlap=st.sampled_from([0.0, 0.3, 0.5, 0.8, 0.95]), rejected=st.integers(0, 12))
def test_tokens_and_times_are_conserved(seed: int, overlap: float, rejected: int) -> None:
    case = make_case(seed=seed, overlap=overlap, count=12, rejected=rejected)
    (row,) = summarise([case])
    reuse = row.reuse
    assert reuse.computed + reuse.resident + reuse.routed + reuse.pulled == reuse.prompt
    assert reuse.same_tenant + reuse.cross_tenant == reuse.reused
    assert reuse.unexplained == 0
    assert row.done + row.rejected + row.failed == row.expected == 12
    assert sum(count for _, count in row.actions) == row.done
    for parts, total in (
        (row.components_us, sum(o.ttft_us for o in case.done())),
        (row.quoted_us, sum(o.quoted_ttft_us for o in case.done())),
    ):
        assert sum(us for _, us in parts) == pytest.approx(total / max(1, row.done))


def test_idle_saving_stays_within_the_bound_and_close_to_it() -> None:
    for overlap in (0.3, 0.5, 0.8):
        cases = [make_case(s, overlap=overlap, noise=0.0) for s in ("recompute_always", "route_to_longest_prefix")]
        saved = _rows(*cases)["route_to_longest_prefix"].savings
        assert saved is not None
        assert saved.pairs == 40
        assert saved.prefill_share.value <= saved.bound <= overlap
        assert not saved.breaks_bound


def test_a_measurement_that_beats_the_bound_is_caught() -> None:
    base = make_case("recompute_always")
    ours = make_case("cheapest")
    lying = replace(
        ours,
        outcomes=tuple(
            structs.replace(o, prefill_us=o.prefill_us // 20, fetch_us=0, overlap_us=0) for o in ours.outcomes
        ),
    )
    saved = _rows(base, lying)["cheapest"].savings
    assert saved is not None
    assert saved.breaks_bound


def test_identical_answers_are_counted_and_a_changed_one_is_not() -> None:
    base, ours = make_case("recompute_always"), make_case("cheapest")
    row = _rows(base, ours)["cheapest"]
    assert row.identity is not None
    assert (row.identity.identical, row.identity.compared) == (40, 40)
    assert 0 < row.identity.largest_logit_difference < 1e-3
    first = structs.replace(ours.outcomes[0], output_tokens=(1, 2), logit_fingerprint=(math.nan, 1.0))
    row = _rows(base, replace(ours, outcomes=(first, *ours.outcomes[1:])))["cheapest"]
    assert row.identity is not None
    assert (row.identity.identical, row.identity.compared, row.identity.not_a_number) == (39, 40, 1)


def test_requests_are_paired_by_seed_and_index_not_by_order() -> None:
    base, ours = make_case("recompute_always"), make_case("cheapest")
    shuffled = replace(ours, outcomes=ours.outcomes[::-1])
    assert _rows(base, ours)["cheapest"].savings == _rows(base, shuffled)["cheapest"].savings
    other_seed = _rows(make_case("recompute_always", seed=2), ours)["cheapest"]
    assert other_seed.savings is not None
    assert other_seed.savings.pairs == 0
    assert not other_seed.savings.ttft_share.known


def test_seeds_are_pooled_and_doubles_refused() -> None:
    rows = summarise([make_case(seed=1), make_case(seed=2)])
    assert [r.seeds for r in rows] == [(1, 2)]
    assert rows[0].ttft.samples == 80
    with pytest.raises(ValueError, match="two results"):
        group_cases([make_case(seed=1), make_case(seed=1)])


def test_the_nearest_baseline_is_taken_and_named() -> None:
    base = make_case("recompute_always")
    ours = make_case("cheapest", link="1 Gbit/s, 10 ms", label=Label.EMULATED)
    row = _rows(base, ours)["cheapest"]
    assert row.savings is not None
    assert "link loopback" in row.savings.baseline_note
    assert _rows(make_case("recompute_always", overlap=0.3), ours)["cheapest"].savings is None


def test_a_complete_case_is_not_compared_with_a_partial_one() -> None:
    base = replace(make_case("recompute_always"), partial=True)
    assert _rows(base, make_case("cheapest"))["cheapest"].savings is None


def test_warmup_and_zero_outcomes() -> None:
    case = make_case(count=8)
    warm = replace(case, outcomes=tuple(structs.replace(o, warmup=True) for o in case.outcomes))
    for empty in (warm, replace(case, outcomes=(), expected_requests=0)):
        (row,) = summarise([empty])
        assert row.done == 0
        assert not row.ttft.p50.known
        assert math.isnan(row.reuse.share)


def test_storage_prediction_and_decisions() -> None:
    (row,) = summarise([make_case()])
    assert row.storage.fleet == pytest.approx(560 / 400)
    assert row.storage.per_node == pytest.approx((1.0, 260 / 250))
    assert (row.prediction.fit.samples, row.prediction.unseen.samples) == (4, 36)
    assert 0 < row.prediction.unseen.median < 0.2
    assert 150 <= row.decide.p50.value <= 200
    assert 0 < row.decide_share < 0.01
    assert row.steadiness is None


def test_a_probe_gives_the_cost_of_a_pull_by_pairs() -> None:
    local = make_case("local_hit")
    far = tuple(structs.replace(o, ttft_us=o.ttft_us + 1000 * (1 + i % 3)) for i, o in enumerate(local.outcomes))
    (row,) = pulls([local, replace(local, selector="remote_hit", outcomes=far[::-1]), make_case("recompute_always")])
    assert row.pairs == 40
    assert (row.extra_ttft.value, row.extra_ttft.samples) == (2000.0, 40)
    assert row.remote_ttft.value > row.local_ttft.value
    assert not pulls([replace(local, partial=True), replace(local, selector="remote_hit")])
    assert not pulls([local])


def test_zero_utilisation_is_idle() -> None:
    assert replace(make_case(), utilisation=0.0).key == make_case().key


def test_refusals_are_listed_and_study_rows_are_deterministic() -> None:
    (row,) = summarise([make_case(rejected=3, utilisation=0.7)])
    assert row.refusals == (("quota", 3),)
    assert row.steadiness is not None
    assert repr(summarise(make_study(12))) == repr(summarise(make_study(12)))


def test_failed_outcomes_do_not_count_as_served() -> None:
    failed = Outcome(
        request_id=9, tenant_id=0, application="", status=Status.FAILED, action=Action.PULL, reason="deadline"
    )
    case = make_case(count=4)
    (row,) = summarise([replace(case, outcomes=(*case.outcomes, failed), expected_requests=5)])
    assert (row.done, row.failed) == (4, 1)
    assert not row.partial
