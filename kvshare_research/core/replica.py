"""A router's copy of what every worker holds, kept true to a moment of each worker's log whatever the network does.

The decision on each message is `protocol.decide`; this module owns the tables around it. A stale entry may cost
time, never isolation and never a wrong token: the holder decides again when bytes are asked for.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import final

from .journal import Rows
from .messages import AskSnapshot
from .nouns import HASH_BYTES, Chain, Match
from .poollog import BlocksRemoved, BlocksStored, Heartbeat, PoolMessage, Snapshot, TierCleared
from .ports import IndexStore
from .protocol import APPLY, ASK, EVENT, HEARTBEAT, HOLD, IGNORE, INSTALL, SNAPSHOT, Decision, decide

SILENCE_US = 1_000_000  # after which a node that must have stored something is taken for one that does not publish
TIERS_MAX = 64  # a larger tier number is taken for a publisher's error
Spot = tuple[int, bytes]  # (tier, hash)
Guess = tuple[int, int, tuple[bytes, ...]]  # until when, the tier, the hashes


@dataclass(slots=True)
class View:
    """What is known of one worker: `seq` entries of `incarnation` applied, `head_seq` known to be written."""

    incarnation: int = 0
    seq: int = 0
    head_seq: int = 0
    waiting: dict[int, PoolMessage] = field(default_factory=dict)  # by seq: came ahead of a gap
    heard_us: int | None = None
    asked_us: int | None = None  # the last unanswered request for repair
    guesses: dict[int, dict[bytes, int]] = field(default_factory=dict)  # by tier: expected blocks, and until when
    ends: list[Guess] = field(
        default_factory=list
    )  # a heap of all that was guessed; some is guessed no more, or longer
    owed_us: int | None = None  # since when it has computed blocks and said nothing

    @property
    def behind(self) -> bool:
        """Whether the worker is known to have written more than is applied here."""
        return self.seq < self.head_seq


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedView:
    """One worker's view, to be written to disk or sent; guesses are not saved."""

    node: int
    incarnation: int
    seq: int
    head_seq: int
    waiting: tuple[PoolMessage, ...]
    rows: Rows


@final
class Replica:
    """Applies workers' messages to an index store and says when to ask for what was missed.

    `counters` has one entry per anomaly seen: stale_incarnation, restarted, repeated, gap, held, dropped_ahead,
    unknown_removed, malformed, snapshot_rejected, unknown_node, guess_confirmed, guess_expired, node_forgotten,
    silent_node.
    """

    def __init__(
        self, store: IndexStore, node_count: int, *, window_entries: int = 256, ask_interval_us: int = 100_000
    ) -> None:
        self.store = store
        self.views = [View() for _ in range(node_count)]
        self.counters: Counter[str] = Counter()
        self._window_entries = window_entries
        self._ask_interval_us = ask_interval_us

    def match(self, chain: Chain) -> Match:
        return self.store.match(chain)

    def receive(self, message: PoolMessage, now_us: int) -> tuple[AskSnapshot, ...]:
        """The message is accounted for; returns the request for repair to send, if one is due.

        Never raises on what a peer says: what cannot be meant is counted, and the rest of its batch applied.
        """
        if not 0 <= message.node < len(self.views):
            self.counters["unknown_node"] += 1
            return ()
        view = self.views[message.node]
        view.heard_us, view.owed_us = now_us, None
        kind, seq = _kind(message)
        if isinstance(message.body, Snapshot) and (fault := _fault(message.body.rows)):
            self.counters[f"snapshot_rejected: {fault}"] += 1
            return self._ask(message.node, now_us)
        decision = decide(view.incarnation, view.seq, kind, message.incarnation, seq)
        self._count(view, kind, decision, message)
        if decision.reset:
            view = self._restart(message.node, decision.incarnation, now_us)
        if decision.what != IGNORE:
            view.head_seq = max(view.head_seq, seq)
        if decision.what == HOLD:
            self._hold(view, message)
        elif decision.what in (APPLY, INSTALL):
            self._advance(message, view)
        fenced_alive = message.incarnation < view.incarnation and not view.head_seq
        return self._ask(message.node, now_us, fenced_alive)

    def forget(self, node: int) -> None:
        """Nothing is believed of a node thought dead.

        Its incarnation is fenced: if it lives after all, its next message makes `receive` ask it for a later one.
        """
        if self.views[node].incarnation:
            self.counters["node_forgotten"] += 1
            self._restart(node, self.views[node].incarnation + 1, None)

    def guess(self, node: int, tier: int, parent: bytes | None, hashes: Sequence[bytes], until_us: int) -> None:
        """A request was just routed there: expect these blocks, until the node confirms each or `until_us` has passed.

        A guess is one more copy in the store, so confirming or dropping it never touches what the node said itself.
        """
        view, new = self.views[node], dict.fromkeys(hashes, until_us)
        expected = tuple(new)
        heapq.heappush(view.ends, (until_us, tier, expected))
        guesses = view.guesses.setdefault(tier, {})
        if not guesses.keys() & new.keys():
            guesses.update(new)
            self.store.store(node, tier, parent, expected)
            return
        run: list[bytes] = []  # new ones that follow each other
        for block in new:
            known_us = guesses.get(block)
            guesses[block] = until_us if known_us is None else max(until_us, known_us)
            if known_us is None:
                run.append(block)
            elif run:
                self.store.store(node, tier, parent, run)
                parent, run = block, []
            else:
                parent = block
        if run:
            self.store.store(node, tier, parent, run)

    def owes(self, node: int, now_us: int) -> None:
        """The node has computed blocks for a request: if nothing is heard of it before long, `silent_node` counts."""
        if self.views[node].owed_us is None:
            self.views[node].owed_us = now_us

    def expire(self, now_us: int) -> None:
        """Guesses that nobody confirmed in time are gone; nodes that should have spoken are counted."""
        for node, view in enumerate(self.views):
            if view.owed_us is not None and now_us - view.owed_us > SILENCE_US:
                self.counters["silent_node"] += 1
                view.owed_us = None
            while view.ends and view.ends[0][0] <= now_us:
                _, tier, hashes = heapq.heappop(view.ends)
                known = view.guesses.get(tier, {})
                late = [block for block in hashes if block in known and known[block] <= now_us]
                if late:
                    self._drop(node, tier, known, late)
                    self.counters["guess_expired"] += len(late)

    def rows(self, node: int) -> Rows:
        """(tier, hash, parent, copies) that the node itself announced, sorted."""
        guesses = self.views[node].guesses
        rows = ((t, h, p, c - (h in guesses.get(t, ()))) for t, h, p, c in self.store.rows(node))
        return tuple(row for row in rows if row[3] > 0)

    def save(self) -> tuple[SavedView, ...]:
        """Everything needed to go on elsewhere; changes nothing."""
        return tuple(
            SavedView(
                node=node,
                incarnation=view.incarnation,
                seq=view.seq,
                head_seq=view.head_seq,
                waiting=tuple(m for _, m in sorted(view.waiting.items())),
                rows=self.rows(node),
            )
            for node, view in enumerate(self.views)
        )

    def load(self, saved: Iterable[SavedView]) -> None:
        """This fresh replica goes on where the saved one stopped."""
        for item in saved:
            view = self._restart(item.node, item.incarnation, None)
            view.seq, view.head_seq = item.seq, item.head_seq
            view.waiting = {m.seq: m for m in item.waiting}
            self._fill(item.node, item.rows)

    # ------------------------------------------------------------- steps of `receive`
    def _restart(self, node: int, incarnation: int, now_us: int | None) -> View:
        """Nothing is believed of the node but its incarnation; guesses made before it ever spoke stay."""
        old = self.views[node]
        self.views[node] = view = View(incarnation=incarnation, heard_us=now_us)
        if old.incarnation:
            self.store.clear(node, None)
        else:
            view.guesses, view.ends = old.guesses, old.ends
        return view

    def _hold(self, view: View, message: PoolMessage) -> None:
        if message.seq > view.seq + self._window_entries:
            self.counters["dropped_ahead"] += 1
        else:
            view.waiting[message.seq] = message

    def _advance(self, message: PoolMessage, view: View) -> None:
        """`message` and whatever waited for it are applied."""
        while True:
            self._apply(message, view)
            view.asked_us = None
            if not view.waiting:
                return
            following = view.waiting.pop(view.seq + 1, None)
            if following is None:
                break
            message = following
        view.waiting = {seq: m for seq, m in view.waiting.items() if seq > view.seq}

    def _apply(self, message: PoolMessage, view: View) -> None:
        node, body = message.node, message.body
        view.seq = message.seq
        if isinstance(body, BlocksStored):
            hashes = self._well_formed(body)
            if not self._confirmed(view, body.tier, hashes):
                # The guesses go first: of one that a bounded store has lost, no copy is left but the node's own.
                self.counters["guess_confirmed"] += self._drop_guesses(node, view, body.tier, hashes)
                self.store.store(node, body.tier, body.parent, hashes)
        elif isinstance(body, BlocksRemoved):
            self._drop_guesses(node, view, body.tier, body.hashes)  # a removal takes the node's own copy, never a guess
            self.counters["unknown_removed"] += self.store.remove(node, body.tier, body.hashes)
        elif isinstance(body, TierCleared):
            view.guesses = {t: known for t, known in view.guesses.items() if body.tier not in (None, t)}
            self.store.clear(node, body.tier)
        elif isinstance(body, Snapshot):
            view.seq = body.as_of_seq
            view.guesses.clear()
            self.store.clear(node, None)
            self._fill(node, body.rows)

    def _well_formed(self, body: BlocksStored) -> tuple[bytes, ...]:
        """The stretch before the first hash that is none: what follows it hangs from a block that cannot exist."""
        sound = 0 <= body.tier < TIERS_MAX and (body.parent is None or len(body.parent) == HASH_BYTES)
        if sound and set(map(len, body.hashes)) <= {HASH_BYTES}:
            return body.hashes
        end = next((i for i, h in enumerate(body.hashes) if len(h) != HASH_BYTES), len(body.hashes)) if sound else 0
        self.counters["malformed"] += end < len(body.hashes)
        return body.hashes[:end]

    def _fill(self, node: int, rows: Rows) -> None:
        for tier, block, parent, copies in rows:
            for _ in range(copies):
                self.store.store(node, tier, parent, (block,))

    def _confirmed(self, view: View, tier: int, hashes: tuple[bytes, ...]) -> bool:
        """Whether all of `hashes` were guessed, and the store has them: its copies are the node's own from now on."""
        known, told = view.guesses.get(tier), frozenset(hashes)
        if self.store.forgets or not known or len(told) < len(hashes) or not told <= known.keys():
            return False
        for block in hashes:
            del known[block]
        self.counters["guess_confirmed"] += len(hashes)
        return True

    def _drop_guesses(self, node: int, view: View, tier: int, hashes: Iterable[bytes]) -> int:
        """Those of `hashes` that were guessed are guesses no more; returns how many."""
        known = view.guesses.get(tier)
        if not known or not (found := [block for block in dict.fromkeys(hashes) if block in known]):
            return 0
        self._drop(node, tier, known, found)
        return len(found)

    def _drop(self, node: int, tier: int, known: dict[bytes, int], found: Sequence[bytes]) -> None:
        for block in found:
            del known[block]
        self.store.remove(node, tier, found)

    def _ask(self, node: int, now_us: int, fenced_alive: bool = False) -> tuple[AskSnapshot, ...]:
        """A request for repair, at most one per interval: an answer may be on its way."""
        view = self.views[node]
        if not view.behind and not fenced_alive:
            return ()
        if view.asked_us is not None and now_us < view.asked_us + self._ask_interval_us:
            return ()
        view.asked_us = now_us
        return (AskSnapshot(node=node, incarnation=view.incarnation, after_seq=view.seq),)

    def _count(self, view: View, kind: int, decision: Decision, message: PoolMessage) -> None:
        if decision.reset and view.incarnation:
            self.counters["restarted"] += 1
        if message.incarnation < view.incarnation:
            self.counters["stale_incarnation"] += 1
        elif decision.what == IGNORE and kind != HEARTBEAT:
            self.counters["repeated"] += 1
        elif decision.what in (HOLD, ASK):
            self.counters["gap"] += not view.behind
            self.counters["held"] += decision.what == HOLD


def _kind(message: PoolMessage) -> tuple[int, int]:
    """(kind, log position) of a message, as `decide` takes them."""
    body = message.body
    if isinstance(body, Heartbeat):
        return HEARTBEAT, body.head_seq
    if isinstance(body, Snapshot):
        return SNAPSHOT, body.as_of_seq
    return EVENT, message.seq


def _fault(rows: Rows) -> str:
    """Why a snapshot cannot be the state of a pool, or an empty string."""
    parents: dict[bytes, bytes | None] = {}
    seen: set[Spot] = set()
    for tier, block, parent, copies in rows:
        if len(block) != HASH_BYTES or (parent is not None and len(parent) != HASH_BYTES):
            return "malformed hash"
        if copies < 1 or not 0 <= tier < TIERS_MAX:
            return "impossible count or tier"
        if (tier, block) in seen:
            return "row repeated"
        if parents.setdefault(block, parent) != parent:
            return "two parents"
        seen.add((tier, block))
    return "cycle" if _has_cycle(parents) else ""


def _has_cycle(parents: dict[bytes, bytes | None]) -> bool:
    safe: set[bytes] = set()
    for block in parents:
        walk: dict[bytes, None] = {}
        at: bytes | None = block
        while at is not None and at not in safe:
            if at in walk:
                return True
            walk[at] = None
            at = parents.get(at)
        safe.update(walk)
    return False
