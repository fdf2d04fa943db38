"""The attacks of a run: each tenancy, each signal, with what must be true of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import final

from kvshare_research.core.ports import Tenancy
from kvshare_research.core.shaping import UNSHAPED, Shape, ShapeKind
from kvshare_research.guard.isolated import Isolated
from kvshare_research.guard.layered import Layered
from kvshare_research.guard.one_group import OneGroup
from kvshare_research.guard.shard import Shard

from .probing import Scene, Seen, play
from .scores import Floats, Power, power

REAL_AT_LEAST = 0.95  # an attack that does not work without a guard shows nothing about a guard
SAFE_AT_MOST = 0.55


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A guard, and whether it must withstand (True), must fail (False), or is only reported (None)."""

    name: str
    tenancy: Tenancy
    withstands: bool | None
    shared_secret: bool = False
    shape: Shape = UNSHAPED


PADDED = Shape(kind=ShapeKind.PAD, margin_permille=1_250)
CONSTANT = Shape(kind=ShapeKind.CONSTANT, margin_permille=1_250)
CASES = (
    Case(name="one_group", tenancy=OneGroup(), withstands=False),
    Case(name="isolated", tenancy=Isolated(), withstands=True),
    Case(name="shard", tenancy=Shard(), withstands=True),
    Case(name="layered", tenancy=Layered(), withstands=True),
    Case(name="layered, constant shape", tenancy=Layered(), withstands=True, shape=CONSTANT),
    Case(name="layered, secret in a group's text", tenancy=Layered(), withstands=None, shared_secret=True),
    Case(
        name="layered, secret in a group's text, padded", tenancy=Layered(), withstands=None, shared_secret=True,
        shape=PADDED,
    ),
    Case(
        name="layered, secret in a group's text, constant shape", tenancy=Layered(), withstands=None,
        shared_secret=True, shape=CONSTANT,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One signal under one guard."""

    guard: str
    signal: str
    power: Power
    verdict: str  # as it must be, NOT AS IT MUST BE, reported
    price: str = ""  # of an attack by time: what its probes took


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Attacks:
    """Probing by time, by order of answers asked for at once, and by the count of reused tokens that some bill."""

    scene: Scene
    out: str | None = None  # a file for the rows, as JSON

    def run(self) -> int:
        """Prints a row per guard and signal; 1 if a guard that must withstand does not, or the attack is not real."""
        return told(self.rows(), "simulated", self.out)

    def rows(self) -> Iterator[Row]:
        """One after the other, as they come."""
        for case in CASES:
            apart = self._seen(case, self.scene)
            at_once = self._seen(case, replace(self.scene, gap_us=0, seed=self.scene.seed + 1))
            signals = {
                "time": -apart.ttft_us, "order": -at_once.finished_us, "reused tokens": apart.reused_tokens,
                "served by": apart.elsewhere,
            }  # fmt: skip
            for signal, scores in signals.items():
                found = power(scores, self.scene.seed)
                # a first-come queue keeps the order, and half the victims are nearest to where the attacker is:
                # these two have stronger attacks of their own among the channels
                real = signal not in ("order", "served by")
                price = priced(apart.ttft_us, apart.late) if signal == "time" else ""
                yield Row(
                    guard=case.name, signal=signal, power=found, verdict=verdict(case, found, real), price=price
                )  # fmt: skip

    def _seen(self, case: Case, scene: Scene) -> Seen:
        return play(scene, case.tenancy, shared_secret=case.shared_secret, shape=case.shape)


def verdict(case: Case, found: Power, real: bool) -> str:
    """Whether the row is as it must be. `real`: the signal must work where nothing guards."""
    if case.withstands is None or not (case.withstands or real):
        return "reported"
    good = found.high <= SAFE_AT_MOST if case.withstands else found.auc >= REAL_AT_LEAST
    return "as it must be" if good else "NOT AS IT MUST BE"


def priced(ttft_us: Floats, late: Floats) -> str:
    """Mean time of the right candidates and of the wrong ones, and the share of answers that their shape did not
    cover."""
    right, wrong = ttft_us[:, 0].mean() / 1000, ttft_us[:, 1:].mean() / 1000
    return f"right {right:.1f} ms, wrong {wrong:.1f} ms" + (f", late {late.mean():.1%}" if late.any() else "")


def told(rows: Iterable[Row], label: str, out: str | None) -> int:
    """Prints the rows as they come, and writes them to `out`; 1 if one is not as it must be."""
    print(
        f"{'guard':48} {'signal':13} {'AUC':>5}  {'95 % interval':14} {'success@1':>9} {'@3':>5} "
        f"{'blind@1':>7} {'secrets x probes':>16}  [{label}]"
    )
    kept = []
    for row in rows:
        kept.append(row)
        p = row.power
        print(
            f"{row.guard:48} {row.signal:13} {p.auc:5.3f}  {p.low:5.3f} to {p.high:5.3f} {p.success_at_1:9.3f} "
            f"{p.success_at_3:5.3f} {1 / p.probes_per_secret:7.3f} {f'{p.secrets} x {p.probes_per_secret}':>16}  "
            f"{row.verdict}{row.price and f'; {row.price}'}",
            flush=True,
        )
    if out is not None:
        Path(out).write_text(json.dumps([asdict(row) for row in kept], indent=1) + "\n")
    return int(any(row.verdict.startswith("NOT") for row in kept))
