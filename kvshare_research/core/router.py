"""The router: index, directory, loads and links in; plans out. `handle(event, now_us) -> effects`, nothing else.

Read `_plan` first: it is the sentence of the program. Several routers may run on the same streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from . import messages as m
from .choosing import Choosing
from .directory import Directory
from .entering import rejection, unfit
from .foresight import Foresight, best_source, front, stand_in
from .forgetting import Forgotten
from .judging import judge
from .loads import Loads, LoadTable, Service
from .nouns import Action, Chain, Match, Outcome, Plan, QuoteTable, Request, Run, Status, Tier, Verdict
from .planning import Decision, Pending, missed_tokens, plan_of
from .ports import Cost, IndexStore, Links, Prefetch, PrefetchIntent, QuoteInput, Selector, UnderWay
from .promotion import OPERATOR, Promotion
from .replica import Replica
from .runs import longest_blocks
from .shaping import AT_ONCE, RECOMPUTED, UNSHAPED, Due, Shape, ShapeKind, shown, told
from .standing import Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterPolicy:
    """The frozen choices a router runs with."""

    cost: Cost
    selector: Selector
    actions: frozenset[Action]
    block_bytes: int
    guess_us: int = 0  # how long blocks are expected on an executor before it confirms them; 0: never guessed
    prefetch: Prefetch | None = None
    learns_pace: bool = True  # whether quotes follow what each node's work has taken lately
    batch_max: int = 1  # requests a worker decodes beside a prefill; 1: an answer keeps its engine to the end
    shape: Shape = UNSHAPED


class Router:
    """Decides where and how each request is served. Owns its stores; reads no clock."""

    def __init__(
        self, *, policy: RouterPolicy, directory: Directory, index: IndexStore, links: Links, node_count: int
    ) -> None:
        self.policy = policy
        self.directory = directory
        self.links = links
        self.replica = Replica(index, node_count)
        self.choosing = Choosing(policy.selector)
        self.foresight = None if policy.prefetch is None else Foresight(policy.prefetch)
        self._loads = Loads(node_count)
        self._standing = Standing(node_count)
        self._pending: dict[int, Pending] = {}
        self._forgotten = Forgotten()
        self._acknowledged = [directory.revision] * node_count
        self.promotion = Promotion()
        self._handlers: dict[type, Callable[..., tuple[m.RouterEffect, ...]]] = {
            m.Arrived: self._arrived,
            m.PoolChanged: self._pool_changed,
            m.LoadReported: self._load_reported,
            m.FirstToken: self._first_token,
            m.Completed: self._completed,
            m.PlanRefused: self._plan_refused,
            m.LinkMeasured: self._link_measured,
            m.NodeLost: self._node_lost,
            m.NodeJoined: self._node_joined,
            m.DirectoryChanged: self._directory_changed,
            m.DirectoryAcknowledged: self._directory_acknowledged,
            m.PrefetchEnded: self._prefetch_ended,
            m.PrefixesReleased: self._prefixes_released,
            m.PrefixesKept: self._prefixes_kept,
            m.Ticked: self._ticked,
        }

    def handle(self, event: m.RouterEvent, now_us: int) -> tuple[m.RouterEffect, ...]:
        """The effects of one event; all state changes happen here."""
        return self._handlers[type(event)](event, now_us)

    @property
    def in_flight(self) -> int:
        """Requests dispatched and not yet recorded."""
        return len(self._pending)

    @property
    def promoted(self) -> frozenset[bytes]:
        """Prefixes whose chains have a wider scope, by name: released, and kept by every live node."""
        return self.promotion.shared

    def revocation_complete(self) -> bool:
        """Whether every live node has acknowledged the current directory."""
        return all(self._acknowledged[node] >= self.directory.revision for node in self._loads.live())

    @property
    def _least_at_permille(self) -> int | None:
        """The weight at which only the best row is looked at; None: an answer of constant shape is due by all rows."""
        constant = self.policy.shape.kind == ShapeKind.CONSTANT
        return None if constant else self.choosing.least_at_permille

    # ------------------------------------------------------------------ the sentence
    def _plan(self, arrived: m.Arrived, now_us: int, excluded: int | None = None) -> tuple[Decision, Service]:
        """The decision, and how long the executor is predicted to be busy with it."""
        request, chain = arrived.request, arrived.chain
        match = self.replica.match(chain)
        verdict, table = self._quoted(request, chain, match, now_us, self._least_at_permille, excluded)
        row = self.choosing.row(table)
        public, public_row, due = self._shaped(request, chain, verdict, now_us, excluded) or (table, row, AT_ONCE)
        refusal = self.choosing.refusal(public, public_row, self._under_way(now_us), now_us)
        plan = plan_of(table, row, request.request_id)
        serial = self.policy.batch_max == 1
        service = self._loads.service(table, row, keeps_engine=serial)
        decided = Decision(
            plan=plan, match=match, verdict=verdict, best_blocks=table.best_blocks, refusal=refusal, due=due,
            standing=service if public is table else self._loads.service(public, public_row, keeps_engine=serial),
        )  # fmt: skip
        return decided, service

    def _under_way(self, now_us: int) -> Iterable[UnderWay]:
        if self.policy.shape.kind == ShapeKind.CONSTANT:
            return self._standing.under_way(now_us)
        return (pending.under_way for pending in self._pending.values())

    def _shaped(
        self, request: Request, chain: Chain, verdict: Verdict, now_us: int, excluded: int | None
    ) -> tuple[QuoteTable, int, Due] | None:
        """The quote that a request is let in and answered by, its row, and when its answer is due; None: its own."""
        shape = self.policy.shape
        blocks = None if request.tenant_id == OPERATOR else shape.shown_blocks(chain, self.directory)
        if blocks is None:
            return None
        actions, loads = self.policy.actions, self._loads.at(now_us, excluded)
        if shape.kind == ShapeKind.CONSTANT:
            actions, loads = RECOMPUTED, self._standing.at(loads, now_us)
        table = self._table(request, chain, shown(verdict, blocks), now_us, loads, actions, self._least_at_permille)
        row = self.choosing.row(table)
        return table, row, shape.due(table, row, blocks)

    def _arrived(self, event: m.Arrived, now_us: int) -> tuple[m.RouterEffect, ...]:
        if reason := unfit(event.request, self.directory, self._loads.live()):
            return self._rejected(event, reason, now_us)
        decision, service = self._plan(event, now_us)
        if decision.refusal and event.request.tenant_id != OPERATOR:
            return self._rejected(event, decision.refusal, now_us)
        self.replica.store.seen(event.chain)
        return self._dispatched(event, decision, service, now_us, received_us=now_us)

    def _dispatched(
        self, event: m.Arrived, decision: Decision, service: Service, now_us: int, *, received_us: int,
        returned: bool = False,
    ) -> tuple[m.RouterEffect, ...]:  # fmt: skip
        request, plan = event.request, decision.plan
        self._loads.sent(request, service, now_us)
        if self.policy.shape.kind == ShapeKind.CONSTANT and not returned and request.tenant_id != OPERATOR:
            self._standing.sent(request, decision.standing, now_us, now_us + decision.due.after_us)
        for piece in plan.pieces:
            size = piece.block_count * self.policy.block_bytes
            self.links = self.links.sending(piece.source, plan.executor, size)
        self._pending[request.request_id] = Pending(
            arrived=event, decision=decision, received_us=received_us, service=service, returned=returned
        )
        if self.policy.guess_us:
            hashes = event.chain.block_hashes(0, event.chain.block_count)
            self.replica.guess(plan.executor, Tier.DEVICE, None, hashes, now_us + self.policy.guess_us)
        reader = self.directory.reader(request.tenant_id, request.user_id, request.session_id)
        if self.foresight is not None and request.tenant_id != OPERATOR:
            ahead = sum(p.decision.plan.executor == plan.executor for p in self._pending.values()) - 1
            self.foresight.observe(request, event.chain, plan, ahead, now_us)
        return (m.Dispatch(request=request, chain=event.chain, plan=plan, reader=reader), *self._foresee(now_us))

    # ------------------------------------------------------------------ what may be asked for next
    def _foresee(self, now_us: int) -> tuple[m.RouterEffect, ...]:
        if self.foresight is None:
            return ()
        asked = (self._prefetch(self.foresight, intent, now_us) for intent in self.foresight.intents(now_us))
        return tuple(effect for effect in asked if effect is not None)

    def _prefetch(self, foresight: Foresight, intent: PrefetchIntent, now_us: int) -> m.SendPrefetch | None:
        """The intent as a prefetch of what its tenant may read and another node holds, if that is worth its bytes."""
        alive = frozenset(self._loads.live())
        reader = self.directory.reader(intent.tenant_id, intent.user_id)
        verdict = judge(self.replica.match(intent.chain), intent.chain, reader, self.directory, now_us)
        here = verdict.depth(intent.node)
        there, source = best_source(verdict, intent.node, alive)
        end = min(intent.block_count, there)
        if intent.node not in alive or end <= here or intent.deadline_us <= now_us:
            foresight.counters["refused: nothing to move"] += 1
            return None
        chain, size = front(intent.chain, end), (end - here) * self.policy.block_bytes
        wanted = stand_in(0, intent, chain, now_us)
        without = self._ttft_us(wanted, chain, self.replica.match(chain), now_us)
        with_it = self._ttft_us(wanted, chain, Match(runs=(Run(node=intent.node, tier=0, block_count=end),)), now_us)
        if not foresight.pays(intent.probability, without - with_it, size):
            return None
        number = foresight.begin(intent.node, size)
        if number is None:
            return None
        asked = m.PrefetchAsked(
            request=replace(wanted, request_id=number), chain=chain, start=here, source=source, reader=reader,
            deadline_us=intent.deadline_us - now_us,
        )  # fmt: skip
        return m.SendPrefetch(node=intent.node, asked=asked)

    def _quoted(
        self, request: Request, chain: Chain, match: Match, now_us: int, least_at_permille: int | None,
        excluded: int | None = None,
    ) -> tuple[Verdict, QuoteTable]:  # fmt: skip
        """judge, then quote: what of `match` the tenant may use, and what each way of serving would take."""
        reader = self.directory.reader(request.tenant_id, request.user_id, request.session_id)
        verdict = judge(match, chain, reader, self.directory, now_us)
        loads, actions = self._loads.at(now_us, excluded), self.policy.actions
        return verdict, self._table(request, chain, verdict, now_us, loads, actions, least_at_permille)

    def _table(
        self, request: Request, chain: Chain, verdict: Verdict, now_us: int, loads: LoadTable,
        actions: frozenset[Action], least_at_permille: int | None,
    ) -> QuoteTable:  # fmt: skip
        given = QuoteInput(
            request=request,
            chain=chain,
            verdict=verdict,
            loads=loads,
            links=self.links.matrix(now_us),
            actions=actions,
            block_bytes=self.policy.block_bytes,
            draw=request.request_id,
            least_at_permille=least_at_permille,
        )
        return self.policy.cost.quote(given)

    def _ttft_us(self, request: Request, chain: Chain, match: Match, now_us: int) -> int:
        """The least predicted time to serve a pinned request, were `match` what the nodes hold."""
        return int(self._quoted(request, chain, match, now_us, 0)[1].ttft_us.min())

    def _prefetch_ended(self, event: m.PrefetchEnded, now_us: int) -> tuple[m.RouterEffect, ...]:
        if self.foresight is not None:
            self.foresight.end(event.prefetch_id)
        return ()

    # ------------------------------------------------------------------ what becomes of a request
    def _first_token(self, event: m.FirstToken, now_us: int) -> tuple[m.RouterEffect, ...]:
        pending = self._pending.get(event.request_id)
        if pending is None or event.node != pending.decision.plan.executor:
            return ()  # a node thought lost has answered after all
        if pending.first_token_us is None:
            pending.first_token_us = now_us
            self._loads.answered(event.node, event.request_id, now_us)
            if pending.arrived.request.tenant_id != OPERATOR:  # learned from is what is told
                self.choosing.answered(max(now_us - pending.received_us, pending.decision.due.after_us))
        return ()

    def _completed(self, event: m.Completed, now_us: int) -> tuple[m.RouterEffect, ...]:
        pending = self._pending.get(event.request_id)
        if pending is None or event.outcome.executor != pending.decision.plan.executor:
            return ()  # a node thought lost has answered after all
        del self._pending[event.request_id]
        self._settle(pending, now_us)
        if self.promotion.ended(event.request_id):
            return self._install(now_us)
        self.choosing.ended(event.outcome)
        planned = event.outcome.prompt_tokens - pending.decision.plan.reused_blocks * pending.arrived.chain.block_tokens
        if self.policy.learns_pace and event.outcome.computed_tokens == planned:  # else it says nothing of the pace
            self._loads.learn(pending.service, event.outcome)
        plan, request, chain = pending.decision.plan, pending.arrived.request, pending.arrived.chain
        assert chain.block_count >= plan.reused_blocks
        theirs = event.outcome
        if theirs.status == Status.DONE and theirs.computed_tokens >= chain.block_tokens:
            self.replica.owes(plan.executor, now_us)
        first = pending.first_token_us if pending.first_token_us is not None else now_us
        ttft_us = first - pending.received_us
        outcome = replace(
            theirs,
            arrival_us=request.arrival_us,
            route_us=max(0, ttft_us - theirs.ttft_us),
            quoted_ttft_us=plan.quoted_ttft_us,
            quoted_us=plan.quoted_us,
            missed=self._missed(pending, theirs) if theirs.status == Status.DONE else (),
            **told(theirs, ttft_us, now_us - pending.received_us, pending.decision.due, chain.block_tokens),
        )
        return (m.Record(outcome=outcome, release_us=now_us + outcome.held_us if outcome.held_us else 0),)

    def _missed(self, pending: Pending, theirs: Outcome) -> tuple[tuple[int, int], ...]:
        chain = pending.arrived.chain
        reused = (theirs.prompt_tokens - theirs.computed_tokens) // chain.block_tokens
        first_missing = max(reused, longest_blocks(pending.decision.match.runs))
        was_evicted = first_missing < chain.block_count and chain.block_hash(first_missing) in self._forgotten
        rows = missed_tokens(
            pending.decision, chain, theirs.prompt_tokens, reused, was_evicted=was_evicted,
            collided=theirs.collided_blocks > 0,
        )  # fmt: skip
        return tuple([(int(reason), tokens) for reason, tokens in rows])

    def _plan_refused(self, event: m.PlanRefused, now_us: int) -> tuple[m.RouterEffect, ...]:
        """A refused plan is decided once more without that node; refused again, the request is rejected."""
        pending = self._pending.pop(event.request_id, None)
        if pending is None:
            return ()
        self._settle(pending, now_us)
        others = [node for node in self._loads.live() if node != event.node]
        pinned = pending.arrived.request.executor is not None
        if pending.returned or not others or pinned:
            return self._rejected(pending.arrived, event.reason, now_us, received_us=pending.received_us)
        decision, service = self._plan(pending.arrived, now_us, excluded=event.node)
        decision = replace(decision, due=decision.due.later(pending.decision.due))
        since_us = pending.received_us
        return self._dispatched(pending.arrived, decision, service, now_us, received_us=since_us, returned=True)

    def _rejected(
        self, event: m.Arrived, reason: str, now_us: int, received_us: int | None = None
    ) -> tuple[m.RouterEffect, ...]:
        request = event.request
        if self.promotion.ended(request.request_id):
            return ()
        outcome = rejection(request, reason, 0 if received_us is None else now_us - received_us)
        return (m.Reject(request_id=request.request_id, reason=reason), m.Record(outcome=outcome))

    def _settle(self, pending: Pending, now_us: int) -> None:
        """The request no longer loads its executor or its links."""
        plan: Plan = pending.decision.plan
        for piece in plan.pieces:
            size = piece.block_count * self.policy.block_bytes
            self.links = self.links.sending(piece.source, plan.executor, -size)
        self._loads.ended(pending.service, pending.arrived.request, now_us)

    # ------------------------------------------------------------------ what becomes of the cluster
    def _pool_changed(self, event: m.PoolChanged, now_us: int) -> tuple[m.RouterEffect, ...]:
        self._forgotten.hears(event.message.body)
        return self.replica.receive(event.message, now_us)

    def _load_reported(self, event: m.LoadReported, now_us: int) -> tuple[m.RouterEffect, ...]:
        self._loads.reported(event.node, event.used_blocks, event.capacity_blocks)
        return ()

    def _link_measured(self, event: m.LinkMeasured, now_us: int) -> tuple[m.RouterEffect, ...]:
        self.links = self.links.measured(event.source, event.reader, event.bytes_moved, event.elapsed_us, now_us)
        return ()

    def _node_lost(self, event: m.NodeLost, now_us: int) -> tuple[m.RouterEffect, ...]:
        """The node is out; its requests are decided once more, its blocks are forgotten."""
        self._loads.lost(event.node)
        self.replica.forget(event.node)
        self.promotion.changed(event.node, self._loads.live())
        if self.foresight is not None:
            self.foresight.forget(event.node)
        lost = [p for p in self._pending.values() if p.decision.plan.executor == event.node]
        effects: list[m.RouterEffect] = []
        for pending in lost:
            refused = m.PlanRefused(
                request_id=pending.arrived.request.request_id, node=event.node, reason="worker lost"
            )
            effects.extend(self._plan_refused(refused, now_us))
        return tuple(effects)

    def _node_joined(self, event: m.NodeJoined, now_us: int) -> tuple[m.RouterEffect, ...]:
        self._loads.joined(event.node, event.capacity_blocks)
        self.promotion.changed(event.node, self._loads.live())
        keep = m.SendKeep(node=event.node, prefixes=self.promotion.prefixes)
        return (m.SendDirectory(node=event.node, directory=self.directory), *((keep,) if keep.prefixes else ()))

    def _directory_changed(self, event: m.DirectoryChanged, now_us: int) -> tuple[m.RouterEffect, ...]:
        self.directory = event.directory
        return tuple(m.SendDirectory(node=node, directory=event.directory) for node in self._loads.live())

    def _directory_acknowledged(self, event: m.DirectoryAcknowledged, now_us: int) -> tuple[m.RouterEffect, ...]:
        self._acknowledged[event.node] = max(self._acknowledged[event.node], event.revision)
        return ()

    # ------------------------------------------------------------------ what becomes shared
    def _prefixes_released(self, event: m.PrefixesReleased, now_us: int) -> tuple[m.RouterEffect, ...]:
        live = self._loads.live()
        self.promotion.release(event.prefixes, live)
        self._tell_foresight()
        return tuple(m.SendKeep(node=node, prefixes=self.promotion.prefixes) for node in live)

    def _prefixes_kept(self, event: m.PrefixesKept, now_us: int) -> tuple[m.RouterEffect, ...]:
        self.promotion.keeps(event.node, event.names, self._loads.live())
        self._tell_foresight()
        return self._install(now_us)

    def _tell_foresight(self) -> None:
        if self.foresight is not None:
            self.foresight.promoted(self.promoted)

    def _install(self, now_us: int) -> tuple[m.RouterEffect, ...]:
        """What is released and not kept everywhere is computed where it is missing."""
        asked = self.promotion.installs(self._loads.live(), now_us)
        return tuple(e for r, c in asked for e in self._arrived(m.Arrived(request=r, chain=c), now_us))

    def _ticked(self, event: m.Ticked, now_us: int) -> tuple[m.RouterEffect, ...]:
        self.replica.expire(now_us)
        return self._foresee(now_us)
