"""Measured against simulated: pairs by request, over seeds, and nothing where there is no twin."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from experiments.fidelity.judge import table, verdict
from kvshare_research.core.nouns import Outcome, Status
from kvshare_research.metrics.fidelity import fidelities
from kvshare_research.metrics.records import CaseResult, Label
from kvshare_research.report.artefacts import build


def outcome(number: int, ttft_us: int, **values: int) -> Outcome:
    parts = {"queue_us": ttft_us // 4, "prefill_us": ttft_us - ttft_us // 4} | values
    return Outcome(
        request_id=number, tenant_id=1, application="", status=Status.DONE, ttft_us=ttft_us, end_to_end_us=2 * ttft_us,
        prompt_tokens=10, computed_tokens=10, **parts,
    )  # fmt: skip


def case(seed: int, factor: float, block: str = "first") -> CaseResult:
    measured = tuple(outcome(i, 1_000 * (i + 1)) for i in range(20))
    simulated = tuple(outcome(i, int(factor * 1_000 * (i + 1))) for i in range(20))
    return CaseResult(
        label=Label.EMULATED, selector="cheapest", tenancy="layered", link="loopback", seed=seed, utilisation=0.5,
        extra=(("block", block),), outcomes=measured, simulated=simulated, expected_requests=20,
    )  # fmt: skip


def test_seeds_are_pooled_and_requests_paired() -> None:
    (row,) = fidelities([case(0, 1.1), case(1, 1.1), replace(case(2, 1.0), simulated=())])
    assert row.pairs == 40
    assert abs(row.p50_us[1] / row.p50_us[0] - 1.1) < 1e-9
    assert abs(row.p95_us[1] / row.p95_us[0] - 1.1) < 1e-9
    assert abs(row.request_error - 0.1) < 1e-9
    assert row.same_executor == 1.0
    queue, _, prefill, _ = row.parts_us
    assert queue[1] > queue[0]
    assert prefill[1] > prefill[0]


def test_requests_that_only_one_of_them_answered_are_no_pair() -> None:
    given = case(0, 1.0)
    lost = structs.replace(given.simulated[3], status=Status.REJECTED)
    (row,) = fidelities([replace(given, simulated=(*given.simulated[:3], lost, *given.simulated[4:15]))])
    assert row.pairs == 14


def test_the_report_says_it_for_every_case_with_a_twin() -> None:
    titles = [t.title for t in build([case(0, 1.1)]).tables]
    assert "Simulated against measured" in titles
    assert "Simulated against measured, by component" in titles
    (row,) = next(t for t in build([case(0, 1.1)]).tables if t.title == "Simulated against measured").rows
    assert "+10 %" in row
    assert not [t for t in build([replace(case(0, 1.1), simulated=())]).tables if t.title.startswith("Simulated ag")]


def test_the_verdict_allows_ten_percent_or_the_spread_of_two_runs() -> None:
    assert verdict((100.0, 95.0), (100.0, 95.0), 0.1)[2] == "within"
    assert verdict((100.0, 85.0), (100.0, 85.0), 0.1)[2] == "OUTSIDE"
    assert verdict((80.0, 115.0), (120.0, 115.0), 0.1)[2] == "within"
    lines, good = table((case(0, 1.05), case(0, 1.05, "second")))
    assert good
    assert len(lines) == 2 + 2 + 2  # TTFT, and the parts that took any time
    assert not table((case(0, 1.5), case(0, 1.5, "second")))[1]
    loaded = tuple(replace(case(0, 1.5, name), utilisation=0.9) for name in ("first", "second"))
    lines, good = table(loaded)
    assert good
    assert "not judged" in lines[2]
