"""Router, worker and ledger decide no read, admission or eviction without calling the proved rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvshare_research.core as core

from .rule_use import (
    account_complaints,
    identity_complaints,
    read_complaints,
    router_complaints,
    side_door_complaints,
    slot_complaints,
    unheeded_complaints,
)

FOLDER = Path(core.__file__).parent
RULES = ("account.py", "rights.py", "directory.py")
FILES = sorted(f for f in FOLDER.glob("*.py") if f.name not in RULES)
OWNERS = ("self", "ledger", "self.ledger", "self._ledger")


def source(name: str) -> str:
    return (FOLDER / name).read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_rows_come_from_the_rules(file: Path) -> None:
    owners = OWNERS if file.name == "ledger.py" else OWNERS[1:]
    assert account_complaints(file.name, file.read_text(), owners) == []


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_blocks_are_found_only_to_be_judged(file: Path) -> None:
    assert read_complaints(file.name, file.read_text()) == []


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_answers_are_heeded_and_there_is_no_side_door(file: Path) -> None:
    text = file.read_text()
    assert unheeded_complaints(file.name, text) == []
    assert identity_complaints(file.name, text) == []
    if file.name not in ("ledger.py", "victims.py"):
        assert side_door_complaints(file.name, text) == []


def test_blocks_come_and_go_by_the_rules_only() -> None:
    assert slot_complaints("ledger.py", source("ledger.py")) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "check", "what"),
    [
        ("worker.py", "        allowed = may_read(", "        allowed = True\n        may_read(", unheeded_complaints, "heed"),
        ("serving.py", "ticket = open_read(", "unused = open_read(", unheeded_complaints, "heed"),
        ("worker.py", "self._admitted(event.request_id)", "self.ledger.named()[0]", side_door_complaints, "by `named`"),
        ("serving.py", "self._ledger.drop_all(found[:pinned_blocks])", "self._ledger._blocks.pop(0)", side_door_complaints, "by `_blocks`"),
        ("worker.py", "self.serving.ask(event, self.directory, now_us)", "self.prefetching.ask(event)", read_complaints, "_fetch_asked"),
        ("ledger.py", "elif self._give_up(first, scope_id):", "else:", slot_complaints, "_forget"),
        ("ledger.py", "            taken += self._occupy(scope_id, got, now_us)", "            taken += self._occupy(scope_id, count, now_us)", slot_complaints, "_occupy"),
        ("ledger.py", "        if not step.ok:\n            return 0\n        if first", "        if first", slot_complaints, "_victims.take"),
        ("fetching.py", "running.blocks[i].origin = origin", "running.blocks[i].scope_id = 0", identity_complaints, "scope_id"),
    ],
)  # fmt: skip
def test_planted_ways_around_the_rules_are_found(name: str, old: str, new: str, check: Any, what: str) -> None:
    found = check(name, planted(name, old, new))
    assert any(what in c.what for c in found), found


def test_policies_see_only_what_the_judge_let_pass() -> None:
    assert router_complaints("router.py", source("router.py")) == []


def test_the_reader_checks_before_a_byte_is_used() -> None:
    assert "may_deliver(" in source("fetching.py")


def planted(name: str, old: str, new: str) -> str:
    text = source(name)
    assert old in text, f"`{old}` is no longer in {name}: plant another mistake"
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("ledger.py", "step = rules.pin(", "step = rules.Step(True, self.node, self.account(block.scope_id)) or (", "no rule returned"),
        ("ledger.py", "if step.ok:\n            self.node", "if True:\n            self.node", "without asking"),
        ("ledger.py", "        self.evicted_blocks += 1", "        self.evicted_blocks += 1\n        self.node = Node(9, 1, 1)", "no rule returned"),
        ("ledger.py", "        self.evicted_blocks += 1", "        self.evicted_blocks += 1\n        del self.accounts[0]", "by hand"),
        ("ledger.py", "        self.evicted_blocks += 1", "        self.evicted_blocks += 1\n        x = replace(self.node, used=0)", "by hand"),
    ],
)  # fmt: skip
def test_planted_changes_of_rows_are_found(name: str, old: str, new: str, expected: str) -> None:
    owners = OWNERS if name == "ledger.py" else OWNERS[1:]
    found = account_complaints(name, planted(name, old, new), owners)
    assert any(expected in c.what for c in found), found


@pytest.mark.parametrize(("name", "rule"), [("serving.py", "open_read("), ("worker.py", "may_read(")])
def test_planted_reads_without_a_rule_are_found(name: str, rule: str) -> None:
    assert read_complaints(name, planted(name, rule, "sometimes("))


def test_a_row_stored_from_elsewhere_is_found() -> None:
    text = "def seize(ledger):\n    ledger.accounts[0] = ledger.accounts[1]\n"
    assert account_complaints("worker.py", text, OWNERS)
    assert account_complaints("worker.py", "def seize(ledger):\n    t = Ticket(1, 1, 1)\n", OWNERS)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("verdict = judge(", "verdict = lenient("),
        ("chain, shown(verdict, blocks), now_us", "chain, Verdict(), now_us"),
        ("chain, shown(verdict, blocks), now_us", "chain, widened(verdict), now_us"),
        ("self._shaped(request, chain, verdict, now_us", "self._shaped(request, chain, everything(chain), now_us"),
        ("        table = self._table(request, chain, shown(", "        verdict = Verdict()\n        table = self._table(request, chain, shown("),
        ("            verdict=verdict,\n", "            verdict=self.all_of(chain),\n"),
    ],
)  # fmt: skip
def test_planted_bypass_of_the_judge_is_found(old: str, new: str) -> None:
    assert router_complaints("router.py", planted("router.py", old, new))
