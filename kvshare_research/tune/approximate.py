"""The fleet in one `lax.scan` over requests, for a whole population of weight vectors at once.

What is kept per candidate: which stretches of prefix each node holds (evicted when a pool's worth of new tokens came
since their last use), until when each node prefills, and the requests under way on it. A node has a decode clock, which
stands while it prefills: a request has decoded when that clock has moved by its tokens times the step of the batch it
joined. What is left out: shared links, late and lost events, refusals, admission limits, tokens decoded beside a chunk.
All candidates see the same requests and the same ties, so they differ by their weights alone (common random numbers).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from .scores import Features, Score, Tunable
from .window import Floats, Window

SLOTS = 32  # requests under way that are told apart on a node; more are counted, and believed to end together
NEVER = -1e30


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetModel:
    """The fleet in ms and tokens. `rtt_ms[i, j]` and `pull_ms_per_token[i, j]` are the link from node i to node j."""

    rtt_ms: Floats
    pull_ms_per_token: Floats
    prefill_ms: tuple[float, ...]  # c0 to c4 of core/costing.py
    chunk_tokens: int
    pool_tokens: int
    block_tokens: int
    decode_step_ms: float
    decode_ms_per_request: float
    decode_ms_per_token: float

    @property
    def node_count(self) -> int:
        return len(self.rtt_ms)


class _Fleet(NamedTuple):
    """`FleetModel` as JAX sees it."""

    rtt_ms: Any
    pull_ms_per_token: Any
    prefill_ms: Any
    chunk_tokens: Any
    pool_tokens: Any
    block_tokens: Any
    decode: Any  # ms per step, per request, per token of context


class _State(NamedTuple):
    """Of all candidates; P candidates, N nodes, S stretches, K requests under way."""

    used: Any  # (S + 1, P, N): the node's count of new tokens when the stretch was last used there
    stored: Any  # (P, N): new tokens since the start
    busy_ms: Any  # (P, N): until when the node prefills what it was given
    work_ms: Any  # (P, N): prefill given to the node since the start
    first_ms: Any  # (P, N, K)
    done: Any  # where the decode clock stands when the request is done
    tokens: Any
    requests: Any


class _Row(NamedTuple):
    """One request."""

    now_ms: Any
    tokens: Any
    output_tokens: Any
    ingress: Any
    path: Any
    path_tokens: Any
    reusable_tokens: Any


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """Per request and candidate, shape (requests, candidates): times in ms, the executor, tokens reused in place."""

    ttft_ms: Floats
    e2e_ms: Floats
    executor: NDArray[np.int32]
    hit_tokens: Floats


def play(
    tunable: Tunable, weights: NDArray[np.float64], window: Window, fleet: FleetModel, *, batch: int = 128
) -> Played:
    """What becomes of the window under each row of `weights`; equal inputs give equal values, whatever else is asked.

    `batch` candidates are computed together, which decides speed and memory only.
    """
    given = np.asarray(weights, np.float32)
    count = len(given)
    width = min(batch, count)
    room = -(-count // width) * width
    filled = np.concatenate([given, np.repeat(given[:1], room - count, axis=0)])
    model = _Fleet(
        fleet.rtt_ms, fleet.pull_ms_per_token, np.array(fleet.prefill_ms, np.float32),
        np.float32(fleet.chunk_tokens or 1e9), np.float32(fleet.pool_tokens), np.float32(fleet.block_tokens),
        np.array([fleet.decode_step_ms, fleet.decode_ms_per_request, fleet.decode_ms_per_token], np.float32),
    )  # fmt: skip
    rows = _Row(
        window.arrival_ms, window.tokens, window.output_tokens, window.ingress, window.paths, window.path_tokens,
        window.reusable_tokens,
    )  # fmt: skip
    run = _compiled(tunable.score, tunable.pulls)
    parts = [run(filled[i : i + width], model, rows, window.stretch_count) for i in range(0, room, width)]
    columns = [np.concatenate([np.asarray(p[k]) for p in parts], axis=1)[:, :count] for k in range(7)]
    first, trip, executor, hits, *clocks = columns
    since = window.arrival_ms[:, None] - trip
    done = np.stack([_done_ms(fleet.node_count, executor[:, i], *(c[:, i] for c in clocks)) for i in range(count)], 1)
    return Played(ttft_ms=first - since, e2e_ms=done - since, executor=executor, hit_tokens=hits)


def _done_ms(nodes: int, executor: NDArray[np.int32], started: Floats, took: Floats, done: Floats) -> Floats:
    """When each request has decoded: where its decode clock must stand, and all prefill that came before it did.

    `started` is the decode clock at the beginning of a request's prefill, which takes `took`, and `done` at its end.
    """
    found = np.empty_like(done)
    for node in range(nodes):
        rows = np.flatnonzero(executor == node)
        before = np.concatenate([[0.0], np.cumsum(took[rows], dtype=np.float64)])
        found[rows] = done[rows] + before[np.searchsorted(started[rows], done[rows])]
    return found


@cache
def _compiled(score: Score, pulls: bool) -> Callable[..., Any]:
    import jax

    return jax.jit(partial(_scan, score, pulls), static_argnums=3)


def _scan(score: Score, pulls: bool, weights: Any, fleet: _Fleet, rows: _Row, stretches: int) -> Any:
    import jax
    import jax.numpy as jnp

    count, nodes = len(weights), fleet.rtt_ms.shape[0]
    zeros, slots = jnp.zeros((count, nodes)), jnp.zeros((count, nodes, SLOTS))
    state = _State(
        jnp.full((stretches + 1, count, nodes), NEVER), zeros, zeros, zeros, slots, slots, slots, slots
    )  # fmt: skip
    return jax.lax.scan(partial(_step, score, pulls, weights, fleet), state, rows)[1]


def _prefill(c: Any, new: Any, cached: Any) -> Any:
    """`core.costing.prefill_ps`, in ms."""
    return c[0] + c[1] * new + c[2] * cached + c[3] * new * cached + c[4] * new * new


def _chunked(fleet: _Fleet, new: Any, cached: Any) -> tuple[Any, Any]:
    """Time of a prefill in chunks, and how many: the sum over whole chunks in closed form, and the rest."""
    import jax.numpy as jnp

    c, chunk = fleet.prefill_ms, fleet.chunk_tokens
    whole = jnp.ceil(new / chunk) - 1
    grown = (c[2] + c[3] * chunk) * chunk * whole * (whole - 1) / 2
    rest = _prefill(c, new - whole * chunk, cached + whole * chunk)
    return whole * _prefill(c, chunk, cached) + grown + rest, whole + 1


def _believed(fleet: _Fleet, state: _State, row: _Row) -> tuple[Features, Any, Any, Any]:
    """What the router would know for every candidate, the tokens each node holds, and the batch that decodes there."""
    import jax.numpy as jnp

    kept = (state.stored - state.used[row.path]) < fleet.pool_tokens
    run = jnp.cumprod(kept, axis=0, dtype=jnp.float32)
    hits = jnp.minimum(jnp.einsum("l,lpn->pn", row.path_tokens, run), row.reusable_tokens)
    clock = row.now_ms - state.work_ms + jnp.maximum(state.busy_ms - row.now_ms, 0.0)
    under_way = (state.done > clock[..., None]) & (state.requests > 0)
    decoding = under_way & (state.first_ms <= row.now_ms)
    new = row.tokens - hits
    features = Features(
        rtt_ms=jnp.broadcast_to(fleet.rtt_ms[row.ingress], hits.shape),
        queue_ms=jnp.maximum(state.busy_ms - row.now_ms, 0.0),
        fetch_ms=jnp.zeros_like(hits),
        prefill_ms=_prefill(fleet.prefill_ms, new, hits),
        uncached_tokens=new,
        queued_tokens=jnp.sum(under_way * state.tokens, axis=-1),
        queued_requests=jnp.sum(under_way * state.requests, axis=-1),
        token_count=row.tokens,
        block_tokens=fleet.block_tokens,
    )
    batch, context = jnp.sum(decoding * state.requests, axis=-1), jnp.sum(decoding * state.tokens, axis=-1)
    return features, hits, batch, context


def _ways(score: Score, pulls: bool, weights: Any, fleet: _Fleet, x: Features, hits: Any) -> tuple[Any, Any, Any]:
    """For one candidate: the executor, the tokens it starts from, and how long the bytes take that are moved to it."""
    import jax
    import jax.numpy as jnp

    staying = score(weights, x)
    executor = jnp.argmin(staying)
    if not pulls:
        return executor, hits[executor], jnp.float32(0)

    def from_source(source: Any) -> tuple[Any, Any]:
        moved = hits[source] - hits
        fetch = fleet.rtt_ms[source] + moved * fleet.pull_ms_per_token[source]
        prefill = _prefill(fleet.prefill_ms, x.token_count - hits[source], hits[source])
        there = x._replace(
            fetch_ms=fetch, prefill_ms=jnp.broadcast_to(prefill, fetch.shape),
            uncached_tokens=x.token_count - hits[source] + 0 * fetch,
        )  # fmt: skip
        return jnp.where(moved > 0, score(weights, there), jnp.inf), fetch

    scores, fetches = jax.vmap(from_source)(jnp.arange(len(hits)))
    way = jnp.argmin(scores)
    source, reader = way // len(hits), way % len(hits)
    pull = scores[source, reader] < staying[executor]
    return (
        jnp.where(pull, reader, executor),
        jnp.where(pull, hits[source], hits[executor]),
        jnp.where(pull, fetches[source, reader], 0.0),
    )


def _step(score: Score, pulls: bool, weights: Any, fleet: _Fleet, state: _State, row: _Row) -> tuple[_State, Any]:
    """One request is decided, served and remembered, for every candidate."""
    import jax
    import jax.numpy as jnp

    features, hits, batch, context = _believed(fleet, state, row)
    node, reused, fetch = jax.vmap(partial(_ways, score, pulls), in_axes=(0, None, _FEATURE_AXES, 0))(
        weights, fleet, features, hits
    )
    everyone = jnp.arange(len(weights))

    def here(values: Any) -> Any:
        return values[everyone, node]

    batch, context, busy = here(batch), here(context), here(state.busy_ms)
    trip = fleet.rtt_ms[row.ingress, node]
    comes = row.now_ms + trip / 2
    took, chunks = _chunked(fleet, row.tokens - reused, reused)
    step_ms, request_ms, token_ms = fleet.decode
    took = took + chunks * (request_ms * batch + token_ms * context)
    between = jnp.where((batch > 0) & (busy <= comes), (step_ms + request_ms * batch + token_ms * context) / 2, 0.0)
    begins = jnp.maximum(busy, comes) + between
    ends = begins + took
    first = jnp.maximum(ends, comes + fetch + took)
    clock = begins - here(state.work_ms)
    per_token = step_ms + request_ms * (batch + 1) + token_ms * (context + row.tokens + row.output_tokens / 2)
    done = clock + (first - ends) + row.output_tokens * per_token

    fresh = row.tokens - jnp.where(fetch > 0, here(hits), reused)
    stored = state.stored.at[everyone, node].add(fresh)
    chosen = (jnp.arange(stored.shape[1])[None] == node[:, None])[None]
    used = state.used.at[row.path].set(jnp.where(chosen, stored[None], state.used[row.path]))
    slot = jnp.argmin(here(state.done), axis=-1)
    at = (everyone, node, slot)
    crowded = state.done[at] > clock
    after = _State(
        used=used,
        stored=stored,
        busy_ms=state.busy_ms.at[everyone, node].set(ends),
        work_ms=state.work_ms.at[everyone, node].add(took),
        first_ms=state.first_ms.at[at].set(first),
        done=state.done.at[at].set(done),
        tokens=state.tokens.at[at].set(row.tokens + jnp.where(crowded, state.tokens[at], 0.0)),
        requests=state.requests.at[at].set(1 + jnp.where(crowded, state.requests[at], 0.0)),
    )
    return after, (first, trip / 2, node, reused, clock, took, done)


_FEATURE_AXES = Features(0, 0, 0, 0, 0, 0, 0, None, None)  # type: ignore[arg-type]
