"""Two readings of the rules agree on all inputs: CPython under forking, and the translation of the syntax."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import z3

from kvshare_research.core import account as rules
from kvshare_research.core import costing, protocol, rights, splitting

from .ast2z3 import Translator, equal, record
from .cost import choice, coefficients
from .reads import ticket
from .spec import World, ints, membership, reader, scope
from .symexec import paths


def cases() -> list[tuple[ModuleType, str, tuple[Any, ...]]]:
    """(module, function, symbolic arguments) of every rule that both readings can read."""
    w, n, s, r, row = World(), z3.Int("n"), scope("scope"), reader(), membership()
    quota, (now, lease, generation) = ints("new", "reserved limit priority"), z3.Ints("now lease generation")
    link, part, at = (
        ints("link", "rtt inflight rate moved"),
        ints("part", "a b c d e f"),
        ints("source", "setup per_block n"),
    )
    counted = [(rules, f, (w.node, w.a, n)) for f in ("admit", "replace_own", "release", "pin", "unpin")]
    return [
        *counted,
        (rules, "floor_of", (w.a,)),
        (rules, "may_evict", (w.v, w.a, n)),
        (rules, "may_replace_own", (w.a, n)),
        (rules, "admit_evicting", (w.node, w.a, w.v, n)),
        (rules, "configure", (w.node, w.a, *quota)),
        (rules, "remove", (w.node, w.a)),
        (rights, "may_read", (s, r, row, now)),
        (rights, "grant", (row, now)),
        (rights, "revoke", (row,)),
        (rights, "open_read", (s, r, row, generation, now, lease)),
        (rights, "may_deliver", (ticket(), s, r, row, generation, now)),
        (rights, "tightens", (s, scope("after"))),
        (rights, "assign", (s, scope("after"), z3.Bool("belongs"), n)),
        (costing, "prefill_ps", (coefficients()[0], *part[:2])),
        (costing, "up_to_us", (now,)),
        (costing, "setup_ps", tuple(link[:3])),
        (costing, "fetch_ps", tuple(link[:3])),
        (costing, "fetch_us", tuple(link)),
        (costing, "overlap_us", tuple(part[:3])),
        (costing, "ttft_us", tuple(part)),
        (costing, "better", (choice("best"), choice("candidate"))),
        (splitting, "finish_ps", tuple(at)),
        (splitting, "next_finish_ps", tuple(at)),
        (splitting, "capped_ps", tuple(part[:4])),
        (protocol, "decide", tuple(ints("m", "incarnation seq kind message_incarnation message_seq"))),
    ]


def count_agreeing() -> tuple[int, int]:
    """(functions, paths) on which the two readings agree for all inputs; raises with a counterexample."""
    readings = 0
    for module, name, args in cases():
        translated = Translator(module).call(name, [record(a) for a in args])
        for path in paths(getattr(module, name), *args):
            solver = z3.Solver()
            solver.add(path.condition, z3.Not(equal(record(path.value), translated)))
            assert solver.check() == z3.unsat, f"{name}: the readings differ where {solver.model()}"
            readings += 1
    return len(cases()), readings
