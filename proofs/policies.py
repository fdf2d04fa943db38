"""Whatever a policy answers, nothing is read, delivered or evicted that the rules do not allow.

The shipping methods run unmodified; around them stands what a policy, an index or a peer may have made of the world:
any block may or may not be found, under any scope, with any pin granted or refused, and any victim may be proposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import z3

from kvshare_research.core import messages as m
from kvshare_research.core.fetching import Fetching
from kvshare_research.core.fetching import _Fetch as Open
from kvshare_research.core.foresight import best_source
from kvshare_research.core.ledger import Ledger
from kvshare_research.core.nouns import HASH_BYTES, MARK_BYTES, Chain, Piece, Run, Verdict
from kvshare_research.core.rights import Ticket
from kvshare_research.core.running import Running, State
from kvshare_research.core.serving import Serving
from kvshare_research.core.victims import Block
from kvshare_research.core.worker import Worker

from .kit import Obligation, claim, theorem
from .spec import Rows, World, ints, permitted, reader, same
from .symexec import paths

BLOCKS = 2
CHAIN = Chain(
    hashes=bytes(range(BLOCKS * HASH_BYTES)),
    scope_ends=tuple((i, i + 1) for i in range(BLOCKS)),
    block_tokens=1,
    marks=bytes(BLOCKS * MARK_BYTES),
)


class Anything:
    """A ledger that holds whatever it likes: block i, of scope i, may be there, and may be pinned."""

    def __init__(self) -> None:
        self.blocks = [Block(slot=i, scope_id=i, generation=z3.Int(f"generation{i}")) for i in range(BLOCKS)]

    def find(self, block_hash: bytes, now_us: Any, mark: bytes) -> Block | None:
        position = CHAIN.hashes.index(block_hash) // HASH_BYTES
        return self.blocks[position] if z3.Bool(f"found{position}") else None

    def pin_first(self, blocks: Sequence[Block]) -> int:
        return next((i for i, block in enumerate(blocks) if not z3.Bool(f"pinned{block.slot}")), len(blocks))

    def collision(self, block_hash: bytes, mark: bytes) -> None:
        return None

    def drop_all(self, blocks: Sequence[Block]) -> None: ...

    def touch(self, block: Block, now_us: Any) -> None: ...


@theorem(
    "POLICY",
    "whatever policies, the index and peers say: a holder sends, a reader uses and a worker reuses only what may be "
    "read now; a victim goes only where floors, pins and classes let it; a prefetch moves no more than was judged",
    Serving.ask,
    Fetching.land,
    Worker._resident_of,
    Ledger._give_up,
    best_source,
)
def policy() -> Iterator[Obligation]:
    rows, r, now = Rows(BLOCKS), reader(), z3.Int("now")
    may = [permitted(s, r, g, now) for s, g in zip(rows.scopes, rows.ghosts, strict=True)]
    pre = rows.sane()
    yield from _sent(rows, r, now, may, pre)
    yield from _delivered(rows, r, now, may, pre)
    yield from _reused(rows, r, now, may, pre)
    yield from _evicted()
    yield from _moved()


def _sent(rows: Rows, r: Any, now: Any, may: list[Any], pre: dict[str, Any]) -> Iterator[Obligation]:
    asked = m.FetchAsked(
        fetch_id=1, asker=1, reader=r, hashes=CHAIN.block_hashes(0, BLOCKS), revision=0, marks=CHAIN.marks
    )

    def ask() -> Any:
        return Serving(ledger=Anything(), lease_us=z3.Int("lease")).ask(asked, rows, now)  # type: ignore[arg-type]

    for i, path in enumerate(paths(ask, assume=list(pre.values()))):
        if isinstance(path.value, m.SendBlocks):
            current = [t.grant_epoch == row.grant_epoch for t, row in zip(path.value.tickets, rows.rows, strict=True)]
            yield claim(f"sent/{i}", {**pre, "path": path.condition}, z3.And(*may, *current))


def _delivered(rows: Rows, r: Any, now: Any, may: list[Any], pre: dict[str, Any]) -> Iterator[Obligation]:
    tickets = tuple(Ticket(*ints(f"ticket{i}", "grant_epoch generation expiry_us")) for i in range(BLOCKS))
    issued, lease = z3.Ints("issued lease")

    def land() -> tuple[int, ...]:
        event = SimpleNamespace(request=SimpleNamespace(request_id=0), chain=CHAIN, reader=r)
        blocks = [Block(slot=i, scope_id=i, generation=0) for i in range(BLOCKS)]
        running = Running(event=event, dispatched_us=0, blocks=blocks, states=[State.PENDING] * BLOCKS, fetches={1})  # type: ignore[arg-type]
        fetching = Fetching(lease_us=lease, deadline_us=0)
        piece = Piece(source=1, start=0, end=BLOCKS)
        fetching._fetches[1] = Open(running=running, piece=piece, issued_us=issued, alone=True)
        landed = m.FetchLanded(
            fetch_id=1, block_count=z3.Int("block_count"), tickets=tickets, origins=(1,) * BLOCKS, bytes_moved=0,
            elapsed_us=0, merge_us=0, intact=z3.Bool("intact"), marks=CHAIN.marks,
        )  # fmt: skip
        fetching.land(landed, running, rows, now)  # type: ignore[arg-type]
        assert (State.PRESENT in running.states) == bool(running.fetched)
        return tuple(sorted(running.fetched))

    for i, path in enumerate(paths(land, assume=list(pre.values()))):
        if path.value:
            fresh = [t.grant_epoch == row.grant_epoch for t, row in zip(tickets, rows.rows, strict=True)]
            safe = z3.And(*may, *fresh, z3.Bool("intact"), now < issued + lease)
            yield claim(f"delivered/{i}", {**pre, "path": path.condition}, safe)


def _reused(rows: Rows, r: Any, now: Any, may: list[Any], pre: dict[str, Any]) -> Iterator[Obligation]:
    def reuse() -> int:
        worker: Any = SimpleNamespace(ledger=Anything(), directory=rows, refused_reads=0)
        worker._readable = lambda block, reader, now_us: Worker._readable(worker, block, reader, now_us)
        return len(Worker._resident_of(worker, CHAIN, BLOCKS, r, now))

    for i, path in enumerate(paths(reuse, assume=list(pre.values()))):
        if path.value:
            yield claim(f"reused/{i}", {**pre, "path": path.condition}, z3.And(*may[: path.value]))


def _evicted() -> Iterator[Obligation]:
    w = World()
    victim = Block(slot=0, scope_id=1, generation=0)

    def give_up() -> tuple[bool, Any]:
        ledger: Any = SimpleNamespace(node=w.node, accounts={0: w.a, 1: w.v})
        ledger.account = ledger.accounts.__getitem__
        return Ledger._give_up(ledger, victim, 0), ledger

    inv = w.inv()
    for i, path in enumerate(paths(give_up, assume=list(inv.values()))):
        ok, ledger = path.value
        a, v = ledger.accounts[0], ledger.accounts[1]
        left = z3.And(
            v.used == w.v.used - 1, v.used >= w.v.reserved, v.used >= w.v.pinned, w.v.priority <= w.a.priority
        )
        kept = z3.And(same(a, w.a), same(v, w.v), same(ledger.node, w.node))
        yield claim(f"evicted/{i}", {**inv, "path": path.condition}, left if ok else kept)


def _moved() -> Iterator[Obligation]:
    """Any two runs that the judge let pass, on any nodes: a prefetch asks a holder for no more than it was judged."""
    counts = z3.Ints("run0 run1")
    pre = {"runs": z3.And(*[c >= 1 for c in counts])}
    verdict = Verdict(
        runs=tuple(Run(node=i + 1, tier=0, block_count=c) for i, c in enumerate(counts)), readable_blocks=0
    )
    for i, path in enumerate(paths(best_source, verdict, 0, frozenset((1, 2)), assume=list(pre.values()))):
        blocks, holder = path.value
        yield claim(f"moved/{i}", {**pre, "path": path.condition}, blocks <= counts[holder - 1])
