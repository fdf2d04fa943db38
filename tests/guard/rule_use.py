"""Does the core change an account, or use a block, without asking a proved rule? Read from the syntax of its modules.

Each function here returns complaints, so that tests can also show that planted mistakes are found.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

ACCOUNT_RULES = frozenset(
    ("admit", "admit_evicting", "replace_own", "release", "pin", "unpin", "configure", "remove")
)  # each returns a Step
ROWS = frozenset(("node", "accounts"))
ROW_FIELDS = frozenset(("used", "pinned", "reserved", "limit", "committed"))
READ_RULES = frozenset(("may_read", "open_read", "may_deliver"))
PINS_ONLY = {"keeping.py": ("SendBlocks", "Prefill", "Running")}  # holds on to released blocks; hands none to anybody
GATES = frozenset(("self.serving.ask",))  # checked itself
# Other ways to blocks than by hash, and who may go them: neither hands a block to a reader.
SIDE_DOORS = frozenset(("named", "block", "collision", "_blocks", "_named", "_victims"))
ALLOWED = frozenset(
    (
        ("publishing.py", "_rows", "named"),  # hashes for the router
        ("serving.py", "_collided", "collision"),  # asks for a ticket before it says a word
        ("worker.py", "_note_collision", "collision"),  # a reason for the operator
    )
)
# Where blocks come into slots and leave them.
SLOTS = frozenset(("_occupy", "_vacate", "_forget", "_unlink", "_victims.take"))


@dataclass(frozen=True)
class Complaint:
    where: str
    line: int
    what: str


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))


def called(tree: ast.AST) -> set[str]:
    """Last names of everything called in `tree`."""
    calls = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)]
    return {f.attr if isinstance(f, ast.Attribute) else f.id for f in calls if isinstance(f, ast.Attribute | ast.Name)}


def is_row(target: ast.expr, owner: str) -> bool:
    """Whether an assignment to `target` stores a row of an account or a node of `owner` (self, or a ledger)."""
    if isinstance(target, ast.Subscript):
        return is_row(target.value, owner)
    return isinstance(target, ast.Attribute) and target.attr in ROWS and ast.unparse(target.value) == owner


def steps(function: ast.FunctionDef) -> set[str]:
    """Names that only ever hold what an account rule returned."""
    found: dict[str, bool] = {}
    for n in ast.walk(function):
        if isinstance(n, ast.Assign) and len(n.targets) == 1 and isinstance(n.targets[0], ast.Name):
            name = n.targets[0].id
            found[name] = found.get(name, True) and _is_step(n.value, found)
    return {name for name, good in found.items() if good}


def _is_step(value: ast.expr, known: dict[str, bool]) -> bool:
    if isinstance(value, ast.IfExp):
        return _is_step(value.body, known) and _is_step(value.orelse, known)
    if isinstance(value, ast.Name):
        return known.get(value.id, False)
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and ast.unparse(value.func.value) == "rules"
        and value.func.attr in ACCOUNT_RULES
    )


def pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=True)
        elif isinstance(target, ast.Tuple):
            yield from ((t, node.value) for t in target.elts)
        else:
            yield target, node.value


def account_complaints(name: str, source: str, owners: tuple[str, ...] = ("self",)) -> list[Complaint]:
    """Rows stored that no rule returned, rows made or changed by hand, and steps used without looking at `ok`."""
    tree = ast.parse(source)
    complaints = list(_rows_made_by_hand(name, tree))
    for function in functions(tree):
        good = steps(function)
        stored = False
        for n in ast.walk(function):
            if isinstance(n, ast.AugAssign | ast.Delete):
                targets = [n.target] if isinstance(n, ast.AugAssign) else n.targets
                if any(is_row(t, o) for t in targets for o in owners):
                    complaints.append(Complaint(name, n.lineno, f"{function.name} changes a row by hand"))
            if not isinstance(n, ast.Assign):
                continue
            for target, value in pairs(n):
                if not any(is_row(target, o) for o in owners):
                    continue
                from_rule = isinstance(value, ast.Attribute) and ast.unparse(value.value) in good
                if function.name != "__init__" and not from_rule:
                    complaints.append(Complaint(name, n.lineno, f"{function.name} stores a row that no rule returned"))
                stored = stored or from_rule
        looks = any(isinstance(n, ast.Attribute) and n.attr == "ok" for n in ast.walk(function))
        if stored and not looks:
            complaints.append(Complaint(name, function.lineno, f"{function.name} stores a step without asking `ok`"))
    return complaints


def _rows_made_by_hand(name: str, tree: ast.AST) -> Iterator[Complaint]:
    for n in ast.walk(tree):
        if not isinstance(n, ast.Call):
            continue
        what = n.func.attr if isinstance(n.func, ast.Attribute) else n.func.id if isinstance(n.func, ast.Name) else ""
        empty = all(isinstance(a, ast.Constant) and a.value == 0 for a in n.args[1:])
        if what in ("Account", "Node") and not empty:
            yield Complaint(name, n.lineno, f"a filled {what} is made by hand")
        if what in ("replace", "_replace") and any(k.arg in ROW_FIELDS for k in n.keywords):
            yield Complaint(name, n.lineno, "a row is changed by hand")
        if what == "Ticket":
            yield Complaint(name, n.lineno, "a ticket is made by hand")


def read_complaints(name: str, source: str) -> list[Complaint]:
    """Functions that look blocks up by hash and neither ask a read rule nor are asked by one that does."""
    tree = ast.parse(source)
    calls = {f.name: called(f) for f in functions(tree)}
    asks = {f for f, names in calls.items() if names & READ_RULES}
    asks |= {f.name for f in functions(tree) if any(ast.unparse(c.func) in GATES for c in calls_in(f))}
    if name in PINS_ONLY and not any(word in source for word in PINS_ONLY[name]):
        return []
    while grown := {f for f, names in calls.items() if f not in asks and names & asks}:
        asks |= grown
    return [
        Complaint(name, f.lineno, f"{f.name} finds blocks without asking whether they may be read")
        for f in functions(tree)
        if _finds(f) and f.name not in asks
    ]


def calls_in(tree: ast.AST) -> Iterator[ast.Call]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.Call))


def unheeded_complaints(name: str, source: str) -> list[Complaint]:
    """Read rules that are asked, and whose answer decides nothing."""
    complaints = []
    for function in functions(ast.parse(source)):
        loaded = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        for n in ast.walk(function):
            value = getattr(n, "value", None)
            if not (isinstance(n, ast.Expr | ast.Assign) and isinstance(value, ast.Call)):
                continue
            asked = value.func.attr if isinstance(value.func, ast.Attribute) else ast.unparse(value.func)
            if asked not in READ_RULES:
                continue
            kept = isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id in loaded for t in n.targets)
            if not kept:
                complaints.append(Complaint(name, n.lineno, f"{function.name} does not heed {asked}"))
    return complaints


def side_door_complaints(name: str, source: str) -> list[Complaint]:
    """Blocks taken from a ledger otherwise than by asking for their hash, by whom nobody looked at."""
    return [
        Complaint(name, n.lineno, f"{function.name} takes blocks by `{n.attr}`")
        for function in functions(ast.parse(source))
        for n in ast.walk(function)
        if isinstance(n, ast.Attribute)
        and n.attr in SIDE_DOORS
        and "ledger" in ast.unparse(n.value)
        and (name, function.name, n.attr) not in ALLOWED
    ]


def slot_complaints(name: str, source: str) -> list[Complaint]:
    """Functions of the ledger by which blocks come or go, and that neither ask an account rule nor call one that does;
    and others that reach for them from outside."""
    tree = ast.parse(source)
    calls = {f.name: called(f) for f in functions(tree)}
    asks = {f.name for f in functions(tree) if any(ast.unparse(c.func).startswith("rules.") for c in calls_in(f))}
    while grown := {f for f, names in calls.items() if f not in asks and names & (asks - SLOTS)}:
        asks |= grown
    return [
        Complaint(name, call.lineno, f"{f.name} moves blocks by {called_name} without a rule's yes")
        for f in functions(tree)
        if f.name not in SLOTS - asks
        for call in calls_in(f)
        if (called_name := ast.unparse(call.func).removeprefix("self.")) in SLOTS - asks
        and not _granted(f, call, asks - SLOTS)
    ]


def _granted(function: ast.FunctionDef, call: ast.Call, asks: set[str]) -> bool:
    """Whether a rule's answer stands before the call: as the test around it, as what it is given, or as a refusal that
    has returned already."""

    def says(node: ast.AST, names: set[str]) -> bool:
        asked = any(ast.unparse(c.func).removeprefix("self.") in asks or _is_rule(c) for c in calls_in(node))
        return asked or any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(node))

    answers: set[str] = set()
    for n in ast.walk(function):
        if isinstance(n, ast.Assign) and says(n.value, set()):
            answers |= {t.id for target in n.targets for t in ast.walk(target) if isinstance(t, ast.Name)}
    if any(says(argument, answers) for argument in call.args):
        return True
    for n in ast.walk(function):
        if isinstance(n, ast.If) and says(n.test, answers) and any(c is call for s in n.body for c in ast.walk(s)):
            return True
        refused = isinstance(n, ast.If) and isinstance(n.test, ast.UnaryOp) and says(n.test, answers)
        returns = isinstance(n, ast.If) and isinstance(n.body[-1], ast.Return | ast.Raise)
        insists = isinstance(n, ast.Assert) and says(n.test, answers)
        if ((refused and returns) or insists) and n.lineno < call.lineno:
            return True
    return False


def _is_rule(call: ast.Call) -> bool:
    return ast.unparse(call.func).startswith("rules.")


def identity_complaints(name: str, source: str) -> list[Complaint]:
    """Assignments to the scope or generation of a block: both are given once, with its slot."""
    return [
        Complaint(name, n.lineno, f"`{ast.unparse(t)}` is changed after the fact")
        for n in ast.walk(ast.parse(source))
        if isinstance(n, ast.Assign | ast.AugAssign)
        for t in (n.targets if isinstance(n, ast.Assign) else [n.target])
        if isinstance(t, ast.Attribute) and t.attr in ("scope_id", "generation")
    ]


def _finds(function: ast.FunctionDef) -> bool:
    """Whether the function asks a ledger for a block by its hash."""
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr == "find"
        and "ledger" in ast.unparse(n.func)
        for n in ast.walk(function)
    )


def router_complaints(name: str, source: str) -> list[Complaint]:
    """What reaches a policy without passing the judge: a quote is given a verdict that `judge` returned, or less of one.

    A parameter `verdict` counts as judged, because every call is looked at: it must be handed a judged verdict too.
    """
    tree = ast.parse(source)
    takes = {f.name: at for f in functions(tree) if (at := _place_of(f, "verdict")) is not None}
    complaints = []
    found = False
    for function in functions(tree):
        judged = _judged_names(function)
        for call in (n for n in ast.walk(function) if isinstance(n, ast.Call)):
            what = ast.unparse(call.func)
            given = {k.arg: k.value for k in call.keywords}
            if what == "QuoteInput":
                found = True
                verdict = given.get("verdict")
                if any("match" in ast.unparse(value) for value in given.values()):
                    complaints.append(Complaint(name, call.lineno, f"{function.name} shows a policy the raw match"))
            elif what.removeprefix("self.") in takes:
                at = takes[what.removeprefix("self.")]
                verdict = call.args[at] if at < len(call.args) else given.get("verdict")
            else:
                continue
            if not _is_judged(verdict, judged):
                complaints.append(Complaint(name, call.lineno, f"{function.name} quotes what was not judged"))
    return complaints if found else [*complaints, Complaint(name, 1, "no quote found: this check looks at nothing")]


def _place_of(function: ast.FunctionDef, parameter: str) -> int | None:
    """Where a call of this method gives the parameter; None: it has no such."""
    names = [a.arg for a in function.args.args if a.arg != "self"]
    return names.index(parameter) if parameter in names else None


def _judged_names(function: ast.FunctionDef) -> set[str]:
    """Names that hold what the judge let pass; none that is assigned from anything else as well."""
    judged, other = {a.arg for a in function.args.args if a.arg == "verdict"}, set()
    for n in (n for n in ast.walk(function) if isinstance(n, ast.Assign)):
        maker = ast.unparse(n.value.func) if isinstance(n.value, ast.Call) else ""
        for target in n.targets:
            first, *rest = target.elts if isinstance(target, ast.Tuple) else [target]
            of_judge = bool(rest) if maker == "self._quoted" else maker == "judge" and not rest
            (judged if of_judge else other).add(ast.unparse(first))
            other |= {ast.unparse(r) for r in rest}
    return judged - other


def _is_judged(value: ast.expr | None, judged: set[str]) -> bool:
    """A judged name, or what `shown` leaves of one."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "shown" and value.args:
        return _is_judged(value.args[0], judged)
    return isinstance(value, ast.Name) and value.id in judged
