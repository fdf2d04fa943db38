"""How many requests a case plays and leaves out: the workload's own number, the trace's length, or the study's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments.fleet import setting
from kvshare_research.core.errors import ConfigError
from kvshare_research.report.progress import Silent
from kvshare_research.study.simulated import SimulatedSession
from tests.study.test_simulated import trace

STUDY = "study.blocks=[{name: b, requests: 9, warmup_requests: 3}]"
DRAWN = ("workload=conversations", "driver.node_count=2")
MADE = ("engine=tiny", "tenants=demo", "driver.pool_tokens=20000")


def played(*overrides: str) -> tuple[int, int]:
    """(all, warm-up) of the one case."""
    session = SimulatedSession(run=setting(*overrides), progress=Silent())
    session.play()
    (case,) = session.results
    return len(case.outcomes), sum(o.warmup for o in case.outcomes)


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        ((*DRAWN, "workload.request_count=40"), (40, 4)),
        ((*DRAWN, "workload.request_count=40", STUDY), (40, 4)),
        ((*DRAWN, "workload.request_count=40", STUDY, "driver.warmup_ratio=0.5"), (40, 20)),
        ((*MADE, STUDY), (12, 3)),
        ((*MADE, STUDY, "workload.request_count=7"), (7, 3)),
        ((*MADE, "study.blocks=[{name: b, requests: 20}]"), (20, 2)),
    ],
)
def test_what_was_asked_for_is_played(overrides: tuple[str, ...], wanted: tuple[int, int]) -> None:
    assert played(*overrides) == wanted


@pytest.mark.parametrize(("given", "wanted"), [("null", (120, 12)), ("50", (50, 5)), ("500", (120, 12))])
def test_a_trace_is_played_whole_or_as_far_as_asked(given: str, wanted: tuple[int, int], tmp_path: Path) -> None:
    root = trace(tmp_path)
    words = ("workload=mooncake", f"data_root={root}", f"workload.request_count={given}", "driver.node_count=3")
    assert played(*words, STUDY) == wanted


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((*MADE, STUDY, "workload.request_count=3"), "`workload.request_count` is 3 and block `b` of the study leaves"),
        ((*DRAWN, "study.blocks=[{name: b, requests: 9, utilisation: [0.5]}]"), "dials `utilisation`, but a trace has"),
    ],
)
def test_what_cannot_be_kept_is_said(overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        played(*overrides)
