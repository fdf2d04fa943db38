"""`python -m proofs`: one row per theorem; the exit code is 0 only if every one comes out as it must."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from . import agree, kit, suite


def verdicts(report: kit.Report, second: bool) -> tuple[str, bool]:
    """Both solvers' answers in words, and whether the second contradicts the first; `unknown` is no contradiction."""
    counts: dict[str, int] = {}
    for answer in report.answers:
        counts[answer.status] = counts.get(answer.status, 0) + 1
    text = "z3 " + ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
    if not second:
        return text, False
    want = {"proved": "unsat", "refuted": "sat"}
    given = [(kit.second_verdict(a.smt2), want.get(a.status, "unknown")) for a in report.answers]
    agree_count = sum(got == expected for got, expected in given)
    unknown = sum(got == "unknown" for got, _ in given)
    against = len(given) - agree_count - unknown
    return f"{text}; cvc5 agrees {agree_count}, unknown {unknown}, against {against}", against > 0


def show(report: kit.Report, second: bool, verbose: bool) -> bool:
    """Prints the row of a theorem and what did not come out as it must; returns whether all is well."""
    theorem = kit.THEOREMS[report.theorem]
    text, contradicted = verdicts(report, second)
    ok = report.ok and not contradicted
    print(
        f"{'ok  ' if ok else 'FAIL'} {report.theorem:9} {len(report.answers):4} obligations "
        f"{report.build_s + report.solve_s:5.1f} s  {text}\n     {theorem.sentence}"
    )
    print(f"     of: {', '.join(theorem.functions) or 'mathematics used by the others'}")
    if report.error:
        print(f"     cannot be explored: {report.error}")
    for answer in report.answers:
        if verbose or not answer.ok or answer.expect == "refuted":
            print(f"     {answer.status}: {answer.name}")
            if answer.witness:
                print("       witness: " + ", ".join(f"{k} = {v}" for k, v in answer.witness.items()))
    return ok


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m proofs", description=__doc__)
    parser.add_argument("ids", nargs="*", help="theorems to prove; all if none is named")
    parser.add_argument("--cvc5", action="store_true", help="ask the second solver too")
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="write SMT-LIB files and a manifest")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows for reports")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("-v", "--verbose", action="store_true", help="show every obligation")
    given = parser.parse_args()
    if given.cvc5 and find_spec("cvc5") is None:
        parser.error("the second solver is not installed: pip install 'kvshare_research[cvc5]'")
    unknown = set(given.ids) - set(kit.THEOREMS)
    if unknown:
        parser.error(f"no theorem {', '.join(sorted(unknown))}; there are {', '.join(kit.THEOREMS)}")
    return given


def row(report: kit.Report) -> dict[str, object]:
    theorem = kit.THEOREMS[report.theorem]
    return {
        "theorem": theorem.id,
        "sentence": theorem.sentence,
        "functions": theorem.functions,
        "obligations": len(report.answers),
        "ok": report.ok,
        "seconds": round(report.build_s + report.solve_s, 3),
    }


def main() -> int:
    suite.load()
    given = arguments()
    start = time.perf_counter()
    ids = given.ids or list(kit.THEOREMS)
    reports, failed = [], []
    for report in suite.prove_many(ids, jobs=given.jobs, export=given.cvc5 or given.export is not None):
        reports.append(report)
        if not show(report, given.cvc5, given.verbose):
            failed.append(report.theorem)
    if not given.ids:
        functions, readings = agree.count_agreeing()
        print(
            f"ok   a second reading (translated syntax) agrees on all inputs: {functions} functions, {readings} paths"
        )
    if given.export is not None:
        print(f"{kit.export_smt2(reports, given.export)} obligations exported to {given.export}")
    if given.json is not None:
        given.json.write_text(json.dumps([row(r) for r in reports], indent=1) + "\n")
    count = sum(len(r.answers) for r in reports)
    verdict = f"FAILED: {', '.join(failed)}" if failed else "all as they must be"
    print(f"{len(reports)} theorems, {count} obligations, {time.perf_counter() - start:.1f} s: {verdict}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
