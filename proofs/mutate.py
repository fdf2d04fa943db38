"""`python -m proofs.mutate`: make every small change of the shipping rules and ask whether some theorem notices.

What survives is either a change that means nothing, listed with its reason in `equivalent.txt`, or a hole in the
specification; the exit code is not 0 if there is one.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from . import kit, mutants, suite

MODULES = (
    "core.account",
    "core.rights",
    "core.costing",
    "core.splitting",
    "core.protocol",
    "core.judging",
    "privacy.balance",
    "disclosure.apart",
)
SKIPPED = ("fill", "split", "front_of")  # loops over tables: their steps are proved, the loops are tested
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
# Cheap theorems that notice most come first; the others keep their order.
FIRST = ("LIVE", "PLAN", "I1", "I7", "READ-LIVE", "SCOPE", "SHARE", "C3", "C1", "C4", "IDX", "IDX-LIVE", "I3", "I10")
LAST = ("UNB", "COUNT", "XFER")

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}
SWAPPED_FIELDS = {
    "used": ("pinned", "reserved", "limit"),
    "pinned": ("used",),
    "reserved": ("limit", "used"),
    "limit": ("reserved",),
    "grant_epoch": ("expiry_us",),
    "expiry_us": ("grant_epoch",),
    "tenant": ("user",),
    "user": ("session",),
}
Edit = Callable[[ast.AST], None]


@dataclass(frozen=True, kw_only=True)
class Change:
    """The `number`-th edit of a function; `what` describes it."""

    module: str
    function: str
    line: int
    what: str
    number: int

    @property
    def text(self) -> str:
        return f"{self.module}.{self.function}:{self.line}: {self.what}"

    @property
    def key(self) -> str:
        """Without the line, so that the list of equivalent changes survives edits elsewhere."""
        return f"{self.module}.{self.function}: {self.what}"


def edits(node: ast.AST) -> Iterator[tuple[str, Edit]]:
    """(description, edit of a copy of this node) for every small change of it."""
    match node:
        case ast.Compare():
            for i, op in enumerate(node.ops):
                for new in COMPARISONS.get(type(op), ()):
                    yield f"{ast.unparse(node)}: {type(op).__name__} -> {new.__name__}", _set_item("ops", i, new())
        case ast.BoolOp():
            for i, value in enumerate(node.values):
                neutral = ast.Constant(isinstance(node.op, ast.And))
                yield f"{ast.unparse(node)}: drop `{ast.unparse(value)}`", _set_item("values", i, neutral)
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield f"{ast.unparse(node)}: and <-> or", _set("op", other)
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            swapped = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            yield f"{ast.unparse(node)}: + <-> -", _set("op", swapped)
        case ast.BinOp(op=ast.Mult()):
            yield f"{ast.unparse(node)}: * -> +", _set("op", ast.Add())
        case ast.Constant(value=bool() as value):
            yield f"{value} -> {not value}", _set("value", not value)
        case ast.Constant(value=int() as value):
            for new_value in sorted({value + 1, 0} - {value}):
                yield f"{value} -> {new_value}", _set("value", new_value)
        case ast.Call(func=ast.Name(id="min" | "max" as name)):
            yield (
                f"{ast.unparse(node)}: min <-> max",
                _set("func", ast.Name("min" if name == "max" else "max", ast.Load())),
            )
        case ast.Call(func=ast.Name(id="replace")):
            for i, keyword in enumerate(node.keywords):
                yield f"{ast.unparse(node)}: drop {keyword.arg}", _drop_item("keywords", i)
        case ast.If() | ast.IfExp():
            for truth in (True, False):
                yield f"if {ast.unparse(node.test)} -> {truth}", _set("test", ast.Constant(truth))
        case ast.Attribute(ctx=ast.Load()):
            for field in SWAPPED_FIELDS.get(node.attr, ()):
                yield f"{ast.unparse(node)} -> .{field}", _set("attr", field)


def _set(field: str, value: object) -> Edit:
    return lambda node: setattr(node, field, value)


def _set_item(field: str, position: int, value: object) -> Edit:
    return lambda node: getattr(node, field).__setitem__(position, value)


def _drop_item(field: str, position: int) -> Edit:
    return lambda node: getattr(node, field).pop(position)


def changed(function: ast.FunctionDef) -> Iterator[tuple[int, str, ast.FunctionDef]]:
    """(line, description, changed copy) for every small change of a function's body."""
    nodes = [n for statement in function.body for n in ast.walk(statement)]
    for position, node in enumerate(nodes):
        for what, edit in edits(node):
            copied = copy.deepcopy(function)
            edit([n for statement in copied.body for n in ast.walk(statement)][position])
            yield getattr(node, "lineno", function.lineno), what, copied


def functions_of(module: str) -> list[str]:
    tree = ast.parse(Path(importlib.import_module(f"kvshare_research.{module}").__file__ or "").read_text())
    return [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name not in SKIPPED]


def all_changes() -> list[Change]:
    found = []
    for module in MODULES:
        loaded = importlib.import_module(f"kvshare_research.{module}")
        for function in functions_of(module):
            for number, (line, what, _) in enumerate(changed(mutants.function_tree(loaded, function))):
                short = module.rpartition(".")[2]
                found.append(Change(module=short, function=function, line=line, what=what, number=number))
    return found


def theorems_about(module: str) -> list[str]:
    """Theorems over functions of this module, the quick and strict ones first."""
    about = [t.id for t in kit.THEOREMS.values() if any(f.startswith(f"{module}.") for f in t.functions)]
    rank = {id: i for i, id in enumerate(FIRST)} | dict.fromkeys(LAST, 1000)
    return sorted(about, key=lambda id: rank.get(id, 500))


def noticed_by(change: Change) -> tuple[Change, str]:
    """The first theorem that fails on the changed rules, with how; an empty string if none does."""
    suite.load()
    package = next(m for m in MODULES if m.endswith(f".{change.module}"))
    module = importlib.import_module(f"kvshare_research.{package}")
    trees = list(changed(mutants.function_tree(module, change.function)))
    with mutants.replaced(module, change.function, trees[change.number][2]):
        for id in theorems_about(change.module):
            report = kit.prove(id, steps=kit.STEPS[:3], stop_early=True)
            if not report.ok:
                return change, f"{id} ({report.error.split(':')[0] or report.answers[-1].status})"
    return change, ""


def known_equivalents() -> dict[str, str]:
    """Reviewed changes that mean nothing, by key, with the reason."""
    rows = [line for line in EQUIVALENT.read_text().splitlines() if line and not line.startswith("#")]
    pairs = (row.rpartition(" | ") for row in rows)
    return {change.strip(): why.strip() for change, _, why in pairs}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proofs.mutate", description=__doc__)
    parser.add_argument("--sample", type=int, help="only so many changes, drawn with seed 0")
    parser.add_argument("--module", help="only changes of this module, such as account")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    suite.load()
    start = time.perf_counter()
    changes = [c for c in all_changes() if given.module in (None, c.module)]
    if given.sample is not None:
        changes = random.Random(0).sample(changes, min(given.sample, len(changes)))
    equivalents = known_equivalents()
    killers: Counter[str] = Counter()
    survivors = []
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        for change, killer in pool.map(noticed_by, changes, chunksize=4):
            killers[killer.partition(" ")[0] or "none"] += 1
            if not killer:
                survivors.append(change)
    holes = [c for c in survivors if c.key not in equivalents]
    print(f"{len(changes)} changes, {len(changes) - len(survivors)} noticed, {time.perf_counter() - start:.0f} s")
    print("noticed by: " + ", ".join(f"{id} {n}" for id, n in killers.most_common() if id != "none"))
    for change in survivors:
        print(f"  {'means nothing' if change.key in equivalents else 'NOT NOTICED'}: {change.text}")
    return 1 if holes else 0


if __name__ == "__main__":
    sys.exit(main())
