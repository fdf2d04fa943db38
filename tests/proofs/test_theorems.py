"""Every theorem comes out as it must; every named mistake in the rules is noticed by the theorem that excludes it."""

from __future__ import annotations

import pytest

from proofs import agree, kit, mutants, suite

suite.load()


@pytest.mark.parametrize("id", list(kit.THEOREMS))
def test_theorem(id: str) -> None:
    report = kit.prove(id, stop_early=True)
    failed = [(a.name, a.status, a.witness) for a in report.answers if not a.ok]
    assert report.ok, f"{kit.THEOREMS[id].sentence}: {report.error or failed}"


@pytest.mark.parametrize("mutant", mutants.NAMED, ids=lambda m: m.id)
def test_named_mistake_is_noticed(mutant: mutants.Mutant) -> None:
    with mutants.applied(mutant):
        report = kit.prove(mutant.theorem, stop_early=True)
    assert not report.ok, f"{mutant.theorem} does not notice: {mutant.story}"
    assert report.error or report.answers[-1].status == "refuted"
    assert report.error or report.answers[-1].witness, "a refutation shows its witness"


def test_every_theorem_about_rules_has_a_named_mistake() -> None:
    named = {m.theorem for m in mutants.NAMED}
    assert named | set(mutants.WITHOUT) == set(kit.THEOREMS)
    assert not named & set(mutants.WITHOUT)


def test_a_mutant_is_gone_afterwards() -> None:
    from kvshare_research.core import account, ledger

    before = account.admit
    with mutants.applied(next(m for m in mutants.NAMED if m.function == "admit")):
        assert account.admit is not before
        assert ledger.rules.admit is account.admit
    assert account.admit is before


def test_the_two_readings_of_the_rules_agree_on_all_inputs() -> None:
    functions, readings = agree.count_agreeing()
    assert functions >= 20
    assert readings > functions


def test_an_obligation_with_impossible_assumptions_fails() -> None:
    import z3

    x = z3.Int("x")
    answer = kit.check(kit.claim("anything", {"never": x < x}, False))
    assert answer.status == "vacuous"
    assert not answer.ok


def test_an_expected_refutation_that_stops_being_refuted_fails() -> None:
    import z3

    x = z3.Int("x")
    assert kit.check(kit.claim("false", {}, x > 0, expect="refuted")).ok
    assert not kit.check(kit.claim("true", {}, x == x, expect="refuted")).ok


def test_export_can_be_checked_again(tmp_path: object) -> None:
    import json
    from pathlib import Path

    import z3

    reports = [kit.prove(id, export=True) for id in ("PROMOTE-KEY", "LEAK-3", "CLASH")]
    folder = Path(str(tmp_path))
    assert kit.export_smt2(reports, folder) == 3
    for row in json.loads((folder / "MANIFEST.json").read_text()):
        solver = z3.Solver()
        solver.from_file(str(folder / row["file"]))
        assert str(solver.check()) == row["expect"]


@pytest.mark.parametrize("id", ["JUDGE", "LEAK-2"])
def test_a_second_solver_reads_what_is_exported_and_agrees(id: str) -> None:
    """JUDGE has conjunctions of nothing, which Z3 writes as a term that is none in SMT-LIB."""
    pytest.importorskip("cvc5")
    report = kit.prove(id, export=True)
    want = {"proved": "unsat", "refuted": "sat"}
    assert [kit.second_verdict(a.smt2) for a in report.answers] == [want[a.status] for a in report.answers]


def test_nothing_exported_has_a_connective_without_arguments() -> None:
    import re

    answers = [a for id in ("JUDGE", "JUDGE-N", "SCOPE") for a in kit.prove(id, export=True).answers]
    assert [a.name for a in answers if re.search(r"\s(and|or)[\s)]", a.smt2)] == []
