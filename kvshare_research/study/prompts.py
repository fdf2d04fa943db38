"""From a workload to what a driver is given: requests with effective scopes, their block chains, and arrival times."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvshare_research.core.directory import Directory
from kvshare_research.core.nouns import HASH_BYTES, Chain, Request, Segment
from kvshare_research.core.ports import Tenancy
from kvshare_research.engine.tokenizer import sentence_enders
from kvshare_research.guard.detail import Detail
from kvshare_research.guard.disclosing import Offer, offer, widened
from kvshare_research.guard.keys import KeyRing
from kvshare_research.guard.namespace import BLOCKS, ModelSpace, chain, chains
from kvshare_research.workload.base import PromptItem

from .assembly import component
from .sizing import is_timed

PUBLIC_SCOPE = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """One request ready to be sent. `hash_us` is what hashing it took: part of its TTFT, done before its arrival."""

    request: Request
    chain: Chain
    tokens: NDArray[np.uint32]
    hash_us: int
    warmup: bool
    contents: tuple[bytes, ...]  # a name per block of what it holds, whoever may read it
    offer: Offer | None = None  # what of it a disclosure could widen


@dataclass(frozen=True, slots=True, kw_only=True)
class Hasher:
    """What turns tokens into chains: the tenancy, the directory it runs on, the keys and the model.

    With `discloses` a prompt also says what of it could be shared more widely; `detail` is what the index reads of it.
    """

    tenancy: Tenancy
    directory: Directory
    ring: KeyRing
    space: ModelSpace
    discloses: bool = False
    detail: Detail = BLOCKS

    def prompt(
        self, request: Request, tokens: NDArray[np.uint32], *, warmup: bool, released: frozenset[bytes] = frozenset()
    ) -> Prompt:
        """The request under this tenancy, ready to be sent; see `chained`."""
        started = time.perf_counter_ns()
        made, hashed, offered = self.chained(request, tokens, released)
        hash_us = (time.perf_counter_ns() - started) // 1000
        return Prompt(
            request=made,
            chain=hashed,
            tokens=tokens,
            hash_us=hash_us,
            warmup=warmup,
            contents=self._contents(tokens),
            offer=offered,
        )

    def chained(
        self, request: Request, tokens: NDArray[np.uint32], released: frozenset[bytes] = frozenset()
    ) -> tuple[Request, Chain, Offer | None]:
        """The request with the scopes it has at its arrival, its chain, and what of it could be shared. The catalogue's
        scopes can only be tightened, but for prefixes whose wider name is in `released`: those have the wider scope."""
        return self.chained_together([(request, tokens)], released)[0]

    def chained_together(
        self, asked: Sequence[tuple[Request, NDArray[np.uint32]]], released: frozenset[bytes] = frozenset()
    ) -> list[tuple[Request, Chain, Offer | None]]:
        """As `chained` of each; hashed in one go."""
        scoped = [self._scoped(request, tokens, released) for request, tokens in asked]
        given = [(tokens, made.segments, ids) for (_, tokens), (made, ids, _) in zip(asked, scoped, strict=True)]
        found = chains(given, directory=self.directory, ring=self.ring, space=self.space, detail=self.detail)
        return [(made, hashed, offered) for (made, _, offered), hashed in zip(scoped, found, strict=True)]

    def _scoped(
        self, request: Request, tokens: NDArray[np.uint32], released: frozenset[bytes]
    ) -> tuple[Request, tuple[int, ...], Offer | None]:
        asked, user_id = request.segments, request.user_id
        scope_ids = self.tenancy.scopes(request.tenant_id, asked, self.directory, request.arrival_us, user_id)
        segments = asked
        if [s.scope_id for s in asked] != list(scope_ids):
            segments = tuple([replace(s, scope_id=i) for s, i in zip(asked, scope_ids, strict=True)])
        offered = self._offer(tokens, asked, scope_ids)
        if offered is not None and (blocks := offered.released_blocks(released)):
            count = blocks * self.space.block_tokens
            segments, scope_ids = widened(segments, scope_ids, offered.wider_id, count, self.directory)
        made = request if segments is asked else replace(request, segments=segments)
        return made, tuple(scope_ids), offered

    def _offer(
        self, tokens: NDArray[np.uint32], segments: tuple[Segment, ...], scope_ids: tuple[int, ...]
    ) -> Offer | None:
        if not self.discloses:
            return None
        return offer(tokens, segments, scope_ids, directory=self.directory, ring=self.ring, space=self.space)

    def _contents(self, tokens: NDArray[np.uint32]) -> tuple[bytes, ...]:
        """Block names under one key for everybody: equal exactly when the KV bytes are. For counting only."""
        whole = (Segment(scope_id=PUBLIC_SCOPE, token_count=len(tokens)),)
        public = chain(tokens, whole, (PUBLIC_SCOPE,), directory=self.directory, ring=self.ring, space=self.space)
        return tuple(public.hashes[i : i + HASH_BYTES] for i in range(0, len(public.hashes), HASH_BYTES))


def detail_of(config: Mapping[str, Any], open_tokenizer: Callable[[], Any]) -> Detail:
    """What the configured index reads of a prompt; of a trace, which has ids for text, only segments are known."""
    reads = component(config, "index").reads
    if reads == "sentences" and not is_timed(component(config, "workload")):
        return Detail(reads=reads, enders=sentence_enders(open_tokenizer()))
    return Detail(reads=reads)


def prompts(items: Sequence[PromptItem], hasher: Hasher, *, case_number: int, warmup_requests: int) -> list[Prompt]:
    """The items in order, numbered within the case. The first request of each application is warm-up too."""
    seen: set[str] = set()
    out = []
    for index, item in enumerate(items):
        warmup = index < warmup_requests or item.application not in seen
        seen.add(item.application)
        request = replace(item.request, request_id=(case_number << 32) + index, application=item.application)
        out.append(hasher.prompt(request, item.tokens, warmup=warmup))
    return out


def arrivals(given: Sequence[Prompt], times_us: Sequence[int]) -> list[tuple[int, Request, Chain, NDArray[np.uint32]]]:
    """The schedule that a cluster plays."""
    return [(t, p.request, p.chain, p.tokens) for p, t in zip(given, times_us, strict=True)]
