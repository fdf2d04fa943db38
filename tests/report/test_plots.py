"""Figures: what each is drawn from, and that nothing of a sweep is mixed up or left out."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from kvshare_research.metrics.records import CaseResult
from kvshare_research.metrics.summary import summarise
from kvshare_research.report.artefacts import build
from kvshare_research.report.canvas import UNSTEADY, look, panels_of
from kvshare_research.report.plots import SAVED_FLOOR, draw_all
from kvshare_research.report.plots_fleet import NODE_LINES, pareto, varied
from kvshare_research.report.tables import as_text
from tests.metrics.synthetic import make_case

NAME = "driver.pool_tokens"


def swept(*values: int) -> list[CaseResult]:
    """A loaded case per selector, value and seed; the selector that moves bytes did so."""
    made = []
    for value in values:
        for selector in ("recompute_always", "cheapest"):
            for seed in (1, 2):
                case = make_case(selector, utilisation=0.8, seed=seed, count=60)
                moved = 10**6 * value if selector == "cheapest" else 0
                counters = replace(case.counters, wire_bytes=moved)
                made.append(replace(case, extra=((NAME, str(value)),), counters=counters))
    return made


def test_a_sweep_over_numbers_is_a_line_per_selector_in_their_order() -> None:
    rows = summarise(swept(9, 80, 700))
    assert varied(rows) == [NAME]
    drawn = {stem: figure for stem, _, figure in draw_all(rows)}
    above, below = drawn["against"].axes
    assert above.get_ylabel() == "prompt tokens reused, %"
    for axis, of in ((above, lambda r: 100 * r.reuse_share.value), (below, lambda r: r.ttft.p50.value / 1e3)):
        lines = {text: bar.lines[0] for bar, text in zip(*axis.get_legend_handles_labels(), strict=True)}
        assert set(lines) == {"recompute_always", "cheapest"}
        for selector, line in lines.items():
            assert line.get_xdata().tolist() == [9, 80, 700]
            wanted = [of(r) for value in (9, 80, 700) for r in rows if r.key == key(rows, selector, value)]
            assert line.get_ydata().tolist() == wanted
    assert len(drawn["load_over_time"].axes) == 6
    assert len(drawn["ttft_against_bytes"].axes) == 3
    panels = [dict(k.extra)[NAME] for k, _ in panels_of(rows)]
    assert panels == ["9", "80", "700"], "numbers, not words, in order"


def key(rows: object, selector: str, value: int) -> object:
    assert isinstance(rows, tuple)
    return next(r.key for r in rows if r.key.selector == selector and dict(r.key.extra)[NAME] == str(value))


def test_one_run_has_no_sweep_and_an_idle_one_no_load() -> None:
    stems = {stem for stem, _, _ in draw_all(summarise([make_case("recompute_always"), make_case()]))}
    assert not stems & {"against", "load_over_time"}
    words = [replace(make_case(), extra=(("retention", word),)) for word in ("lru", "fifo")]
    assert varied(summarise(words)) == []


def test_of_many_nodes_the_spread_is_drawn() -> None:
    case = make_case(utilisation=0.8, count=60)
    many = tuple(structs.replace(o, executor=i % (NODE_LINES + 1)) for i, o in enumerate(case.outcomes))
    (figure,) = (f for stem, _, f in draw_all(summarise([replace(case, outcomes=many)])) if stem == "load_over_time")
    assert figure.axes[0].get_legend_handles_labels()[1] == ["least to most loaded node", "mean of nodes"]


def test_the_front_is_what_none_beats() -> None:
    chance = random.Random(5)
    points = [(float(chance.randrange(20)), float(chance.randrange(20))) for _ in range(60)]
    front = pareto(points)
    assert front == sorted(front)
    for x, y in set(points):
        beaten = any((a, b) != (x, y) and a <= x and b <= y for a, b in points)
        assert beaten != ((x, y) in front)


def studied() -> list[CaseResult]:
    """Idle and loaded, in blocks of these names; one pull is far slower than computing."""
    made = []
    for load in (None, 0.7):
        for overlap in (0.3, 0.8):
            for selector in ("recompute_always", "cheapest"):
                case = make_case(selector, overlap=overlap, utilisation=load, count=60)
                made.append(replace(case, extra=(("block", "loaded" if load else "idle"),)))
    slow = made[1]
    late = tuple(structs.replace(o, fetch_us=10 * o.prefill_us, overlap_us=0) for o in slow.outcomes)
    return [replace(case, outcomes=late) if case is slow else case for case in made]


def test_no_marker_is_cut_and_no_outlier_presses_the_others_together() -> None:
    drawn = draw_all(summarise(studied())) + draw_all(summarise(swept(9, 80, 700)))
    seen = 0
    for stem, _, figure in drawn:
        figure.draw_without_rendering()
        for axis in figure.axes:
            for line in axis.lines:
                if line.get_marker() in ("None", "|", "_", None) or not line.get_clip_on():
                    continue
                for point in axis.transData.transform(line.get_xydata()):
                    below = stem == "saved_by_overlap" and point[1] < axis.bbox.y0
                    assert below or axis.bbox.padded(-2).contains(*point), (stem, axis.get_title())
                    seen += not below
    assert seen > 10
    (saved,) = (figure.axes[0] for stem, _, figure in drawn if stem == "saved_by_overlap")
    assert saved.get_ylim()[0] == SAVED_FLOOR
    (told,) = saved.texts
    assert float(told.get_text().removesuffix(" %")) < SAVED_FLOOR


def test_a_title_says_nothing_twice() -> None:
    """The block of a study that is called by its load adds nothing to the load; where it tells panels apart it stays."""
    cases = studied()
    titles = [axis.get_title() for axis in draw_all(summarise(cases))[0][2].axes]
    assert len(set(titles)) == len(titles) == 4
    assert all(title.count("idle") + title.count("loaded") == ("idle" in title) for title in titles)
    again = [replace(case, extra=(("block", "again"),)) for case in cases]
    titles = [axis.get_title() for axis in draw_all(summarise(cases + again))[0][2].axes]
    assert len(set(titles)) == 8


def test_every_word_on_a_figure_is_in_the_glossary() -> None:
    glossary = (Path(__file__).parents[2] / "GLOSSARY.md").read_text()
    names = {case.selector for case in studied()}
    words = {"imbalance", "overlap"}
    for _, _, figure in draw_all(summarise(studied())):
        for axis in figure.axes:
            labels = [re.sub(r" \d+$", "", text) for text in axis.get_legend_handles_labels()[1]]
            words |= {text for text in labels if text.partition(" ")[0] not in names}
    words -= {"the note's claim", "bound: saved = overlap"}
    assert {"resident", "routed", "pulled", "cross tenant", "held"} <= words
    assert [word for word in sorted(words) if not re.search(rf"\b{word}\b", glossary)] == []


def test_what_is_not_steady_is_marked_where_it_is_drawn() -> None:
    calm, crowded = (
        summarise([make_case(name, utilisation=rho, count=120) for name in ("recompute_always", "cheapest")])
        for rho in (0.4, 2.0)
    )
    assert [bool(row.steadiness and row.steadiness.trouble) for row in (*calm, *crowded)] == [False, False, True, True]
    for rows, marks in ((calm, 0), (crowded, 2)):
        for stem, caption, figure in draw_all(rows):
            words = [text.get_text() for axis in figure.axes for text in (*axis.texts, *axis.get_yticklabels())]
            assert sum(UNSTEADY in text for text in words) == marks, stem
            assert (UNSTEADY in caption) == bool(marks)


def test_no_two_policies_look_alike() -> None:
    assert len({str(look(i)) for i in range(64)}) == 64


def test_a_trace_is_not_called_idle_nor_held_to_what_idle_runs_obey() -> None:
    """Arrivals of a trace have no utilisation; their queue makes them no idle run, whatever they save."""
    dense = [
        replace(make_case(s, utilisation=0.9, count=60), utilisation=None) for s in ("recompute_always", "cheapest")
    ]
    report = build(dense)
    assert not any(row.idle for row in report.rows)
    told = as_text(report.tables, report.notices)
    assert "load arrivals as recorded" in told
    assert "load idle" not in told
    assert all("which cannot be" not in notice for notice in report.notices)
    assert "arrivals as recorded" in draw_all(report.rows)[0][2].axes[0].get_title()
    assert all(row.idle for row in build([make_case("recompute_always"), make_case()]).rows)
