"""The one door from YAML to components: a class is its own schema, and nothing in a config is silently ignored.

`build` turns a mapping with `_target_` into the frozen value it names, and `convert` checks one value against
one annotation. Both raise `ConfigError` with the path of the key, what was given and the nearest valid choice.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn, Protocol, Union, get_args, get_origin

from .core.errors import ConfigError, did_you_mean

TARGET = "_target_"
PACKAGE = __package__
# Fields whose last word is one of these count something: a negative one cannot mean anything.
UNITS = frozenset(
    ("us", "ms", "ps", "s", "hz", "mbit", "bytes", "tokens", "blocks", "count", "ratio", "epsilon", "max", "min")
)


def build(spec: object, path: str = "", seam: type | None = None) -> Any:
    """The component that `spec` describes; changes nothing.

    `path` names the config key in messages. With `seam`, the component must implement that protocol. Raises
    `ConfigError` for a target outside this package, an unknown, missing or mistyped field, or a refused value.
    """
    where = path or "config"
    if not isinstance(spec, Mapping) or TARGET not in spec:
        raise ConfigError(f"`{where}` needs `{TARGET}: {PACKAGE}....`, got `{_show(spec)}`")
    cls = locate(spec[TARGET], where)
    if seam is not None and not _implements(cls, seam):
        raise ConfigError(f"`{where}` is a `{cls.__name__}`, expected a `{seam.__name__}`")
    return _instance(cls, {k: v for k, v in spec.items() if k != TARGET}, path)


def locate(target: object, where: str) -> type:
    """The dataclass that the dotted name `target` means; it lives in this package, or ConfigError."""
    if not isinstance(target, str) or not target.startswith(f"{PACKAGE}."):
        raise ConfigError(f"`{where}.{TARGET}` is `{_show(target)}`, expected a class inside `{PACKAGE}`")
    module_name, _, class_name = target.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.startswith(PACKAGE):
            raise ConfigError(f"`{where}.{TARGET}` names `{target}`, but there is no module `{missing}`") from None
        raise ConfigError(f"`{where}` needs the package `{missing}`, which is not installed") from None
    cls = getattr(module, class_name, None)
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        here = [n for n, v in vars(module).items() if isinstance(v, type) and dataclasses.is_dataclass(v)]
        hint = did_you_mean(class_name, here)
        raise ConfigError(f"`{where}.{TARGET}` names `{target}`, but `{module_name}` has no such component{hint}")
    return cls


def convert(value: object, kind: Any, path: str) -> Any:
    """`value` as the annotation `kind` wants it (list to tuple, int to float, mapping to component), or ConfigError."""
    kind = getattr(kind, "__supertype__", kind)  # a NewType is checked as what it wraps
    origin = get_origin(kind)
    if kind is Any or kind is object:
        return _frozen(value)
    if origin in (Union, types.UnionType):
        return _convert_union(value, get_args(kind), path)
    if origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in get_args(kind)):
            return value
        raise ConfigError(f"`{path}` is `{_show(value)}`{_hint(value, map(str, get_args(kind)))}")
    if origin is not None or kind in _CONTAINERS:
        return _CONTAINERS.get(origin or kind, _no_rule)(value, get_args(kind), path)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _convert_enum(value, kind, path)
    if kind in _SCALARS:
        return _SCALARS[kind](value, path)
    return _convert_component(value, kind, path)


def _instance(cls: type, given: Mapping[Any, Any], path: str) -> Any:
    prefix = f"{path}." if path else ""
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    for name in given:
        if name not in fields:
            raise ConfigError(f"`{path or 'config'}` has no field `{name}`{did_you_mean(str(name), fields)}")
    kinds = typing.get_type_hints(cls)
    values = {name: _field(kinds[name], prefix + name, value) for name, value in given.items()}
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ConfigError(f"`{path or 'config'}` needs a value for `{name}` ({_kind_name(kinds[name])})")
    try:
        return cls(**values)
    except (ValueError, AssertionError) as error:
        raise ConfigError(f"`{path or 'config'}`: {error or 'a value is out of range'}") from None
    except ConfigError as error:
        if path and f"`{path}" not in str(error):
            raise ConfigError(f"`{path}`: {error}") from None
        raise


def _field(kind: Any, path: str, value: object) -> Any:
    converted = convert(value, kind, path)
    counts = path.rpartition(".")[2].rpartition("_")[2] in UNITS
    if counts and isinstance(converted, (int, float)) and converted < 0:
        raise ConfigError(f"`{path}` is `{value}`, expected zero or more")
    return converted


def _convert_union(value: object, kinds: tuple[Any, ...], path: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    kinds = tuple(k for k in kinds if k is not type(None))
    if value is None:
        _refuse(value, Union[kinds], path)  # noqa: UP007  (a runtime value, not an annotation)
    errors = []
    # An int stays an int where the union allows one: exact types are tried first.
    for kind in sorted(kinds, key=lambda k: type(value) is not k):
        try:
            return convert(value, kind, path)
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def _convert_enum(value: object, kind: type[enum.Enum], path: str) -> enum.Enum:
    names = {name.lower(): member for name, member in kind.__members__.items()}
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and value.lower() in names:
        return names[value.lower()]
    raise ConfigError(f"`{path}` is `{_show(value)}`{_hint(value, names)}")


def _convert_component(value: object, kind: Any, path: str) -> Any:
    if isinstance(value, Mapping) and TARGET in value:
        return build(value, path, kind if isinstance(kind, type) else None)
    if isinstance(value, Mapping) and dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _instance(kind, value, path)
    if isinstance(kind, type) and not getattr(kind, "_is_protocol", False) and isinstance(value, kind):
        return value
    _refuse(value, kind, path)


def _tuple(value: object, kinds: tuple[Any, ...], path: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        _refuse(value, tuple, path)
    if not kinds:
        return tuple(_frozen(item) for item in value)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(convert(item, kinds[0], f"{path}[{i}]") for i, item in enumerate(value))
    if len(value) != len(kinds):
        raise ConfigError(f"`{path}` has {len(value)} items, expected {len(kinds)}")
    return tuple(convert(item, kind, f"{path}[{i}]") for i, (item, kind) in enumerate(zip(value, kinds, strict=True)))


def _frozenset(value: object, kinds: tuple[Any, ...], path: str) -> frozenset[Any]:
    items = _tuple(value, (*kinds, Ellipsis) if kinds else (), path)
    if len(set(items)) != len(items):
        raise ConfigError(f"`{path}` lists an item twice: `{_show(value)}`")
    return frozenset(items)


def _mapping(value: object, kinds: tuple[Any, ...], path: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        _refuse(value, dict, path)
    key_kind, item_kind = kinds or (Any, Any)
    return {convert(k, key_kind, f"{path} (key)"): convert(v, item_kind, f"{path}.{k}") for k, v in value.items()}


def _integer(value: object, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        if isinstance(value, float) and value.is_integer():
            raise ConfigError(f"`{path}` is `{value}`, expected an integer: write `{int(value)}`")
        _refuse(value, int, path)
    return value


def _number(value: object, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        _refuse(value, float, path)
    if not math.isfinite(value):
        raise ConfigError(f"`{path}` is `{value}`, expected a finite number")
    return float(value)


def _boolean(value: object, path: str) -> bool:
    if not isinstance(value, bool):
        _refuse(value, bool, path)
    return value


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        _refuse(value, str, path)
    return value


def _no_rule(_value: object, _kinds: tuple[Any, ...], path: str) -> NoReturn:
    raise ConfigError(f"`{path}` has an annotation that a config cannot fill")


_SCALARS: dict[Any, Callable[[object, str], Any]] = {int: _integer, float: _number, bool: _boolean, str: _text}
_CONTAINERS: dict[Any, Callable[[object, tuple[Any, ...], str], Any]] = {
    tuple: _tuple,
    frozenset: _frozenset,
    dict: _mapping,
    Mapping: _mapping,
}
_NAMES = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple: "a list",
    dict: "a mapping",
    type(None): "null",
}


def _frozen(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item) for item in value)
    return value


def _implements(cls: type, seam: type) -> bool:
    # Protocols are inherited explicitly, so nominal subclassing is the check, and a missing method shows at the class.
    return issubclass(cls, seam) if Protocol not in seam.__mro__ else seam in cls.__mro__


def _refuse(value: object, kind: Any, path: str) -> NoReturn:
    raise ConfigError(f"`{path}` is `{_show(value)}`, expected {_kind_name(kind)}")


def _kind_name(kind: Any) -> str:
    kind = getattr(kind, "__supertype__", kind)
    if kind in _NAMES:
        return _NAMES[kind]
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_kind_name(k) for k in get_args(kind))
    if origin is Literal:
        return "one of " + ", ".join(f"`{choice}`" for choice in get_args(kind))
    return _NAMES.get(origin) or f"a `{getattr(kind, '__name__', kind)}`"


def _hint(value: object, choices: Any) -> str:
    return did_you_mean(str(value), choices)


def _show(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
