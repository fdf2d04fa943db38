"""Theorems, obligations, verdicts: what a claim is, how it is checked, and when the whole run has failed.

An obligation is proved when its assumptions and the negated goal are unsatisfiable. Some are *expected to be
refuted*: impossibilities and leaks whose witness we want to see; they fail when they stop being refuted. An
obligation whose assumptions are unsatisfiable proves nothing and fails as `vacuous`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import z3

Expected = Literal["proved", "refuted"]
STEPS = (2_000_000, 8_000_000, 32_000_000, 128_000_000)
"""Z3's own steps (`rlimit`, about 5 million a second) of each try, with another seed: what is proved does not depend on
how busy a machine is, and a search that took a wrong turn starts again."""
THEOREMS: dict[str, Theorem] = {}


@dataclass(frozen=True, kw_only=True)
class Obligation:
    """`goal` follows from `assume`; the labels make witnesses and unsatisfiable cores readable."""

    name: str
    assume: dict[str, Any]
    goal: Any
    expect: Expected = "proved"


@dataclass(frozen=True, kw_only=True)
class Theorem:
    """A sentence about shipping functions, and the obligations that make it true."""

    id: str
    sentence: str
    functions: tuple[str, ...]
    obligations: Callable[[], Iterable[Obligation]]


@dataclass(kw_only=True)
class Answer:
    """What a solver said about one obligation."""

    name: str
    expect: Expected
    status: str  # proved, refuted, unknown, vacuous
    seconds: float
    witness: dict[str, str] = field(default_factory=dict)
    smt2: str = ""

    @property
    def ok(self) -> bool:
        return self.status == self.expect


@dataclass(kw_only=True)
class Report:
    """The answers to all obligations of one theorem; `error` when the functions could not be explored."""

    theorem: str
    answers: list[Answer]
    build_s: float
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error and bool(self.answers) and all(a.ok for a in self.answers)

    @property
    def solve_s(self) -> float:
        return sum(a.seconds for a in self.answers)


def theorem(id: str, sentence: str, *functions: Callable[..., Any]) -> Callable[[Any], Any]:
    """Registers a generator of obligations as theorem `id` about `functions`."""
    names = tuple(f"{f.__module__.rsplit('.', 1)[-1]}.{f.__name__}" for f in functions)

    def register(obligations: Callable[[], Iterable[Obligation]]) -> Callable[[], Iterable[Obligation]]:
        assert id not in THEOREMS, f"two theorems {id}"
        THEOREMS[id] = Theorem(id=id, sentence=sentence, functions=names, obligations=obligations)
        return obligations

    return register


def claim(name: str, assume: dict[str, Any], goal: Any, expect: Expected = "proved") -> Obligation:
    """An obligation; a Python bool is a fine goal."""
    return Obligation(
        name=name, assume=assume, goal=z3.BoolVal(goal) if isinstance(goal, bool) else goal, expect=expect
    )


def check(obligation: Obligation, *, steps: tuple[int, ...] = STEPS, export: bool = False) -> Answer:
    """Z3's verdict, with the witness of a refutation and a check that the assumptions can hold at all."""
    start = time.perf_counter()
    assumed = list(obligation.assume.values())
    if assumed and not _can_hold(_smt2(assumed), steps):
        return Answer(name=obligation.name, expect=obligation.expect, status="vacuous", seconds=0.0)
    smt2 = _smt2([*assumed, z3.Not(obligation.goal)])
    verdict, solver = _verdict(smt2, steps)
    status = {"unsat": "proved", "sat": "refuted"}.get(str(verdict), "unknown")
    answer = Answer(name=obligation.name, expect=obligation.expect, status=status, seconds=time.perf_counter() - start)
    if verdict == z3.sat:
        model = solver.model()
        answer.witness = {str(d): str(model[d]) for d in sorted(model.decls(), key=str)}
    if export:
        answer.smt2 = smt2
    return answer


@lru_cache(maxsize=4096)
def _can_hold(smt2: str, steps: tuple[int, ...]) -> bool:
    """Whether these assumptions are not impossible; the goals of a theorem share them."""
    return bool(_verdict(smt2, steps)[0] != z3.unsat)


def _smt2(formulas: list[Any]) -> str:
    solver = z3.Solver()
    solver.add(*formulas)
    return str(solver.to_smt2())


def _verdict(smt2: str, steps: tuple[int, ...]) -> tuple[Any, Any]:
    """sat, unsat or unknown, and the solver that says so. Each try has a context of its own: what was checked before
    in this process would otherwise decide in which order Z3 searches."""
    for seed, limit in enumerate(steps):
        solver = z3.Solver(ctx=z3.Context())
        solver.set("rlimit", limit)
        solver.set("random_seed", seed)
        solver.from_string(smt2)
        verdict = solver.check()
        if verdict != z3.unknown:
            break
    return verdict, solver


def prove(id: str, *, steps: tuple[int, ...] = STEPS, export: bool = False, stop_early: bool = False) -> Report:
    """The report on one theorem. `stop_early` ends at the first obligation that does not come out as expected."""
    start = time.perf_counter()
    answers: list[Answer] = []
    report = Report(theorem=id, answers=answers, build_s=0.0)
    try:
        for obligation in THEOREMS[id].obligations():
            answers.append(check(obligation, steps=steps, export=export))
            if stop_early and not answers[-1].ok:
                break
    except (AssertionError, TypeError, AttributeError, RecursionError, z3.Z3Exception) as error:
        report.error = f"{type(error).__name__}: {error}"
    report.build_s = time.perf_counter() - start - report.solve_s
    return report


def export_smt2(reports: Iterable[Report], folder: Path) -> int:
    """One SMT-LIB file per obligation and a MANIFEST (sha256, theorem, obligation, expected answer), so that anybody
    can re-check without Python; returns how many files."""
    rows = []
    for report in reports:
        (folder / report.theorem).mkdir(parents=True, exist_ok=True)
        for i, answer in enumerate(report.answers):
            file = folder / report.theorem / f"{i:03}.smt2"
            file.write_text(answer.smt2)
            digest = hashlib.sha256(answer.smt2.encode()).hexdigest()
            want = "unsat" if answer.expect == "proved" else "sat"
            rows.append(
                {"file": f"{report.theorem}/{file.name}", "sha256": digest, "obligation": answer.name, "expect": want}
            )
    (folder / "MANIFEST.json").write_text(json.dumps(rows, indent=1) + "\n")
    return len(rows)


def second_verdict(smt2: str, *, timeout_ms: int = 20_000) -> str:
    """cvc5's answer (sat, unsat, unknown); raises ImportError where cvc5 is not installed."""
    import cvc5  # type: ignore[import-not-found]  # optional

    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("tlimit-per", str(timeout_ms))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, "(set-logic ALL)\n" + smt2, "obligation")
    symbols = parser.getSymbolManager()
    answers = list(_run_commands(parser, solver, symbols))
    return answers[-1] if answers else "unknown"


def _run_commands(parser: Any, solver: Any, symbols: Any) -> Iterator[str]:
    while not (command := parser.nextCommand()).isNull():
        out = str(command.invoke(solver, symbols)).strip()
        if out in ("sat", "unsat", "unknown"):
            yield out
