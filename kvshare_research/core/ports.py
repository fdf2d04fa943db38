"""Every seam of the system on one screen. A policy is one frozen value in one file plus one YAML.

Policies propose; the core applies the proved rules before acting, so none of these can widen a right,
exceed a quota or drop a pinned block, however wrong it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from .directory import Directory
from .nouns import (
    AccountSpec,
    Action,
    Chain,
    LinkRow,
    Match,
    NodeLoad,
    QuoteTable,
    Request,
    Segment,
    Verdict,
)


class IndexStore(Protocol):
    """Who holds what: mutable, owned by one router. A hint: the holder's ledger is the authority."""

    @property
    def forgets(self) -> bool:
        """Whether it may lose by itself what it was told, for want of room."""
        return False

    def store(self, node: int, tier: int, parent: bytes | None, hashes: Sequence[bytes]) -> None:
        """One more copy of each hash is on (node, tier). A parent nobody announced is accepted and waits."""

    def remove(self, node: int, tier: int, hashes: Sequence[bytes]) -> int:
        """One copy fewer of each; returns how many were unknown (counted by the caller, harmless)."""

    def clear(self, node: int, tier: int | None) -> None:
        """Nothing is left on the node (in the tier, or anywhere)."""

    def match(self, chain: Chain) -> Match:
        """Longest run from the first block per (node, tier); changes nothing."""

    def seen(self, chain: Chain) -> None:
        """A prompt was asked for. What its chain tells beyond hashes may be remembered; no `match` changes."""
        return

    def rows(self, node: int) -> tuple[tuple[int, bytes, bytes | None, int], ...]:
        """(tier, hash, parent, copies) of a node, sorted: for snapshots and comparisons."""

    def entry_count(self) -> int:
        """Distinct (hash, node, tier) entries."""


Reads = Literal["blocks", "segments", "sentences", "tokens"]


class Index(Protocol):
    """How the router remembers who holds what. `reads` is what a chain must tell it of the prompt beside its blocks."""

    reads: ClassVar[Reads] = "blocks"

    def new_store(self, node_count: int) -> IndexStore: ...


class Tenancy(Protocol):
    """Who shares with whom: which scope each segment really gets, and who has which account."""

    def scopes(
        self, request_tenant: int, segments: Sequence[Segment], directory: Directory, now_us: int, user_id: int
    ) -> tuple[int, ...]:
        """The scope id of each segment under this tenancy at `now_us`; only tightening along the prompt. A membership
        that has run out counts as little as one that was revoked. `user_id` 0: nobody in particular."""

    def directory(self, base: Directory) -> Directory:
        """The directory this tenancy runs on (scopes and groups it needs added); idempotent."""

    def accounts(self, directory: Directory, capacity_blocks: int) -> tuple[AccountSpec, ...]:
        """One account per scope of the directory."""


class QuoteInput(Struct, frozen=True, kw_only=True, gc=False):
    """All a cost model may look at."""

    request: Request
    chain: Chain
    verdict: Verdict
    loads: Sequence[NodeLoad]  # one row per node
    links: Sequence[Sequence[LinkRow]]  # links[source][reader]
    actions: frozenset[Action]
    block_bytes: int
    draw: int
    least_at_permille: int | None = None  # only the row of least price at this weight is wanted; None: all rows


class Links(Protocol):
    """What one router knows of every directed link. A change takes it over: its owner goes on with what it returns."""

    def matrix(self, now_us: int) -> Sequence[Sequence[LinkRow]]:
        """`[source][reader]`, in integer units, widened by staleness."""

    def measured(self, source: int, reader: int, bytes_moved: int, elapsed_us: int, now_us: int) -> Self:
        """With one more observation; `bytes_moved` 0 is a bare round trip."""

    def sending(self, source: int, reader: int, byte_count: int) -> Self:
        """With so many more bytes under way (negative: they have arrived, or were given up)."""


class Cost(Protocol):
    """What each way of serving would take."""

    def quote(self, given: QuoteInput) -> QuoteTable: ...


class UnderWay(NamedTuple):
    """A request dispatched and not ended, as the router knows it. Times in us of the router's clock."""

    node: int
    first_token_us: int | None  # when it came; None: not yet
    expected_us: int  # when it was quoted to come


class Selector(Protocol):
    """Which way is taken; for some, whether a request is let in at all, and what is learned from answers.

    A selector is a value: what one `learns` is a state that its router keeps; only `answered` and `ended` change it.
    """

    @property
    def may_refuse(self) -> bool:
        """Whether `refuses` has to be asked."""
        return False

    @property
    def learns(self) -> bool:
        """Whether `now` depends on the state."""
        return False

    @property
    def least_at_permille(self) -> int | None:
        """A promise: the row of least `core.costing.priced_us` at this weight is chosen, `better` among equals. Then no
        other row need be quoted. None: any row may be chosen."""
        return None

    def select(self, table: QuoteTable) -> int:
        """The row to follow. Equal tables give equal answers; the order of rows does not matter."""

    def refuses(self, table: QuoteTable, row: int, under_way: Sequence[UnderWay], now_us: int) -> str:
        """Why a request that would take this row is turned away before any work; empty: it is let in."""
        return ""

    def initial_state(self) -> Any:
        """The state before any answer."""
        return None

    def now(self, state: Any) -> Selector:
        """What decides in this state."""
        return self

    def answered(self, state: Any, ttft_us: int) -> Any:
        """The state after one more first token."""
        return state

    def ended(self, state: Any, decode_us: int) -> Any:
        """The state after one more answer has come to its end, so long after its first token."""
        return state


class BlockView(Struct, frozen=True, gc=False):
    """What a retention policy may know of a resident block. Times in us of the node's clock."""

    slot: int
    scope_id: int
    depth: int  # blocks before it in its chain
    stored_us: int
    used_us: int
    use_count: int
    recompute_us: int  # predicted time to compute it again
    level: int = 0  # of its scope, see `rights.py`
    # -- for policies that age, or need something
    account_used: int = 0  # blocks that its account holds
    account_reserved: int = 0
    balance_blocks: float = 0.0  # of its account, see `Retention.refilled`; negative: debt
    wanted: int = 0  # waiting requests with this block in their prompt; only counted for who needs `QUEUE`
    attention: float = 0.0  # mass on it that the engine reported; only with `ATTENTION`
    next_use_us: int | None = None  # when it will be asked for next, if ever; only with `FUTURE`


QUEUE, ATTENTION, FUTURE = "queue", "attention", "future"  # what a retention policy may need beside the block


class Retention(Protocol):
    """Which block goes first when something must go.

    `ages` False promises that the score of a block changes only when the block is used, or a waiting request begins or
    ceases to want it: then it is asked for only then. `needs` says what else must be known; where nobody can tell, a
    run is refused.
    """

    ages: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset()

    def score(self, block: BlockView, now_us: int) -> float:
        """Larger is kept longer. The core evicts leaves only, lowest score first, ties by slot."""

    def refilled(self, balance_blocks: float, elapsed_us: int) -> float:
        """A balance after so much time; an account pays 1 for each new block it stores. A full one is infinite here."""
        return 0.0


class QueuedRequest(Struct, frozen=True, kw_only=True, gc=False):
    """What a schedule may know of a waiting request."""

    request_id: int
    tenant_id: int
    priority: int
    arrival_us: int  # at this worker
    uncached_tokens: int
    prompt_tokens: int


class Schedule(Protocol):
    """Which waiting request runs next.

    `by_arrival` True promises: always the one that came first, ties by request id. Then nobody looks at all of them.
    """

    by_arrival: ClassVar[bool] = False

    def next(self, queue: Sequence[QueuedRequest], served_tokens: dict[int, int], now_us: int) -> int:
        """Position in `queue` of the request to run next. `served_tokens` counts service by tenant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a prefetch policy is told of each dispatched request. `prefix_blocks` are the full blocks before the last
    segment: what another request may share. `step` is the application, as a declared workflow names it."""

    request_id: int
    tenant_id: int
    user_id: int
    step: str
    chain: Chain
    prefix_blocks: int
    executor: int
    ingress: int
    queued_requests: int  # at the executor, this one not counted
    pulled_blocks: int  # that its plan fetches
    now_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchIntent:
    """Move blocks [0, block_count) of a chain to `node` before a request of this tenant asks there."""

    tenant_id: int
    user_id: int
    chain: Chain
    block_count: int
    node: int
    deadline_us: int
    probability: float


class Prefetch(Protocol):
    """What to move before it is asked for. The router fetches an intent only where its tenant may read, where the
    expected gain exceeds the price of what is moved in vain, and as long as less than the bound is on its way."""

    price_ps_per_byte: int  # of a byte moved in vain, in time
    inflight_bytes_max: int  # on the way to one node

    def initial_state(self) -> Any:
        """The state before any request."""

    def observe(self, state: Any, seen: Seen) -> Any:
        """The state after one more dispatch."""

    def propose(self, state: Any, now_us: int) -> tuple[Any, tuple[PrefetchIntent, ...]]:
        """The state after proposing, and what to move now, most valuable first."""

    def told(self, state: Any, promoted: frozenset[bytes]) -> tuple[Any, bool]:
        """The state once these are the names of all promoted prefixes, and whether the policy can go by them."""
        return state, True


class Noise(Protocol):
    """Chance, given by the driver: seeded in simulation, the system's entropy on a cluster.

    Gaussian and Laplace values lie on a fixed grid, so that their low bits say nothing (Mironov 2012).
    """

    def gaussian(self, sigma: float, count: int) -> NDArray[np.float64]:
        """`count` independent values with mean 0 and standard deviation `sigma`."""

    def laplace(self, scale: float, count: int) -> NDArray[np.float64]:
        """`count` independent values with density exp(-|x|/scale) / (2 scale)."""

    def uniform(self, count: int) -> NDArray[np.float64]:
        """`count` independent values in [0, 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """The prefixes one prompt would share: names under the wider key, depths in blocks, shallow first."""

    unit_id: int  # tenant or user, as the policy's `unit` says
    names: tuple[bytes, ...]
    blocks: tuple[int, ...]
    tenant_id: int = 0  # whose user the unit is; 0: of a tenant of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What a release costs: `steps` Gaussian mechanisms of sensitivity 1, or (epsilon, delta) as it stands.

    `delta` is what the mechanism needs besides its noise (say, for its threshold).
    """

    label: str
    noise_multiplier: float | None = None
    sample_rate: float = 1.0
    steps: int = 1
    epsilon: float = 0.0
    delta: float = 0.0


class Disclosure(Protocol):
    """Which tenant-scoped prefixes become shared. Its state belongs to whoever runs it, and changes only through it."""

    is_private: ClassVar[bool]  # whether what it releases carries an epsilon; if not, epsilon is infinite
    unit: str  # what an epsilon protects: `tenant`, or `user`
    period_us: int  # time between releases; 0: at every request

    def initial_state(self) -> Any:
        """The state before any vote."""

    def observe(self, state: Any, ballot: Ballot) -> Any:
        """The state after one more request; what exceeds a unit's bound is left out and counted."""

    def charge(self, state: Any) -> Charge | None:
        """What the next `release` costs; None: nothing more than was charged before."""

    def release(self, state: Any, noise: Noise) -> tuple[Any, frozenset[bytes]]:
        """The state after the release, and the names released now; of what was voted, nothing else leaves."""
