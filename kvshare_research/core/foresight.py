"""The router's side of prefetch: a policy proposes, and what passes here is fetched.

An intent passes where its tenant may read what is to be moved and another node holds more of it than the destination,
where the expected gain exceeds the price of moving it in vain (p * (t_miss - t_hit) > (1 - p) * bytes * price), and
while less than the policy's bound is on its way to that node.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, final

from .costing import PS_PER_US
from .nouns import HASH_BYTES, MARK_BYTES, Chain, Plan, Request, Segment, Verdict
from .ports import Prefetch, PrefetchIntent, Seen


@dataclass(frozen=True, slots=True)
class OpenPrefetch:
    """On its way: `byte_count` to a node."""

    node: int
    byte_count: int


@final
class Foresight:
    """A prefetch policy with its state, and what it has on the way. `counters` say why intents were not followed."""

    def __init__(self, policy: Prefetch) -> None:
        self.policy = policy
        self.counters: Counter[str] = Counter()
        self.state: Any = policy.initial_state()
        self.open: dict[int, OpenPrefetch] = {}
        self._number = 0

    def observe(self, request: Request, chain: Chain, plan: Plan, queued_requests: int, now_us: int) -> None:
        """The policy has seen one more dispatch."""
        seen = Seen(
            request_id=request.request_id,
            tenant_id=request.tenant_id,
            user_id=request.user_id,
            step=request.application,
            chain=chain,
            prefix_blocks=prefix_blocks(request, chain),
            executor=plan.executor,
            ingress=request.ingress,
            queued_requests=queued_requests,
            pulled_blocks=plan.pulled_blocks,
            now_us=now_us,
        )
        self.state = self.policy.observe(self.state, seen)

    def intents(self, now_us: int) -> tuple[PrefetchIntent, ...]:
        """What the policy wants moved; a probability that is none counts as a refusal."""
        self.state, proposed = self.policy.propose(self.state, now_us)
        sound = tuple(i for i in proposed if 0.0 <= i.probability <= 1.0 and 0 < i.block_count <= i.chain.block_count)
        self.counters["unsound"] += len(proposed) - len(sound)
        return sound

    def begin(self, node: int, byte_count: int) -> int | None:
        """The id of a new prefetch, now on its way; None where too much already is."""
        waiting = sum(p.byte_count for p in self.open.values() if p.node == node)
        if waiting + byte_count > self.policy.inflight_bytes_max:
            self.counters["refused: in flight"] += 1
            return None
        self._number += 1
        self.open[self._number] = OpenPrefetch(node, byte_count)
        self.counters["issued"] += 1
        return self._number

    def end(self, prefetch_id: int) -> None:
        """It is on its way no more."""
        self.open.pop(prefetch_id, None)

    def forget(self, node: int) -> None:
        """Nothing is on its way to a node that was lost."""
        self.open = {number: row for number, row in self.open.items() if row.node != node}

    def promoted(self, names: frozenset[bytes]) -> None:
        """The policy knows which prefixes are promoted now; whether it may go by what it was trained on is counted."""
        self.state, fits = self.policy.told(self.state, names)
        self.counters["another vocabulary"] += not fits

    def pays(self, probability: float, gain_us: int, byte_count: int) -> bool:
        """The rule of expected value, for this prefix. What surely comes may come early also where no gain is quoted:
        quotes assume that fetches start at once."""
        price_us = byte_count * self.policy.price_ps_per_byte / PS_PER_US
        worth = probability * gain_us > (1 - probability) * price_us or (probability == 1.0 and gain_us >= 0)
        self.counters["refused: not worth it"] += not worth
        return worth


def prefix_blocks(request: Request, chain: Chain) -> int:
    """Full blocks before the last segment: what requests have in common."""
    shared = request.token_count - request.segments[-1].token_count if request.segments else 0
    return min(shared // chain.block_tokens, chain.block_count)


def front(chain: Chain, block_count: int) -> Chain:
    """The first blocks of a chain."""
    ends = []
    for scope_id, end in chain.scope_ends:
        ends.append((scope_id, min(end, block_count)))
        if end >= block_count:
            break
    hashes = chain.hashes[: block_count * HASH_BYTES]
    marks = chain.marks[: block_count * MARK_BYTES]
    return Chain(hashes=hashes, scope_ends=tuple(ends), block_tokens=chain.block_tokens, marks=marks)


def stand_in(prefetch_id: int, intent: PrefetchIntent, chain: Chain, now_us: int) -> Request:
    """A request that would need all of `chain` and one token more, pinned to the destination; it is never run."""
    return Request(
        request_id=prefetch_id,
        tenant_id=intent.tenant_id,
        user_id=intent.user_id,
        segments=(Segment(scope_id=chain.scope_ends[-1][0], token_count=chain.block_count * chain.block_tokens + 1),),
        output_tokens_max=1,
        ingress=intent.node,
        arrival_us=now_us,
        executor=intent.node,
    )


def best_source(verdict: Verdict, node: int, alive: frozenset[int]) -> tuple[int, int]:
    """(blocks, holder) of the deepest usable run elsewhere, lowest node first; 0 blocks: nobody."""
    rows = [(run.block_count, -run.node) for run in verdict.runs if run.node != node and run.node in alive]
    blocks, negative = max(rows, default=(0, 0))
    return blocks, -negative
