"""Studies and their cases: what is compared with what, and what a mistake says."""

from __future__ import annotations

import re

import pytest

from experiments.fleet import setting
from kvshare_research.cli import conf_root
from kvshare_research.core.errors import ConfigError
from kvshare_research.study.plan import Block, Study, cases
from kvshare_research.study.settings import case_config, choice, name_of
from kvshare_research.study.simulated import build_fleet


def test_cases_are_the_product_of_the_axes_with_the_policies_side_by_side() -> None:
    """Every combination once; the selectors of one comparison are neighbours."""
    block = Block(name="b", requests=4, overlap=(0.3, 0.5), selector=("a", "b"), seeds=(0, 1), utilisation=(0.5,))
    found = cases(Study(title="t", blocks=(block,)))

    assert len(found) == len(set(found)) == 8
    assert [c.selector for c in found[:2]] == ["a", "b"]
    assert len({(c.overlap, c.seed) for c in found[:2]}) == 1


def test_a_case_changes_only_what_it_names() -> None:
    """Axes that a block leaves open keep the run's own setting, and the study itself is not part of a case."""
    block = Block(name="b", requests=1, selector=("gorgo",))
    (case,) = cases(Study(title="t", blocks=(block,)))
    run = {"selector": choice("selector", "cheapest"), "link": choice("link", "loopback"), "workload": {}, "study": {}}
    config = case_config(run, case)

    assert config["selector"] == choice("selector", "gorgo")
    assert config["link"] == run["link"]
    assert "study" not in config


def test_what_a_choice_takes_from_the_rest_is_that_of_the_run() -> None:
    """A limit, or the folder of data, that stands in one place."""
    block = Block(name="b", requests=1, prefetch=("queue_lookahead",), link=("cloud_regions",))
    (case,) = cases(Study(title="t", blocks=(block,)))
    run = {"limits": {"admitted_max": 7}, "data_root": "/data", "workload": {}}
    config = case_config(run, case)
    assert config["prefetch"]["admitted_max"] == 7
    assert config["link"]["data_root"] == "/data"
    assert name_of("prefetch", config["prefetch"]) == "queue_lookahead"


def test_how_many_a_worker_admits_stands_in_one_place() -> None:
    run = setting("engine=tiny", "driver.pool_tokens=20000", "limits.admitted_max=7", "prefetch=queue_lookahead")
    assert run.parts["prefetch"].admitted_max == 7
    workers = build_fleet(run, dict(run.resolved)).simulator.workers
    assert {worker.policy.admitted_max for worker in workers} == {7}
    said = [
        path.name for path in conf_root().rglob("*.yaml") if re.search(r"^admitted_max: \d", path.read_text(), re.M)
    ]
    assert said == ["default.yaml"]


def test_a_hand_changed_component_is_named_as_such() -> None:
    """A label never claims the published setting for values that somebody changed."""
    plain = choice("selector", "gorgo")
    assert name_of("selector", plain) == "gorgo"
    assert name_of("selector", plain | {"rtt_weight_per_ms": 9.0}) == "gorgo*"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"overlap": (1.0,)}, "`overlap` is a share of the prompt"),
        ({"utilisation": (-1.0,)}, "`utilisation` is arrival rate over capacity"),
        ({"requests": 0}, "`requests` must be at least 1"),
        ({"seeds": ()}, "expected at least one seed"),
    ],
)
def test_an_impossible_block_says_what_is_wrong(change: dict[str, object], words: str) -> None:
    """One line that names the block, the value and what was expected."""
    with pytest.raises(ConfigError, match=words):
        Block(**({"name": "b", "requests": 1} | change))  # type: ignore[arg-type]


def test_an_unknown_choice_names_the_nearest() -> None:
    """A study is held to the same manners as a command line."""
    with pytest.raises(ConfigError, match="did you mean `cheapest`"):
        choice("selector", "cheepest")
