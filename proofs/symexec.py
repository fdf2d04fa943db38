"""Run ordinary Python on Z3 values: every truth test of a symbolic condition forks the path.

CPython executes the shipping function; nothing is translated. `paths` re-runs it once per feasible sequence of
branch decisions and *certifies* that the path conditions cover the assumptions, so a bug in the exploration can
make a proof fail, never pass. Whatever Z3's Python objects would silently get wrong raises instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import z3

FEASIBILITY_STEPS = 20_000_000  # of Z3 (`rlimit`); "unknown" counts as feasible
DEPTH_MAX = 96

_active: _Run | None = None


class _Run:
    """One execution: the decisions to replay, the decisions taken, and what they assumed."""

    def __init__(self, assume: Sequence[Any], script: list[bool]) -> None:
        self.script, self.taken = script, list[bool]()
        self.literals: list[Any] = []
        self.todo: list[list[bool]] = []
        self.solver = z3.Solver()
        self.solver.set("rlimit", FEASIBILITY_STEPS)
        self.solver.add(*assume)

    def branch(self, condition: Any) -> bool:
        condition = z3.simplify(condition)
        if z3.is_true(condition):
            return True
        if z3.is_false(condition):
            return False
        depth = len(self.taken)
        if depth >= DEPTH_MAX:
            raise RecursionError("too many branches: an unbounded loop on a symbolic condition?")
        if depth < len(self.script):
            choice = self.script[depth]
        else:
            choice = self.solver.check(condition) != z3.unsat
            if choice and self.solver.check(z3.Not(condition)) != z3.unsat:
                self.todo.append([*self.taken, False])
        literal = condition if choice else z3.Not(condition)
        self.taken.append(choice)
        self.literals.append(literal)
        self.solver.add(literal)
        return choice


# ------------------------------------------------------------------ what Z3's objects must not do quietly
def _truth(self: Any) -> bool:
    if _active is None:
        raise TypeError(f"symbolic condition used as a bool outside paths(): {self}")
    return _active.branch(self)


_plain_hash = z3.AstRef.__hash__


def _hash(self: Any) -> int:
    if _active is not None:
        raise TypeError(f"symbolic value used as a dict or set key: {self}")
    return int(_plain_hash(self))


def _index(self: Any) -> NoReturn:
    raise TypeError(f"symbolic value used as an index or range bound: {self}")


_z3_div, _z3_mod = z3.ArithRef.__truediv__, z3.ArithRef.__mod__


def _true_div(self: Any, other: Any) -> Any:
    if _active is None:  # a specification writes mathematics, not Python
        return _z3_div(self, other)
    if z3.is_int(self) and (isinstance(other, int) or (z3.is_expr(other) and z3.is_int(other))):
        raise TypeError("int / int is a float in Python and an integer in Z3")
    if other == 0:  # forks; Python would raise here
        raise ZeroDivisionError("symbolic division by zero")
    return _z3_div(self, other)


def _reflected_true_div(self: Any, other: Any) -> Any:
    return _true_div(z3.RealVal(other) if z3.is_real(self) else z3.IntVal(other), self)


def _positive_constant(other: Any) -> bool:
    return isinstance(other, int) and other > 0


def _floor_div(self: Any, other: Any) -> Any:
    """Z3's integer division is Python's `//` for a positive divisor; a symbolic divisor is decided by a fork."""
    if not z3.is_int(self):
        raise TypeError("// of reals is no integer division in Z3")
    if _positive_constant(other) or (z3.is_expr(other) and z3.is_int(other) and other > 0):
        return _z3_div(self, other)
    raise TypeError("// agrees with Z3 only for a positive integer divisor")


def _reflected_floor_div(self: Any, other: Any) -> Any:
    return _floor_div(z3.IntVal(other), self)


def _mod(self: Any, other: Any) -> Any:
    if _positive_constant(other):
        return _z3_mod(self, other)
    raise TypeError("% agrees with Z3 only for a positive constant divisor")


def _install() -> None:
    z3.BoolRef.__bool__ = _truth
    z3.ArithRef.__index__ = _index
    z3.ArithRef.__truediv__, z3.ArithRef.__rtruediv__ = _true_div, _reflected_true_div
    z3.ArithRef.__floordiv__, z3.ArithRef.__rfloordiv__ = _floor_div, _reflected_floor_div
    z3.ArithRef.__mod__ = _mod
    for kind in vars(z3).values():
        if isinstance(kind, type) and issubclass(kind, z3.ExprRef) and "__eq__" in vars(kind):
            kind.__hash__ = _hash  # type: ignore[method-assign]


_install()


# ------------------------------------------------------------------ exploring
@dataclass(frozen=True)
class Path:
    """Where `condition` holds, CPython returned `value`."""

    condition: Any
    value: Any


def paths(function: Callable[..., Any], *args: Any, assume: Sequence[Any] = ()) -> list[Path]:
    """Every feasible path of `function(*args)` under `assume`. An exception in it is an AssertionError here."""
    global _active  # noqa: PLW0603 -- Z3's operators have no other way to find the run they belong to
    work: list[list[bool]] = [[]]
    found: list[Path] = []
    while work:
        run = _Run(assume, work.pop())
        before, _active = _active, run
        try:
            value = function(*args)
            if isinstance(value, z3.BoolRef):  # `return a and b`: decide it like any branch
                value = run.branch(value)
        except (TypeError, RecursionError):
            raise
        except Exception as error:
            raise AssertionError(f"{function.__name__} can raise {error!r} when {run.literals}") from error
        finally:
            _active = before
        found.append(Path(z3.And(*run.literals) if run.literals else z3.BoolVal(True), value))
        work += run.todo
    _certify(found, assume)
    return found


def _certify(found: list[Path], assume: Sequence[Any]) -> None:
    solver = z3.Solver()
    solver.add(*assume, z3.Not(z3.Or(*[p.condition for p in found])))
    if solver.check() != z3.unsat:
        raise AssertionError("path conditions do not cover the assumptions")


def term(value: Any) -> Any:
    """A Python scalar as a Z3 term."""
    if isinstance(value, bool):
        return z3.BoolVal(value)
    return z3.IntVal(value) if isinstance(value, int) else value


def lift(function: Callable[..., Any], *args: Any, assume: Sequence[Any] = ()) -> Any:
    """The function's value as one Z3 term (scalars only)."""
    *rest, last = paths(function, *args, assume=assume)
    out = term(last.value)
    for path in reversed(rest):
        out = z3.If(path.condition, term(path.value), out)
    return out
