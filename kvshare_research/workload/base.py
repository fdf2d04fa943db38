"""The seam of this folder: a workload turns a tokenizer and a table of parties into prompts without arrival times."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.directory import Directory
from kvshare_research.core.nouns import Request
from kvshare_research.workload.catalogue import Catalogue

Tokens = NDArray[np.uint32]


class Tokenizer(Protocol):
    """All that a workload needs of a tokenizer. No special token is added, so segments can be put together."""

    def encode(self, text: str) -> Tokens: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadInput:
    """All that a workload may depend on besides its own values.

    `node_count` workers receive requests; `pool_blocks` is the capacity of all of them together, in blocks.
    """

    tokenizer: Tokenizer
    directory: Directory
    catalogue: Catalogue
    seed: int
    block_tokens: int
    node_count: int = 1
    pool_blocks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptItem:
    """A request (arrival 0) and its tokens, with what it shares by construction.

    `layers` names the layer of each segment; a layer without text is no segment. The first `tenant_shared_tokens` are
    the same in every request of this tenant and application, the first `shared_tokens` in every request of the
    application. The rest is this request's own.
    """

    request: Request
    tokens: Tokens
    application: str
    layers: tuple[str, ...]
    shared_tokens: int
    tenant_shared_tokens: int

    @property
    def overlap(self) -> float:
        """Realised share of the prompt that earlier requests of the same tenant and application contain."""
        return self.tenant_shared_tokens / len(self.tokens)

    @property
    def cross_tenant_overlap(self) -> float:
        """Realised share of the prompt that requests of other tenants contain."""
        return self.shared_tokens / len(self.tokens)

    def reusable_tokens(self, block_tokens: int) -> int:
        """Tokens in whole blocks of the shared prefix; the block over its end has the tail's tighter scope."""
        return self.tenant_shared_tokens // block_tokens * block_tokens


class Workload(Protocol):
    """What is asked."""

    def make(self, given: WorkloadInput) -> list[PromptItem]:
        """The prompts in the order of their arrival. Equal input gives equal output, in any process."""


def distinct_blocks(items: Iterable[PromptItem], block_tokens: int) -> int:
    """Number of different full blocks that the prompts contain, each with the scope of its last token."""
    return sum(new for new in new_blocks(items, block_tokens))


def new_blocks(items: Iterable[PromptItem], block_tokens: int) -> Iterable[int]:
    """For each prompt, how many of its full blocks no earlier one contained."""
    seen: set[bytes] = set()
    for item in items:
        before = len(seen)
        seen.update(_block_names(item, block_tokens))
        yield len(seen) - before


def _block_names(item: PromptItem, block_tokens: int) -> Iterable[bytes]:
    scopes = np.repeat([s.scope_id for s in item.request.segments], [s.token_count for s in item.request.segments])
    name = b""
    for end in range(block_tokens, len(item.tokens) + 1, block_tokens):
        block = item.tokens[end - block_tokens : end].astype("<u4").tobytes()
        # Scopes only tighten along the prompt, hence the last token has the tightest of the block.
        scope = int(scopes[end - 1]).to_bytes(4, "little")
        name = hashlib.blake2b(name + scope + block, digest_size=16).digest()
        yield name
