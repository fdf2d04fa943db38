"""One admitted request on a worker: its blocks, their states, its times, and the outcome they add up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from msgspec import Struct

from . import messages as m
from .directory import Directory
from .ledger import Block
from .nouns import Action, Outcome, Status
from .ports import Retention, Schedule
from .rights import Reader


class State(IntEnum):
    """Of one block of a running request."""

    MISSING = 0
    PENDING = 1
    PRESENT = 2


MISSING, PENDING, PRESENT = State  # at hand: they are compared at every step


def blocks_for(token_count: int, block_tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-token_count // block_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPolicy:
    """The frozen choices a worker runs with."""

    retention: Retention
    schedule: Schedule
    block_tokens: int
    block_bytes: int
    lease_us: int = 10_000_000
    fetch_deadline_us: int = 10_000_000
    admitted_max: int = 3  # requests before their first token that hold blocks: one computes, the others fetch
    batch_max: int = 1  # requests that may decode while another is prefilled; 1: one request has the engine to the end


class Running(Struct, kw_only=True, eq=False):
    """One admitted request."""

    event: m.Dispatched
    dispatched_us: int
    blocks: list[Block]  # one per block of prompt and output, all pinned
    states: list[State]  # one per block of the prompt, the partial tail included
    reusable_blocks: int = 0  # of the prompt, that its plan lets it reuse
    request_id: int = 0
    slots: tuple[int, ...] = ()  # of its blocks
    fetches: set[int] = set()  # ids of fetches on their way
    fetched: set[int] = set()
    resident: set[int] = set()
    collided: set[int] = set()  # blocks whose hash was found on other tokens
    present: int = 0  # at least so many first blocks are PRESENT, and stay so
    computing: tuple[int, int] | None = None  # tokens
    ready_since_us: int | None = None
    fetch_since_us: int | None = None
    queue_us: int = 0
    fetch_us: int = 0
    prefill_us: int = 0
    merge_us: int = 0
    pulled_bytes: int = 0
    first_token_us: int | None = None
    first_token: int = 0
    fingerprint: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        self.request_id = self.event.request.request_id
        self.slots = tuple([block.slot for block in self.blocks])

    def adopt(self, block_index: int, block: Block) -> None:
        """The block, found here, takes the place of the one that was to be computed."""
        self.blocks[block_index] = block
        self.slots = tuple([block.slot for block in self.blocks])
        self.states[block_index] = PRESENT
        self.resident.add(block_index)

    def may_go_on(self) -> bool:
        """Whether something is left to compute, and nothing before it is on its way."""
        if self.first_token_us is not None:
            return False
        states, start = self.states, self.present
        while start < len(states) and states[start] == PRESENT:
            start += 1
        self.present = start
        return start < len(states) and states[start] == MISSING

    def stretch(self, block_tokens: int) -> tuple[int, int] | None:
        """Tokens [start, end) to compute next, if it may go on."""
        if not self.may_go_on():
            return None
        states, start = self.states, self.present
        end = start
        while end < len(states) and states[end] == MISSING:
            end += 1
        return start * block_tokens, min(end * block_tokens, self.event.request.token_count)

    def outcome(
        self, node: int, block_tokens: int, tokens: tuple[int, ...], decode_us: int, failure: str | None
    ) -> Outcome:
        """The worker's account of the request; the router adds its own times."""
        request = self.event.request
        if failure:
            return Outcome(
                request_id=request.request_id, tenant_id=request.tenant_id, application=request.application,
                status=Status.FAILED, reason=failure, action=self.event.plan.action,
                executor=node, ingress=request.ingress, prompt_tokens=request.token_count,
            )  # fmt: skip
        assert self.first_token_us is not None
        reused, blocks = self.resident | self.fetched, self.blocks
        own = [blocks[i].origin for i in reused].count(request.tenant_id)
        prompt_tokens = request.token_count
        ttft_us = self.first_token_us - self.dispatched_us
        resident_tokens = len(self.resident) * block_tokens
        at_home = node == request.ingress
        return Outcome(
            request_id=request.request_id,
            tenant_id=request.tenant_id,
            application=request.application,
            status=Status.DONE,
            action=self.event.plan.action,
            executor=node,
            ingress=request.ingress,
            prompt_tokens=prompt_tokens,
            ttft_us=ttft_us,
            queue_us=self.queue_us,
            fetch_us=self.fetch_us,
            prefill_us=self.prefill_us,
            overlap_us=max(0, self.queue_us + self.fetch_us + self.prefill_us + self.merge_us - ttft_us),
            merge_us=self.merge_us,
            decode_us=decode_us,
            computed_tokens=prompt_tokens - len(reused) * block_tokens,
            resident_tokens=resident_tokens if at_home else 0,
            routed_tokens=0 if at_home else resident_tokens,
            pulled_tokens=len(self.fetched) * block_tokens,
            same_tenant_tokens=own * block_tokens,
            cross_tenant_tokens=(len(reused) - own) * block_tokens,
            pulled_bytes=self.pulled_bytes,
            collided_blocks=len(self.collided),
            output_tokens=tokens,
            logit_fingerprint=self.fingerprint,
        )


def to_compute(
    admitted: Iterable[Running], reader: Reader, directory: Directory, now_us: int
) -> set[tuple[bytes, bytes]]:
    """Blocks that admitted requests are to compute and `reader` may read, by hash and mark. Not those they fetch: two
    nodes would wait for each other."""
    allowed = {i for i in range(len(directory.scopes)) if directory.may_read(reader, i, now_us)}
    return {
        (running.event.chain.block_hash(i), running.event.chain.mark(i))
        for running in admitted
        for i in range(running.event.chain.block_count)
        if running.states[i] == MISSING and running.event.chain.scope_at(i) in allowed
    }


def awaits_another(running: Running, admitted: Iterable[Running], directory: Directory, now_us: int) -> bool:
    """Whether a request admitted earlier is computing or fetching the very block this one needs next. For what it may
    not read (any more) it does not wait: that would tell that others have it."""
    chain = running.event.chain
    first = running.states.index(MISSING)
    if running.event.plan.action == Action.RECOMPUTE or first >= chain.block_count:
        return False
    for other in admitted:
        if other is running:
            return False
        theirs = other.event.chain
        same = first < theirs.block_count and theirs.block_hash(first) == chain.block_hash(first)
        same = same and theirs.mark(first) == chain.mark(first)
        if same and other.states[first] != PRESENT and other.first_token_us is None:
            return directory.may_read(running.event.reader, chain.scope_at(first), now_us)
    return False
