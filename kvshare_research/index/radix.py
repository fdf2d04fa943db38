"""The token-level index: beside whole blocks, how many tokens of the block after them a node has. For estimates.

KV is moved in whole blocks, so `match` counts those and nothing else, as every index does. Schedulers that steer by
text prefixes (SGLang's router, for one) count tokens: that is `estimate`. Tokens never reach an index; it compares
keyed names of the prompt up to each token (`Chain.token_names`), which are equal only for equal prompts of one scope.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import HASH_BYTES, TOKEN_NAME_BYTES, Chain, Match
from kvshare_research.core.ports import Index, IndexStore, Reads


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RadixIndex(Index):
    """Answers as `inner`; estimates in tokens, with those of the `marked_blocks_max` blocks last asked for."""

    reads: ClassVar[Reads] = "tokens"

    inner: Index
    marked_blocks_max: int = 65536

    def __post_init__(self) -> None:
        if self.marked_blocks_max < 1:
            raise ConfigError(f"index.marked_blocks_max is `{self.marked_blocks_max}`, expected at least 1")

    def new_store(self, node_count: int) -> RadixStore:
        return RadixStore(self.inner.new_store(node_count), self.marked_blocks_max)


@final
class RadixStore(IndexStore):
    """A tree of blocks seen in prompts, each an edge of tokens, over the inner store's account of who holds them."""

    def __init__(self, inner: IndexStore, marked_blocks_max: int) -> None:
        self.inner, self._most = inner, marked_blocks_max
        self._marks: OrderedDict[bytes, bytes] = OrderedDict()  # of each block, in order of last use
        self._parents: dict[bytes, bytes] = {}  # empty: a first block
        self._below: dict[bytes, dict[bytes, None]] = {}

    @property
    def marked_blocks(self) -> int:
        """Blocks whose tokens can be compared."""
        return len(self._marks)

    def seen(self, chain: Chain) -> None:
        """The tokens of its full blocks are known from now on."""
        step, parent = chain.block_tokens * TOKEN_NAME_BYTES, b""
        for i in range(min(chain.block_count, len(chain.token_names) // step)):
            block = chain.block_hash(i)
            if block not in self._marks:
                self._marks[block] = chain.token_names[i * step : (i + 1) * step]
                self._parents[block] = parent
                self._below.setdefault(parent, {})[block] = None
            parent = block
        for block in reversed(chain.block_hashes(0, chain.block_count)):  # a root is used last, and so leaves last
            if block in self._marks:
                self._marks.move_to_end(block)
        while len(self._marks) > self._most:
            self._drop(self._marks.popitem(last=False)[0])

    def estimate(self, chain: Chain) -> dict[tuple[int, int], int]:
        """Tokens of the front of the prompt per (node, tier): whole blocks, and the common start of one block more that
        stands there. Never less than `match`, and less than a block more; changes nothing."""
        size = chain.block_tokens
        blocks = {(r.node, r.tier): r.block_count for r in self.match(chain).runs}
        tokens = {place: count * size for place, count in blocks.items()}
        for depth in sorted({0, *blocks.values()}):
            for common, other in self._branches(chain, depth):
                for run in self.match(_branch(chain, depth, other)).runs:
                    place = (run.node, run.tier)
                    if run.block_count > depth:
                        tokens[place] = max(tokens.get(place, 0), depth * size + common)
        return tokens

    def _branches(self, chain: Chain, depth: int) -> list[tuple[int, bytes]]:
        """(common tokens, block) of the other blocks after this many of the chain."""
        step = chain.block_tokens * TOKEN_NAME_BYTES
        own = chain.token_names[depth * step : (depth + 1) * step]
        below = self._below.get(chain.block_hash(depth - 1) if depth else b"", ())
        itself = chain.block_hash(depth)
        found = [(_common(own, self._marks[block]), block) for block in below if block != itself]
        return [row for row in found if row[0]]

    def _drop(self, block: bytes) -> None:
        parent = self._parents.pop(block)
        siblings = self._below[parent]
        del siblings[block]
        if not siblings:
            del self._below[parent]

    # ------------------------------------------------------------- as the inner store
    def store(self, node: int, tier: int, parent: bytes | None, hashes: Sequence[bytes]) -> None:
        """As the inner store."""
        self.inner.store(node, tier, parent, hashes)

    def remove(self, node: int, tier: int, hashes: Sequence[bytes]) -> int:
        """As the inner store."""
        return self.inner.remove(node, tier, hashes)

    def clear(self, node: int, tier: int | None) -> None:
        """As the inner store."""
        self.inner.clear(node, tier)

    def match(self, chain: Chain) -> Match:
        """Whole blocks: as the inner store."""
        return self.inner.match(chain)

    def rows(self, node: int) -> tuple[tuple[int, bytes, bytes | None, int], ...]:
        """As the inner store."""
        return self.inner.rows(node)

    def entry_count(self) -> int:
        """As the inner store."""
        return self.inner.entry_count()


def _branch(chain: Chain, depth: int, block: bytes) -> Chain:
    """The first `depth` blocks of the chain, and then another."""
    hashes = chain.hashes[: depth * HASH_BYTES] + block
    return Chain(hashes=hashes, scope_ends=((0, depth + 1),), block_tokens=chain.block_tokens)


def _common(a: bytes, b: bytes) -> int:
    """How many marks two stretches begin with alike."""
    size = min(len(a), len(b)) // TOKEN_NAME_BYTES
    left, right = (np.frombuffer(x, np.uint32, size) for x in (a, b))
    differs = np.flatnonzero(left != right)
    return int(differs[0]) if len(differs) else size
