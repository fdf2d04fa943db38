"""Would a wrong rule of the log's reader be noticed? Each is made; a walk through the hostile world, or through one that
loses nothing, or else a single fault of `test_replica.py` must fail."""

from __future__ import annotations

import inspect
import random
from dataclasses import dataclass
from types import ModuleType

import pytest

from kvshare_research.core import protocol, replica

from . import test_replica, world


@dataclass(frozen=True)
class Mutant:
    """`old` stands once in the module and becomes `new`; what that would do."""

    module: ModuleType
    old: str
    new: str
    harm: str


MUTANTS = [
    Mutant(protocol, "if message_incarnation < incarnation:", "if False:", "a dead worker's words count again"),
    Mutant(
        protocol,
        "message_incarnation > incarnation",
        "message_incarnation > incarnation + 1",
        "a restart continues the old log",
    ),
    Mutant(protocol, "done = 0 if reset else seq", "done = seq", "a new life's first entries are taken for repeated"),
    Mutant(protocol, "message_seq == done + 1", "message_seq > done", "a gap is jumped"),
    Mutant(protocol, "message_seq == done + 1", "message_seq <= done + 1", "an entry counts twice"),
    Mutant(protocol, "kind == SNAPSHOT and message_seq > done", "kind == SNAPSHOT", "a late snapshot goes back"),
    Mutant(protocol, "kind == SNAPSHOT and message_seq > done", "False", "no snapshot repairs"),
    Mutant(protocol, "HOLD if kind == EVENT else ASK", "IGNORE", "a gap is never repaired"),
    Mutant(
        protocol,
        "Decision(IGNORE, reset, message_incarnation, done)",
        "Decision(IGNORE, False, incarnation, done)",
        "a heartbeat of a new life, before its first entry, does not end the old one",
    ),
    Mutant(
        replica, "        if decision.reset:\n            view =", "        if False:\n            view =", "no reset"
    ),
    Mutant(
        replica, "        if old.incarnation:\n", "        if False:\n", "a restart keeps the blocks of the life before"
    ),
    Mutant(replica, "view.guesses, view.ends = old", "_, view.ends = old", "guesses are lost but stay stored"),
    Mutant(replica, "view.head_seq = max(view.head_seq, seq)", "pass", "nobody knows what is missing"),
    Mutant(
        replica, "            self._hold(view, message)", "            self._advance(message, view)", "no gap waits"
    ),
    Mutant(replica, "if message.seq > view.seq + self._window_entries:", "if False:", "what waits is unbounded"),
    Mutant(replica, "elif decision.what in (APPLY, INSTALL):", "elif decision.what == APPLY:", "no snapshot is taken"),
    Mutant(replica, "view.waiting.pop(view.seq + 1, None)", "view.waiting.pop(view.seq + 2, None)", "order is lost"),
    Mutant(replica, "if seq > view.seq}", "if True}", "what a snapshot has overtaken waits for ever"),
    Mutant(replica, "        view.seq = message.seq\n", "", "the position does not follow"),
    Mutant(replica, "            view.guesses.clear()\n", "", "guesses outlive the copies a snapshot removed"),
    Mutant(
        replica,
        "            self.store.clear(node, None)\n            self._fill",
        "            self._fill",
        "sum of two",
    ),
    Mutant(replica, "            self._fill(node, body.rows)\n", "", "a snapshot is empty"),
    Mutant(replica, "body.tier not in (None, t)}", "True}", "a cleared tier keeps its guesses"),
    Mutant(replica, "            self.store.clear(node, body.tier)\n", "", "a tier is not cleared"),
    Mutant(replica, "self.store.store(node, body.tier, body.parent, hashes)\n", "pass\n", "nothing is stored"),
    Mutant(replica, "not told <= known.keys()", "False", "a guess of some confirms all"),
    Mutant(
        replica,
        "            del known[block]\n        self.counters",
        "            pass\n        self.counters",
        "what was confirmed expires",
    ),
    Mutant(replica, "for _ in range(copies):", "for _ in range(1):", "copies are lost in a snapshot"),
    Mutant(replica, "        self.store.remove(node, tier, found)\n", "", "an expired guess stays"),
    Mutant(replica, "if not view.behind and not fenced_alive:", "if not view.behind:", "a fenced worker never returns"),
    Mutant(replica, "if not view.behind and not fenced_alive:", "if True:", "nothing is asked for"),
    Mutant(replica, "known[block] <= now_us]", "False]", "no guess expires"),
    Mutant(replica, "c - (h in guesses.get(t, ()))", "c", "guesses pass for announced"),
    Mutant(
        replica, "view.seq, view.head_seq = item.seq, item.head_seq", "view.seq = item.seq", "a restart forgets a gap"
    ),
    Mutant(replica, "self._fill(item.node, item.rows)", "pass", "a restart forgets the blocks"),
    Mutant(replica, "view.waiting = {m.seq: m for m in item.waiting}", "pass", "a restart forgets what waits"),
    Mutant(replica, "self._restart(node, self.views[node].incarnation + 1, None)", "pass", "a dead node's blocks stay"),
]


def made(mutant: Mutant) -> ModuleType:
    text = inspect.getsource(mutant.module)
    assert text.count(mutant.old) == 1, mutant.old
    module = ModuleType(mutant.module.__name__)
    module.__package__ = mutant.module.__package__
    exec(compile(text.replace(mutant.old, mutant.new), mutant.module.__file__ or "", "exec"), module.__dict__)
    return module


def walked(seed: int, steps: int) -> None:
    """A walk with frequent healing; what waits stays within the window."""
    rng, w = random.Random(seed), world.World(("reference",))
    for i in range(steps):
        test_replica.step(w, rng)
        w.check()
        for r in w.replicas:
            for view in r.views:
                assert all(view.seq < seq <= view.seq + w.window for seq in view.waiting), "waiting"
        if i % 50 == 49:
            w.heal()
            w.check()


def in_order(seed: int, steps: int) -> None:
    """Over a network that loses nothing, a view is never behind: also in a new life, also of a worker fenced before."""
    rng, w = random.Random(seed), world.World(("reference",))
    for _ in range(steps):
        n, path, tier = rng.randrange(2), rng.choice(world.PATHS), rng.randrange(2)
        rng.choice([w.store, w.store, lambda n, path, _, tier: w.remove(n, path, tier)])(
            n, path, rng.randrange(3), tier
        )
        if rng.random() < 0.1:
            w.crash(n)
            w.heartbeat(n)
            w.deliver_all(0)
            assert w.replicas[0].views[n].incarnation == w.workers[n].journal.incarnation, "the old life goes on"
            w.store(n, path, 0, tier)
        w.deliver_all(0)
        view, journal = w.replicas[0].views[n], w.workers[n].journal
        assert (view.incarnation, view.seq) == (journal.incarnation, journal.seq), "behind"
        w.check()


def noticed() -> None:
    """Raises on a wrong rule."""
    for seed in range(12):
        in_order(seed, 60)
        walked(seed, 300)
    for name, test in vars(test_replica).items():
        if name.startswith("test_") and "walk" not in name and not inspect.signature(test).parameters:
            test()


def test_without_a_mutant_nothing_is_noticed() -> None:
    noticed()


@pytest.mark.parametrize("mutant", MUTANTS, ids=[m.harm.replace(" ", "-") for m in MUTANTS])
def test_the_walk_notices(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    module = made(mutant)
    if mutant.module is protocol:
        monkeypatch.setattr(replica, "decide", module.decide)
    else:
        monkeypatch.setattr(world, "Replica", module.Replica)
        monkeypatch.setattr(test_replica, "Replica", module.Replica)
    with pytest.raises((AssertionError, ValueError, KeyError)):
        noticed()
