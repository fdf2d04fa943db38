"""The second reading: a translation of loop-free Python syntax to Z3, independent of running it.

Supported: assignments to names, if/elif/else, return, conditional expressions, and/or/not, (chained) comparisons,
+ - * unary -, // by a positive constant, min/max, attributes, calls of functions of the same module and of its record
types, `replace`/`_replace`, constants. Anything else raises `Unsupported`: the translator fails closed.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import z3
from msgspec import Struct


class Unsupported(Exception):
    """A construct that this translation does not know."""


@dataclass
class Record:
    """A row: class name and fields, each a Z3 term, a Record or a constant."""

    kind: str
    fields: dict[str, Any]


@dataclass
class Either:
    """A value whose shape depends on a condition: None or a row, say."""

    condition: Any
    yes: Any
    no: Any


def term(value: Any) -> Any:
    if isinstance(value, bool):
        return z3.BoolVal(value)
    return z3.IntVal(value) if isinstance(value, int) else value


def record(value: Any) -> Any:
    """A row of the shipping code as a Record; scalars as they are."""
    if isinstance(value, Struct):
        return Record(type(value).__name__, {k: record(getattr(value, k)) for k in value.__struct_fields__})
    if hasattr(value, "_asdict"):
        return Record(type(value).__name__, {k: record(v) for k, v in value._asdict().items()})
    return value


def merge(condition: Any, yes: Any, no: Any) -> Any:
    if yes is no:
        return yes
    if isinstance(yes, Record) and isinstance(no, Record) and yes.kind == no.kind:
        return Record(yes.kind, {k: merge(condition, yes.fields[k], no.fields[k]) for k in yes.fields})
    if any(v is None or isinstance(v, Record | Either) for v in (yes, no)):
        return Either(condition, yes, no)
    return z3.If(condition, term(yes), term(no))


def equal(x: Any, y: Any) -> Any:
    """The Z3 condition under which the two values are the same."""
    if isinstance(y, Either):
        return z3.If(y.condition, equal(x, y.yes), equal(x, y.no))
    if isinstance(x, Either):
        return z3.If(x.condition, equal(x.yes, y), equal(x.no, y))
    if isinstance(x, Record) and isinstance(y, Record):
        return z3.And(z3.BoolVal(x.kind == y.kind), *[equal(x.fields[k], y.fields[k]) for k in y.fields])
    if x is None or y is None or isinstance(x, Record) or isinstance(y, Record):
        return z3.BoolVal(x is None and y is None)
    return term(x) == term(y)


COMPARE = {
    ast.Lt: lambda x, y: term(x) < term(y),
    ast.LtE: lambda x, y: term(x) <= term(y),
    ast.Gt: lambda x, y: term(x) > term(y),
    ast.GtE: lambda x, y: term(x) >= term(y),
    ast.Eq: equal,
    ast.NotEq: lambda x, y: z3.Not(equal(x, y)),
    ast.Is: equal,
    ast.IsNot: lambda x, y: z3.Not(equal(x, y)),
}


class Translator:
    """Functions of one module as Z3 terms."""

    def __init__(self, module: ModuleType) -> None:
        tree = ast.parse(inspect.getsource(module))
        self._module = module
        self._functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
        self._types = {
            n.name: [
                (s.target.id, s.value)
                for s in n.body
                if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
            ]
            for n in tree.body
            if isinstance(n, ast.ClassDef)
        }

    def call(self, name: str, args: list[Any], keywords: dict[str, Any] | None = None) -> Any:
        if name in self._types:
            return self._make(name, args, keywords or {})
        if name not in self._functions:
            raise Unsupported(f"call of {name}")
        function = self._functions[name]
        names = [a.arg for a in function.args.args]
        return self._block(function.body, dict(zip(names, args, strict=True)), name)

    def _make(self, name: str, args: list[Any], keywords: dict[str, Any]) -> Record:
        declared = self._types[name]
        given = {field: value for (field, _), value in zip(declared, args, strict=False)} | keywords
        for field, default in declared:
            if field not in given:
                if default is None:
                    raise Unsupported(f"{name} without {field}")
                given[field] = self._expression(default, {})
        return Record(name, given)

    def _block(self, statements: list[ast.stmt], env: dict[str, Any], name: str) -> Any:
        for i, s in enumerate(statements):
            if isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant):
                continue
            if isinstance(s, ast.Return) and s.value is not None:
                return self._expression(s.value, env)
            if isinstance(s, ast.Assign) and len(s.targets) == 1 and isinstance(s.targets[0], ast.Name):
                env = {**env, s.targets[0].id: self._expression(s.value, env)}
            elif isinstance(s, ast.If):
                rest = statements[i + 1 :]
                condition = term(self._expression(s.test, env))
                return merge(condition, self._block(s.body + rest, env, name), self._block(s.orelse + rest, env, name))
            else:
                raise Unsupported(ast.unparse(s))
        raise Unsupported(f"{name} may end without return")

    def _expression(self, e: ast.expr, env: dict[str, Any]) -> Any:
        def x(node: ast.expr) -> Any:
            return self._expression(node, env)

        match e:
            case ast.Constant(value=None | bool() | int() as value):
                return value
            case ast.Name(id=name):
                return self._name(name, env)
            case ast.Attribute(value=value, attr=attr):
                return self._get(x(value), attr)
            case ast.BoolOp(op=ast.And()):
                return z3.And(*[term(x(v)) for v in e.values])
            case ast.BoolOp():
                return z3.Or(*[term(x(v)) for v in e.values])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return z3.Not(term(x(operand)))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -x(operand)
            case ast.BinOp():
                return self._arithmetic(e, x(e.left), x(e.right))
            case ast.IfExp():
                return merge(term(x(e.test)), x(e.body), x(e.orelse))
            case ast.Compare():
                terms = [x(e.left), *map(x, e.comparators)]
                parts = [
                    COMPARE[type(op)](left, right) for op, left, right in zip(e.ops, terms, terms[1:], strict=False)
                ]
                return parts[0] if len(parts) == 1 else z3.And(*parts)
            case ast.Call():
                return self._call(e, [x(a) for a in e.args], {k.arg or "": x(k.value) for k in e.keywords}, x)
        raise Unsupported(ast.unparse(e))

    def _name(self, name: str, env: dict[str, Any]) -> Any:
        if name in env:
            return env[name]
        value = getattr(self._module, name, None)
        if isinstance(value, int | Struct):
            return record(value)
        raise Unsupported(name)

    def _arithmetic(self, e: ast.BinOp, left: Any, right: Any) -> Any:
        match e.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.FloorDiv() if isinstance(right, int) and right > 0:
                return term(left) / right
        raise Unsupported(ast.unparse(e))

    def _call(self, e: ast.Call, args: list[Any], keywords: dict[str, Any], x: Any) -> Any:
        match e.func:
            case ast.Attribute(value=value, attr="_replace"):
                return self._replace(x(value), keywords)
            case ast.Name(id="replace"):
                return self._replace(args[0], keywords)
            case ast.Name(id="min" | "max" as name):
                out = term(args[0])
                for other in map(term, args[1:]):
                    out = z3.If((other > out) if name == "max" else (other < out), other, out)
                return out
            case ast.Name(id=name):
                return self.call(name, args, keywords)
        raise Unsupported(ast.unparse(e))

    def _get(self, row: Any, field: str) -> Any:
        if isinstance(row, Either):
            return merge(row.condition, self._get(row.yes, field), self._get(row.no, field))
        if isinstance(row, Record):
            return row.fields[field]
        raise Unsupported(f".{field} of {row}")

    def _replace(self, row: Any, keywords: dict[str, Any]) -> Any:
        if isinstance(row, Either):
            return merge(row.condition, self._replace(row.yes, keywords), self._replace(row.no, keywords))
        return Record(row.kind, {**row.fields, **keywords})
