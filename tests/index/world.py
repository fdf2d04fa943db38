"""Workers that write logs, a network that loses, repeats and reorders, and replicas that must never be wrong.

One world serves the Hypothesis machine and the long random walk. The oracle keeps the state after every entry of
every incarnation's log: a replica's view must be one of them, and never an earlier one than before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kvshare_research.core.journal import Journal, Rows
from kvshare_research.core.messages import AskSnapshot, BlocksRemoved, BlocksStored, PoolEvent, PoolMessage, TierCleared
from kvshare_research.core.replica import Replica, SavedView

from . import kit

DEPTH = 5
CHAINS = [(0,) * DEPTH, *((0,) * k + (1,) + (0,) * (DEPTH - k - 1) for k in range(DEPTH))]
PATHS = sorted({c[:k] for c in CHAINS for k in range(1, DEPTH + 1)})
Held = Counter[tuple[int, kit.Path]]  # copies by (tier, path)


def rows_of(held: Held) -> Rows:
    return tuple(sorted((t, kit.block(p), kit.parent(p), c) for (t, p), c in held.items()))


@dataclass
class Worker:
    journal: Journal
    held: Held = field(default_factory=Counter)


class World:
    """`kinds` names an index per replica. Every method is one step; `check` is the invariant."""

    def __init__(self, kinds: tuple[str, ...], node_count: int = 2, kept_max: int = 4, window: int = 3) -> None:
        self.workers = [Worker(Journal(n, 1, kept_max)) for n in range(node_count)]
        self.states: dict[tuple[int, int], list[Rows]] = {(n, 1): [()] for n in range(node_count)}
        self.kinds, self.window = kinds, window
        self.replicas = [self.fresh(k) for k in kinds]
        self.wires: list[list[PoolMessage]] = [[] for _ in kinds]
        self.reached: list[dict[int, tuple[int, int]]] = [{} for _ in kinds]
        self.counted: Counter[str] = Counter()  # by replicas that are no more
        self.saved: dict[int, tuple[tuple[SavedView, ...], dict[int, tuple[int, int]]]] = {}
        self.now_us = 0

    def fresh(self, kind: str) -> Replica:
        store = kit.load(kind).new_store(len(self.workers))
        return Replica(store, len(self.workers), window_entries=self.window, ask_interval_us=0)

    # ------------------------------------------------------------- workers
    def write(self, n: int, body: PoolEvent) -> None:
        worker = self.workers[n]
        message = worker.journal.write(body)
        self.states[n, message.incarnation].append(rows_of(worker.held))
        self.send(message)

    def send(self, message: PoolMessage) -> None:
        for wire in self.wires:
            wire.append(message)

    def store(self, n: int, path: kit.Path, start: int, tier: int) -> None:
        stretch = [path[: k + 1] for k in range(min(start, len(path) - 1), len(path))]
        self.workers[n].held.update((tier, p) for p in stretch)
        hashes = tuple(map(kit.block, stretch))
        self.write(n, BlocksStored(tier=tier, parent=kit.parent(stretch[0]), hashes=hashes))

    def remove(self, n: int, path: kit.Path, tier: int) -> None:
        """A removal of one copy, perhaps of a block that is not there."""
        self.workers[n].held = self.workers[n].held - Counter({(tier, path): 1})
        self.write(n, BlocksRemoved(tier=tier, hashes=(kit.block(path),)))

    def clear(self, n: int, tier: int | None) -> None:
        worker = self.workers[n]
        worker.held = Counter({k: c for k, c in worker.held.items() if tier not in (None, k[0])})
        self.write(n, TierCleared(tier=tier))

    def crash(self, n: int) -> None:
        """Everything in memory is lost; the next incarnation is larger than any before."""
        incarnation = self.workers[n].journal.incarnation + 1
        self.workers[n] = Worker(Journal(n, incarnation, kept_max=4))
        self.states[n, incarnation] = [()]

    def heartbeat(self, n: int) -> None:
        self.send(self.workers[n].journal.heartbeat())

    def answer(self, ask: AskSnapshot) -> tuple[PoolMessage, ...]:
        worker = self.workers[ask.node]
        messages = worker.journal.answer(ask.incarnation, ask.after_seq, lambda: rows_of(worker.held))
        for m in messages:  # a rejoin starts a log whose first entry is the snapshot
            self.states.setdefault((ask.node, m.incarnation), [(), rows_of(worker.held)])
        return messages

    def late_answer(self, n: int, after_seq: int) -> tuple[PoolMessage, ...]:
        journal = self.workers[n].journal
        return self.answer(AskSnapshot(node=n, incarnation=journal.incarnation, after_seq=min(after_seq, journal.seq)))

    def snapshot(self, n: int) -> PoolMessage:
        """A full snapshot, whatever the journal keeps."""
        (message,) = self.answer(AskSnapshot(node=n, incarnation=0))
        return message

    # ------------------------------------------------------------- network and routers
    def deliver(self, r: int, message: PoolMessage) -> None:
        """Requests for repair are answered onto the wire, where the answers may be lost again."""
        self.now_us += 1
        for ask in self.replicas[r].receive(message, self.now_us):
            self.wires[r].extend(self.answer(ask))

    def deliver_all(self, r: int) -> None:
        wire, self.wires[r] = self.wires[r], []
        for message in wire:
            self.deliver(r, message)

    def guess(self, r: int, n: int, path: kit.Path, tier: int) -> None:
        hashes = [kit.block(path[:k]) for k in range(1, len(path) + 1)]
        self.replicas[r].guess(n, tier, None, hashes, self.now_us + 50)

    def save_and_load(self, r: int) -> None:
        """A router restarts from its own snapshot, without its guesses."""
        saved = self.replicas[r].save()
        self.replace(r)
        self.replicas[r].load(saved)
        assert self.replicas[r].save() == saved

    def replace(self, r: int) -> None:
        """A new and empty replica; what the old one counted is kept."""
        self.counted.update(self.replicas[r].counters)
        self.replicas[r] = self.fresh(self.kinds[r])

    def anomalies(self) -> Counter[str]:
        """All that was counted so far, by every replica."""
        return sum((r.counters for r in self.replicas), Counter(self.counted))

    def remember(self, r: int) -> None:
        """A router writes its snapshot, and goes on."""
        self.saved[r] = (self.replicas[r].save(), dict(self.reached[r]))

    def crash_router(self, r: int) -> None:
        """A router dies and comes back as its last snapshot had it, which may be long ago (never: empty)."""
        saved, reached = self.saved.get(r, ((), {}))
        self.replace(r)
        self.replicas[r].load(saved)
        self.reached[r] = dict(reached)

    def heal(self) -> None:
        """One heartbeat, and what it makes the replica ask for, is enough (two where the worker was fenced)."""
        for r, replica in enumerate(self.replicas):
            self.wires[r] = []
            for n in range(len(self.workers)):
                for _ in range(2):
                    pending = [self.workers[n].journal.heartbeat()]
                    answers = 0
                    while pending:
                        answers += 1
                        assert answers < 100, "asks without end"
                        message = pending.pop(0)
                        self.now_us += 1
                        pending.extend(m for ask in replica.receive(message, self.now_us) for m in self.answer(ask))
                assert not replica.views[n].behind
        for r, replica in enumerate(self.replicas):
            for n, worker in enumerate(self.workers):
                if replica.views[n].incarnation == worker.journal.incarnation:  # else another replica's fence moved it
                    assert replica.rows(n) == rows_of(worker.held), "not converged after heal"
            self.wires[r] = []

    # ------------------------------------------------------------- invariant
    def check(self) -> None:
        for r, replica in enumerate(self.replicas):
            replica.expire(self.now_us)
            truth: set[tuple[int, int, bytes]] = set()
            for n, view in enumerate(replica.views):
                states = self.states.get((n, view.incarnation), [()])
                assert view.seq < len(states), "an entry was believed that was never written"
                assert replica.rows(n) == states[view.seq], "a view that is not the replay of its log"
                assert (view.incarnation, view.seq) >= self.reached[r].get(n, (0, 0)), "went back"
                self.reached[r][n] = (view.incarnation, view.seq)
                truth |= {(n, t, h) for t, h, _, _ in states[view.seq]} | {
                    (n, t, h) for t, known in view.guesses.items() for h in known
                }
            for path in CHAINS:
                assert kit.depths(replica.store, path) == longest(truth, path, len(self.workers))
            assert replica.store.entry_count() == len(truth)


def longest(truth: set[tuple[int, int, bytes]], path: kit.Path, node_count: int) -> dict[tuple[int, int], int]:
    depths = {}
    for n in range(node_count):
        for t in range(2):
            k = 0
            while k < len(path) and (n, t, kit.block(path[: k + 1])) in truth:
                k += 1
            if k:
                depths[n, t] = k
    return depths
