"""`python -m kvshare_research.attack.channels`: every way to another's secret but the clock, each with a hole planted.

A channel gives a matrix [trial, candidate] of what the attacker goes by, larger meaning "more likely", candidate 0 the
right one. With its hole planted the attack must succeed: else that it fails against the guard would mean nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np

from kvshare_research.cli import app
from kvshare_research.core import fetching, serving
from kvshare_research.core import messages as m
from kvshare_research.core.ledger import Ledger
from kvshare_research.core.nouns import AccountSpec, Action, Piece, Plan
from kvshare_research.core.rights import EVERYBODY, TENANT, Reader, Scope, Ticket, may_deliver, open_read
from kvshare_research.core.running import WorkerPolicy
from kvshare_research.core.worker import Worker
from kvshare_research.guard.keys import KeyRing, RootSecret
from kvshare_research.guard.layered import Layered
from kvshare_research.guard.namespace import ModelSpace
from kvshare_research.guard.one_group import OneGroup
from kvshare_research.retention.lru import LruRetention
from kvshare_research.schedule.dlpm import DlpmSchedule
from kvshare_research.schedule.fcfs import FcfsSchedule

from .experiment import Case, Row, told, verdict
from .probing import ATTACKER, BASE, BLOCK_TOKENS, GUILD, OTHERS, VICTIM, VOCABULARY, Scene, Ways, play
from .prompts import Tokens, Writer, random_text
from .scores import Floats, power

SPACE: Final = ModelSpace(model="modelled", dtype="float16", block_tokens=BLOCK_TOKENS)
LONGEST_PREFIX_FIRST: Final = DlpmSchedule(quantum_tokens=1 << 40)
CAPACITY: Final = 64
Channel = Callable[[Scene, bool], Floats]


# ------------------------------------------------------------------ against a whole fleet in virtual time
def by_order(scene: Scene, hole: bool) -> Floats:
    """Which of the candidates sent at once is answered first, where the queue prefers long matches (PromptPeek)."""
    at_once = replace(scene, nodes=1, gap_us=0)
    ways = Ways(schedule=LONGEST_PREFIX_FIRST, dummies=6)
    return -play(at_once, OneGroup() if hole else Layered(), ways=ways).finished_us


def by_routing(scene: Scene, hole: bool) -> Floats:
    """Which candidate is not served at the nearest node: the router went to where the victim had been."""
    ways = Ways(apart=True, dummies=scene.nodes)  # which bring the public text to every node
    return play(replace(scene, others_gap_us=0), OneGroup() if hole else Layered(), ways=ways).elsewhere


def by_claimed_identity(scene: Scene, hole: bool) -> Floats:
    """Prompts that say they are the victim's. The hole: a driver that believes them."""
    return play(scene, Layered(), ways=Ways(claims=True, believed=hole)).reused_tokens


# ------------------------------------------------------------------ against one worker
@dataclass
class _Node:
    """A worker that has computed one prompt of the victim, whose secret is text of `shared` or the victim's own."""

    writer: Writer
    worker: Worker
    secret: Tokens

    @classmethod
    def of(cls, scene: Scene, trial: int, shared: Scope | None = None, ledger: type[Ledger] = Ledger) -> _Node:
        directory = Layered().directory(BASE)
        directory = replace(directory, accounts=Layered().accounts(directory, CAPACITY))
        draw = np.random.default_rng((scene.seed, trial))
        writer = Writer(
            tenancy=Layered(), directory=directory, ring=KeyRing(RootSecret.from_seed(trial)), space=SPACE, draw=draw,
            vocabulary=VOCABULARY, template=random_text(draw, VOCABULARY, 2 * BLOCK_TOKENS), shared=shared,
        )  # fmt: skip
        policy = WorkerPolicy(
            retention=LruRetention(), schedule=FcfsSchedule(), block_tokens=BLOCK_TOKENS, block_bytes=1, admitted_max=9
        )
        pool = ledger(capacity_blocks=CAPACITY, accounts=directory.accounts, retention=policy.retention)
        worker = Worker(node=0, incarnation=1, policy=policy, ledger=pool, directory=directory)
        return cls(writer, worker, writer.text(scene.secret_blocks))

    def dispatched(self, tenant: int, secret: Tokens, number: int, pieces: tuple[Piece, ...] = ()) -> m.Dispatched:
        """The prompt as the router would hand it on."""
        request, made, _ = self.writer.prompt(tenant, secret, number=number, at_us=0, node_count=1)
        plan = Plan(
            request_id=number, action=Action.PULL if pieces else Action.RESIDENT, executor=0, resident_blocks=0,
            front_blocks=0, pieces=pieces, quoted_ttft_us=0,
        )  # fmt: skip
        return m.Dispatched(request=request, chain=made, plan=plan, reader=Reader(tenant, 0, 0))

    def served(self, event: m.Dispatched) -> None:
        """The prompt is computed and its blocks are findable."""
        (work,) = [e for e in self.worker.handle(event, 0) if isinstance(e, m.Prefill)]
        done = m.PrefillDone(
            request_id=work.request_id, end_token=work.end_token, elapsed_us=1, merge_us=0, first_token=1
        )
        self.worker.handle(done, 1)


def by_refusals(scene: Scene, hole: bool) -> Floats:
    """Is the victim there now? Asked by a prompt that fits beside it. The hole: refusing by how full the pool is."""
    scores = np.zeros((scene.secrets, 2))
    for trial in range(scene.secrets):
        for victim in (True, False):
            node = _Node.of(scene, trial, ledger=_FillLevel if hole else Ledger)
            if victim:
                node.worker.handle(node.dispatched(VICTIM, node.writer.text(CAPACITY // 2), 1), 0)
            effects = node.worker.handle(node.dispatched(ATTACKER, node.writer.text(CAPACITY // 2), 2), 1)
            scores[trial, int(not victim)] = any(isinstance(e, m.ReturnPlan) for e in effects)
    return scores


@final
class _FillLevel(Ledger):
    """Refuses what does not fit at this moment."""

    def fits_ever(self, counts: dict[int, int]) -> str | None:
        return "full" if sum(counts.values()) > self.free_blocks else None


def by_old_ticket(scene: Scene, hole: bool) -> Floats:
    """A fetch under a ticket of before the attacker left the group and came back. The hole: epochs are not compared."""
    scores = np.zeros((scene.secrets, 2))
    rule = _without_epoch if hole else may_deliver
    for trial in range(scene.secrets):
        node = _Node.of(scene, trial, shared=GUILD)
        row = node.writer.directory.membership(ATTACKER, GUILD)
        old = Ticket(row.grant_epoch, 1, 1 << 40)
        again = node.writer.directory.revoked(ATTACKER, 1).granted(ATTACKER, 1)
        node.worker.handle(m.DirectoryChanged(directory=again), 0)
        start = 2  # after the template
        piece = Piece(source=1, start=start, end=start + scene.secret_blocks)
        effects = node.worker.handle(node.dispatched(ATTACKER, node.secret, 2, (piece,)), 1)
        (fetch,) = [e for e in effects if isinstance(e, m.Fetch)]
        landed = m.FetchLanded(
            fetch_id=fetch.fetch_id, block_count=piece.block_count, tickets=(old,) * piece.block_count,
            origins=(VICTIM,) * piece.block_count, bytes_moved=1, elapsed_us=1, merge_us=0, intact=True,
            marks=fetch.marks,
        )  # fmt: skip
        running = node.worker.fetching.running(fetch.fetch_id)
        with _planted(fetching, "may_deliver", rule):
            node.worker.handle(landed, 2)
        scores[trial, 0] = running is not None and bool(running.fetched)
    return scores


def _without_epoch(ticket: Ticket, scope: Scope, reader: Reader, membership: Any, *rest: Any) -> bool:
    return may_deliver(ticket._replace(grant_epoch=membership.grant_epoch), scope, reader, membership, *rest)


def by_known_hash(scene: Scene, hole: bool) -> Floats:
    """The attacker has got hold of the hash and asks the holder for the bytes. The hole: who knows it may have it."""
    scores = np.zeros((scene.secrets, 2))
    for trial in range(scene.secrets):
        node = _Node.of(scene, trial)
        event = node.dispatched(VICTIM, node.secret, 1)
        node.served(event)
        names = event.chain.block_hashes(2, 2 + scene.secret_blocks)
        marks = b"".join(event.chain.mark(i) for i in range(2, 2 + scene.secret_blocks))
        strange = tuple(node.writer.draw.bytes(16) for _ in names)
        with _planted(serving, "open_read", _to_anybody if hole else open_read):
            for candidate, hashes in enumerate((names, strange)):
                asked = m.FetchAsked(
                    fetch_id=candidate, asker=1, reader=Reader(ATTACKER, 0, 0), hashes=hashes, revision=0, marks=marks
                )
                scores[trial, candidate] = any(isinstance(e, m.SendBlocks) for e in node.worker.handle(asked, 2))
    return scores


def _to_anybody(scope: Scope, reader: Reader, membership: Any, generation: int, now_us: int, lease_us: int) -> Ticket:
    return Ticket(0, generation, now_us + lease_us)


def by_listing(scene: Scene, hole: bool) -> Floats:
    """The attacker reads all hashes a node holds and looks for its guesses among them. The hole: it has the root."""
    scores = np.zeros((scene.secrets, scene.candidates))
    for trial in range(scene.secrets):
        node = _Node.of(scene, trial)
        node.served(node.dispatched(VICTIM, node.secret, 1))
        listed = {block.block_hash for block in node.worker.ledger.named()}
        ring = KeyRing(RootSecret.from_seed(trial if hole else -1 - trial))
        theirs = replace(node.writer, ring=ring)
        for candidate in range(scene.candidates):
            guess = node.secret if candidate == 0 else theirs.text(scene.secret_blocks)
            _, made, _ = theirs.prompt(VICTIM, guess, number=9, at_us=0, node_count=1)
            scores[trial, candidate] = made.block_hash(2) in listed
    return scores


def by_flood(scene: Scene, hole: bool) -> Floats:
    """Share of the victim's blocks gone, with and without a flood of never repeated prompts. The hole: no floor."""
    scores = np.zeros((scene.secrets, 2))
    blocks = CAPACITY // 4
    directory = Layered().directory(BASE)
    own, other = (directory.scope_id(Scope(TENANT, t)) for t in (VICTIM, OTHERS))
    for trial in range(scene.secrets):
        specs = (
            AccountSpec(scope_id=own, reserved_blocks=0 if hole else blocks, limit_blocks=CAPACITY),
            AccountSpec(scope_id=directory.scope_id(EVERYBODY), reserved_blocks=0, limit_blocks=CAPACITY),
        )
        for candidate, flood in enumerate((4 * CAPACITY, 0)):
            ledger = Ledger(capacity_blocks=CAPACITY, accounts=specs, retention=LruRetention())
            _fill(ledger, own, blocks, trial, now_us=0)
            _fill(ledger, other, flood, trial + 1, now_us=1)
            scores[trial, candidate] = blocks - sum(b.scope_id == own for b in ledger.named())
    return scores


def _fill(ledger: Ledger, scope_id: int, count: int, seed: int, now_us: int) -> None:
    draw = np.random.default_rng((seed, scope_id))
    for i in range(count):
        taken, _ = ledger.allocate(scope_id, 1, now_us + i)
        if taken is not None:
            ledger.name(taken[0], draw.bytes(16), None, 0, now_us + i)
            ledger.drop(taken[0])


@contextmanager
def _planted(module: Any, name: str, rule: Callable[..., Any]) -> Iterator[None]:
    """While it lasts, the shipped rule of this module is another one."""
    before = getattr(module, name)
    setattr(module, name, rule)
    try:
        yield
    finally:
        setattr(module, name, before)


CHANNELS: Final[Mapping[str, Channel]] = {
    "order of answers": by_order,
    "node that served": by_routing,
    "claimed identity": by_claimed_identity,
    "refusals": by_refusals,
    "old ticket": by_old_ticket,
    "known hash": by_known_hash,
    "listing": by_listing,
    "cache flood": by_flood,
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """Each channel twice: with its hole, and as shipped."""

    scene: Scene
    out: str | None = None  # a file for the rows, as JSON

    def run(self) -> int:
        """Prints two rows per channel; 1 if an attack is not real or a guard does not withstand it."""
        return told(self.rows(), "simulated", self.out)

    def rows(self) -> Iterator[Row]:
        """One after the other, as they come."""
        for name, channel in CHANNELS.items():
            for hole in (True, False):
                case = Case(name="with a hole" if hole else "as shipped", tenancy=Layered(), withstands=not hole)
                found = power(channel(self.scene, hole), self.scene.seed)
                yield Row(guard=case.name, signal=name, power=found, verdict=verdict(case, found, real=True))


@app("attack_channels", module="kvshare_research.attack.channels")
def main(cfg: Mapping[str, Any], comm: Any) -> int:
    """Two rows per channel; 1 if one is not as it must be."""
    from kvshare_research.build import build
    from kvshare_research.config import plain

    code: int = build(plain(cfg)["channels"], "channels").run()
    return code


if __name__ == "__main__":
    sys.exit(main())
