"""The style rules that a machine can check: sizes, words, layers, and that names lead to files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from importlinter.cli import lint_imports_command

from kvshare_research.config import SEAMS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "kvshare_research"
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
FOLDERS = {"tenancy": "guard"}  # where a group's modules live, if not in a folder of its own name
# Who may import what is expensive to load or must stay in one place; everything else must reach it through these.
HOMES = {
    "mpi4py": ("driver/", "transport/", "launch.py"),
    "torch": ("engine/", "transport/", "driver/", "privacy/", "prefetch/", "provenance.py"),
    "transformers": ("engine/",),
    "z3": ("proofs/",),
    "opacus": ("privacy/", "disclosure/", "prefetch/"),
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def imports(path: Path) -> set[str]:
    """First words of everything the module imports, also inside functions."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return found


def tracked() -> list[Path]:
    """Text files of the project, as git sees them; every file outside a checkout."""
    done = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=False
    )
    names = done.stdout.splitlines() if done.returncode == 0 else [str(p.relative_to(ROOT)) for p in PACKAGE.rglob("*")]
    texts = (".py", ".md", ".yaml", ".toml", ".cff", ".txt", ".sh", "Makefile", "run")
    return [ROOT / n for n in names if n.endswith(texts) and (ROOT / n).is_file()]


@pytest.mark.parametrize("command", ["check", "format --check"])
def test_ruff_finds_nothing(command: str) -> None:
    """As `make lint` asks it."""
    ruff = [str(Path(sys.executable).parent / "ruff"), *command.split(), "--no-cache", "."]
    done = subprocess.run(ruff, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_modules_are_short_and_say_what_they_are_for() -> None:
    texts = {path: path.read_text() for path in modules()}
    assert [name(p) for p, text in texts.items() if len(text.splitlines()) > MODULE_LINES_MAX] == []
    assert [name(p) for p, text in texts.items() if text.strip() and not ast.get_docstring(tree(p))] == []


def test_functions_are_short() -> None:
    long = [
        f"{name(path)}:{f.lineno} {f.name}"
        for path in modules()
        for f in functions(path)
        if f.end_lineno and f.end_lineno - f.lineno >= FUNCTION_LINES_MAX
    ]
    assert long == []


def test_public_things_say_what_is_true_afterwards() -> None:
    """Every function, and every class that does something; a plain row is said by its name, fields and module."""
    silent = [
        f"{name(path)}:{node.lineno} {node.name}"
        for path in modules()
        for node in tree(path).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
        if isinstance(node, ast.FunctionDef) or any(isinstance(part, ast.FunctionDef) for part in node.body)
        if not ast.get_docstring(node)
    ]
    assert silent == []


def test_heavy_packages_stay_in_their_homes() -> None:
    strays = [
        f"{name(path)} imports {package}, which belongs in {HOMES[package]}"
        for path in modules()
        for package in sorted(imports(path) & HOMES.keys())
        if not str(path.relative_to(PACKAGE)).startswith(HOMES[package])
    ]
    assert strays == []


def test_the_core_is_pure() -> None:
    """No clock, chance, input, output or order that differs between two processes."""
    allowed = {
        "__future__",
        "abc",
        "bisect",
        "collections",
        "dataclasses",
        "difflib",
        "enum",
        "functools",
        "heapq",
        "itertools",
    }
    allowed |= {"math", "operator", "struct", "types", "typing", "numpy", "msgspec", "kvshare_research"}
    impure = {"hash", "id", "open", "print", "input", "eval", "exec", "globals"}
    for path in sorted((PACKAGE / "core").glob("*.py")):
        assert imports(path) - allowed == set(), name(path)
        calls = {n.func.id for n in ast.walk(tree(path)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        assert calls & impure == set(), name(path)


def test_layers_hold() -> None:
    """The contracts under [tool.importlinter]."""
    done = CliRunner().invoke(lint_imports_command, ["--config", str(ROOT / "pyproject.toml"), "--no-cache"])
    assert done.exit_code == 0, done.output


def test_no_leftovers_and_no_machine_of_ours() -> None:
    """Nothing half-done, no path of one machine, no reference that only its author can follow."""
    words = [
        "TO" + "DO",
        "FIX" + "ME",
        "XX" + "X",
        "H" + "ACK",
        r"/wo" + "rk/",
        r"/ro" + "ot/",
        r"/ho" + "me/",
        r"\.\./sha" + "red",
    ]
    pattern = re.compile("|".join(rf"(?<![\w.]){word}" for word in words))
    found = [
        f"{name(path)}:{number}: {line.strip()[:80]}"
        for path in tracked()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("group", SEAMS)
def test_a_choice_is_built_by_the_module_it_is_named_after(group: str) -> None:
    folder = FOLDERS.get(group, group)
    for path in sorted((ROOT / "conf" / group).glob("*.yaml")):
        target = yaml.safe_load(path.read_text())["_target_"]
        _, family, stem, _ = target.split(".")
        assert family == folder, f"{name(path)} is built by {target}"
        assert path.stem.startswith(stem), (
            f"{name(path)} is built by {target}, expected a module whose name it starts with"
        )


@pytest.mark.parametrize("group", SEAMS)
def test_a_policy_can_be_chosen(group: str) -> None:
    """Every class that implements a seam has a configuration that names it: nothing is there that nobody can run."""
    seam = SEAMS[group].__name__
    named = {
        yaml.safe_load(p.read_text())["_target_"].rpartition(".")[2] for p in (ROOT / "conf" / group).glob("*.yaml")
    }
    for path in sorted((PACKAGE / FOLDERS.get(group, group)).glob("*.py")):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id == seam for b in node.bases):
                if "ABC" in {b.id for b in node.bases if isinstance(b, ast.Name)} or node.name.startswith("_"):
                    continue
                assert node.name in named, f"{node.name} in {name(path)} has no configuration in conf/{group}"
