"""What a victim and its attacker send: public template + secret + private tail, scoped and hashed by the tenancy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.directory import Directory
from kvshare_research.core.nouns import Chain, Request, Segment
from kvshare_research.core.ports import Tenancy
from kvshare_research.core.rights import EVERYBODY, TENANT, Scope
from kvshare_research.guard.keys import KeyRing
from kvshare_research.guard.namespace import ModelSpace, chain

TAIL_TOKENS = 8
Tokens = NDArray[np.uint32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Writes prompts over one public template. `shared` is the scope of the secret; None: its sender's own."""

    tenancy: Tenancy
    directory: Directory
    ring: KeyRing
    space: ModelSpace
    draw: np.random.Generator
    vocabulary: int
    template: Tokens
    shared: Scope | None = None

    def text(self, blocks: int) -> Tokens:
        """Random tokens, drawn once."""
        return random_text(self.draw, self.vocabulary, blocks * self.space.block_tokens)

    def prompt(
        self, tenant: int, secret: Tokens, *, number: int, at_us: int, node_count: int, executor: int | None = None,
        asks_as: int | None = None,
    ) -> tuple[Request, Chain, Tokens]:  # fmt: skip
        """The prompt with `secret` in it and a fresh tail; the ingress is drawn, or is the pinned executor.

        `tenant` is the authenticated identity; with `asks_as` the prompt names the scopes of another tenant.
        """
        tail = random_text(self.draw, self.vocabulary, TAIL_TOKENS)
        own = Scope(TENANT, asks_as or tenant)
        parts = ((EVERYBODY, self.template), (self.shared or own, secret), (own, tail))
        asked = [Segment(scope_id=self.directory.scope_id(s), token_count=len(t)) for s, t in parts]
        ids = self.tenancy.scopes(tenant, asked, self.directory, at_us, 0)
        segments = tuple(Segment(scope_id=i, token_count=s.token_count) for i, s in zip(ids, asked, strict=True))
        tokens = np.concatenate([t for _, t in parts])
        made = chain(tokens, segments, ids, directory=self.directory, ring=self.ring, space=self.space)
        request = Request(
            request_id=number, tenant_id=tenant, segments=segments, output_tokens_max=1,
            ingress=int(self.draw.integers(node_count)) if executor is None else executor, arrival_us=at_us,
            executor=executor,
        )  # fmt: skip
        return request, made, tokens


def random_text(draw: np.random.Generator, vocabulary: int, token_count: int) -> Tokens:
    """Tokens that nobody guesses."""
    return draw.integers(0, vocabulary, token_count, dtype=np.uint32)
