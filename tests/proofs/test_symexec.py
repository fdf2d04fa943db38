"""The explorer refuses, loudly, whatever it would get wrong; and agrees with CPython about the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.core import account as rules
from proofs.spec import values
from proofs.symexec import lift, paths

x, y = z3.Ints("x y")
r, d = z3.Reals("r d")


def loop_forever() -> int:
    total = x
    while total > 0:
        total = total + 1
    return 0


@pytest.mark.parametrize(
    "function",
    [
        lambda: {1: "a"}.get(x),
        lambda: x in {1, 2},
        lambda: [10, 20][x],
        lambda: list(range(x)),
        lambda: x / 2,
        lambda: 1 / x,
        lambda: x // -3,
        lambda: x // y,
        lambda: x % -3,
        lambda: x % y,
        lambda: r // 2,
        lambda: int(x),
        loop_forever,
    ],
)
def test_refused(function: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, RecursionError, z3.Z3Exception)):
        paths(function)


def test_a_symbolic_condition_is_no_bool_outside() -> None:
    with pytest.raises(TypeError, match="outside"):
        bool(x > 0)


def test_equality_forks_instead_of_comparing_structure() -> None:
    assert len(paths(lambda: "same" if x == y else "different")) == 2
    assert len(paths(lambda: x in [y, 3])) == 3


def test_a_raise_in_shipping_code_fails_the_proof() -> None:
    with pytest.raises(AssertionError, match="ZeroDivision"):
        paths(lambda: r / d)
    assert len(paths(lambda: r / d, assume=[d > 0])) == 1

    def refuses(n: Any) -> int:
        if n > 3:
            raise ValueError("too many")
        return 0

    with pytest.raises(AssertionError, match="too many"):
        paths(refuses, x)
    assert len(paths(refuses, x, assume=[x < 3])) == 1


@given(st.integers(-50, 50), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_floor_division_is_pythons(a: int, b: int) -> None:
    by_constant = lift(lambda: x // b)
    assert z3.simplify(z3.substitute(by_constant, (x, z3.IntVal(a)))).as_long() == a // b
    by_symbol = lift(lambda: x // y, assume=[y > 0])
    assert z3.simplify(z3.substitute(by_symbol, (x, z3.IntVal(a)), (y, z3.IntVal(b)))).as_long() == a // b


def test_exploration_that_misses_a_case_is_an_error() -> None:
    """A function whose second run skips a branch leaves a hole, and the certificate finds it."""
    calls: list[None] = []

    def fickle() -> int:
        calls.append(None)
        if len(calls) == 1:
            return 1 if x > 0 else 0
        return 1 if x < -10 else 0

    with pytest.raises(AssertionError, match="do not cover"):
        paths(fickle)


ROW = st.builds(rules.Account, *[st.integers(-2, 6)] * 5)
SYMBOLIC = [
    rules.Node(*z3.Ints("n1 n2 n3")),
    rules.Account(*z3.Ints("a1 a2 a3 a4 a5")),
    rules.Account(*z3.Ints("v1 v2 v3 v4 v5")),
    z3.Int("count"),
]
EXPLORED = paths(rules.admit_evicting, *SYMBOLIC)


@given(st.builds(rules.Node, *[st.integers(-2, 9)] * 3), ROW, ROW, st.integers(-1, 3))
@settings(max_examples=200, deadline=None)
def test_paths_agree_with_cpython(node: rules.Node, mine: rules.Account, victim: rules.Account, count: int) -> None:
    """Exactly one path matches concrete inputs, and its value there is what CPython returns."""
    names = [t for row in SYMBOLIC[:3] for t in values(row)] + [SYMBOLIC[3]]
    numbers = [z3.IntVal(c) for row in (node, mine, victim) for c in values(row)] + [z3.IntVal(count)]

    def at(term: Any) -> Any:
        return z3.simplify(z3.substitute(term, *zip(names, numbers, strict=True)))

    match = [p for p in EXPLORED if z3.is_true(at(p.condition))]
    assert len(match) == 1
    want, got = rules.admit_evicting(node, mine, victim, count), match[0].value
    assert got.ok == want.ok
    for theirs, ours in ((got.node, want.node), (got.account, want.account), (got.victim, want.victim)):
        assert [at(t).as_long() for t in values(theirs)] == values(ours)
