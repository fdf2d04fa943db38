"""From YAML to values: what fits is built as annotated, what does not is one line that says what to write instead."""

from __future__ import annotations

import dataclasses
import enum
import math
from dataclasses import dataclass
from typing import Any, Literal, NewType, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvshare_research import build as build_module
from kvshare_research.build import build, convert
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Action

TenantId = NewType("TenantId", int)


class Port(Protocol):
    def answer(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner(Port):
    ttl_us: int = 0

    def answer(self) -> int:
        return self.ttl_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    ttl_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    tenant: TenantId
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    inner: Port
    rows: tuple[Row, ...] = ()
    pair: tuple[int, str] = (0, "")
    mode: Literal["exact", "lossy"] = "exact"
    action: Action = Action.PULL
    actions: frozenset[Action] = frozenset()
    limit_bytes: int | None = None
    ratio: float = 0.5
    label: str | int = ""
    plain: dict[str, float] = dataclasses.field(default_factory=dict)
    on: bool = False

    def __post_init__(self) -> None:
        if self.ratio > 1:
            raise ValueError(f"`ratio` is `{self.ratio}`, expected at most 1")


HERE = f"{build_module.PACKAGE}.test_only"
INNER = {"_target_": f"{HERE}.Inner"}


@pytest.fixture(autouse=True)
def inside_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classes above, importable as a module of the package, where components must live."""
    import sys
    import types

    module = types.ModuleType(HERE)
    for cls in (Inner, Stranger, Row, Outer):
        setattr(module, cls.__name__, cls)
    monkeypatch.setitem(sys.modules, HERE, module)


def outer(**values: Any) -> Any:
    return build({"_target_": f"{HERE}.Outer", "inner": INNER, **values}, "part")


def test_values_arrive_as_annotated() -> None:
    built = outer(
        rows=[{"tenant": 3}, {"tenant": 4, "weight": 2}],
        pair=[1, "a"],
        action="split",
        actions=["pull", "ROUTE"],
        limit_bytes=7,
        label=5,
        plain={"a": 1},
    )
    assert built.inner == Inner()
    assert built.rows == (Row(tenant=TenantId(3)), Row(tenant=TenantId(4), weight=2.0))
    assert type(built.rows[1].weight) is float
    assert built.pair == (1, "a")
    assert built.action is Action.SPLIT
    assert built.actions == {Action.PULL, Action.ROUTE}
    assert built.limit_bytes == 7
    assert built.label == 5
    assert built.plain == {"a": 1.0}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ratoi": 1}, "`part` has no field `ratoi`; did you mean `ratio`?"),
        ({"ratio": "forever"}, "`part.ratio` is `forever`, expected a number"),
        ({"ratio": True}, "`part.ratio` is `True`, expected a number"),
        ({"ratio": math.nan}, "`part.ratio` is `nan`, expected a finite number"),
        ({"ratio": math.inf}, "`part.ratio` is `inf`, expected a finite number"),
        ({"ratio": 2}, "`part`: `ratio` is `2.0`, expected at most 1"),
        ({"limit_bytes": "10"}, "`part.limit_bytes` is `10`, expected an integer"),
        ({"limit_bytes": 1e9}, "`part.limit_bytes` is `1000000000.0`, expected an integer: write `1000000000`"),
        ({"limit_bytes": -1}, "`part.limit_bytes` is `-1`, expected zero or more"),
        ({"limit_bytes": False}, "`part.limit_bytes` is `False`, expected an integer"),
        ({"on": 1}, "`part.on` is `1`, expected true or false"),
        ({"on": None}, "`part.on` is `None`, expected true or false"),
        ({"mode": "exakt"}, "`part.mode` is `exakt`; did you mean `exact`?"),
        ({"action": "pul"}, "`part.action` is `pul`; did you mean `pull`?"),
        ({"actions": ["pull", "pull"]}, "`part.actions` lists an item twice: `['pull', 'pull']`"),
        ({"pair": [1]}, "`part.pair` has 1 items, expected 2"),
        ({"pair": 3}, "`part.pair` is `3`, expected a list"),
        ({"rows": [{}]}, "`part.rows[0]` needs a value for `tenant` (an integer)"),
        ({"rows": [{"tenant": 1, "wieght": 2}]}, "`part.rows[0]` has no field `wieght`; did you mean `weight`?"),
        ({"plain": {"a": "b"}}, "`part.plain.a` is `b`, expected a number"),
        ({"inner": {**INNER, "ttl_us": -5}}, "`part.inner.ttl_us` is `-5`, expected zero or more"),
        ({"inner": {"_target_": f"{HERE}.Stranger"}}, "`part.inner` is a `Stranger`, expected a `Port`"),
        ({"inner": {"_target_": f"{HERE}.Iner"}}, "did you mean `Inner`?"),
        ({"inner": {"_target_": "os.system"}}, "expected a class inside `kvshare_research`"),
        ({"inner": {"_target_": "kvshare_research.no.Such"}}, "there is no module `kvshare_research.no`"),
        ({"inner": 3}, "`part.inner` is `3`, expected a `Port`"),
    ],
)
def test_what_does_not_fit_is_one_helpful_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        outer(**values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_component_is_named() -> None:
    with pytest.raises(ConfigError, match=r"`part` needs a value for `inner`"):
        build({"_target_": f"{HERE}.Outer"}, "part")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=3), x, max_size=3),
        max_leaves=5,
    )
)
def test_any_value_is_converted_exactly_or_refused(value: object) -> None:
    """Nothing but ConfigError ever comes out, and what is accepted equals what was given, in the annotated type."""
    kinds: list[tuple[Any, type]] = [(int, int), (float, float), (bool, bool), (str, str), (tuple[int, ...], tuple)]
    for kind, concrete in kinds:
        try:
            converted = convert(value, kind, "x")
        except ConfigError:
            continue
        assert type(converted) is concrete
        assert converted == (tuple(value) if isinstance(value, list) else value)


def test_enums_do_not_take_their_numbers() -> None:
    class Colour(enum.IntEnum):
        RED = 1

    with pytest.raises(ConfigError):
        convert(1, Colour, "x")
