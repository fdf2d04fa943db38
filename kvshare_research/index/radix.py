"""The token-level index: beside whole blocks, how many tokens of the block after them a node has. For estimates.

KV is moved in whole blocks, so `match` counts those and nothing else, as every index does. Schedulers that steer by
text prefixes (SGLang's router, for one) count tokens: that is `estimate`. Tokens never reach an index; it compares
keyed names of the prompt up to each token (`Chain.token_names`), which are equal only for equal prompts of one scope.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import HASH_BYTES, TOKEN_NAME_BYTES, Chain
from kvshare_research.core.ports import Index, IndexStore, Reads

from .over import StoreOver


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RadixIndex(Index):
    """Answers as `inner`; estimates in tokens, with those of the `named_blocks_max` blocks last asked for."""

    reads: ClassVar[Reads] = "tokens"

    inner: Index
    named_blocks_max: int = 65536

    def __post_init__(self) -> None:
        if self.named_blocks_max < 1:
            raise ConfigError(f"index.named_blocks_max is `{self.named_blocks_max}`, expected at least 1")

    def new_store(self, node_count: int) -> RadixStore:
        return RadixStore(self.inner.new_store(node_count), self.named_blocks_max)


@final
class RadixStore(StoreOver):
    """A tree of blocks seen in prompts, each an edge of tokens, over the inner store's account of who holds them."""

    def __init__(self, inner: IndexStore, named_blocks_max: int) -> None:
        super().__init__(inner)
        self._most = named_blocks_max
        self._names: OrderedDict[bytes, bytes] = OrderedDict()  # of each block, in order of last use
        self._parents: dict[bytes, bytes] = {}  # empty: a first block
        self._below: dict[bytes, list[tuple[bytes, bytes]]] = {}  # (token names, block) after a block, in order

    @property
    def named_blocks(self) -> int:
        """Blocks whose tokens can be compared."""
        return len(self._names)

    def seen(self, chain: Chain) -> None:
        """The tokens of its full blocks are known from now on."""
        step, parent = chain.block_tokens * TOKEN_NAME_BYTES, b""
        for i in range(min(chain.block_count, len(chain.token_names) // step)):
            block = chain.block_hash(i)
            if block not in self._names:
                names = self._names[block] = chain.token_names[i * step : (i + 1) * step]
                self._parents[block] = parent
                insort(self._below.setdefault(parent, []), (names, block))
            parent = block
        for block in reversed(chain.block_hashes(0, chain.block_count)):  # a root is used last, and so leaves last
            if block in self._names:
                self._names.move_to_end(block)
        while len(self._names) > self._most:
            self._drop(*self._names.popitem(last=False))

    def estimate(self, chain: Chain) -> dict[tuple[int, int], int]:
        """Tokens of the front of the prompt per (node, tier): whole blocks, and the common start of one block more that
        stands there. Never less than `match`, and less than a block more; changes nothing."""
        size = chain.block_tokens
        blocks = {(r.node, r.tier): r.block_count for r in self.match(chain).runs}
        tokens = {place: count * size for place, count in blocks.items()}
        for depth in sorted({0, *blocks.values()}):
            waiting = {place for place, count in blocks.items() if count == depth}  # at 0: also who has no run
            for common, other in self._branches(chain, depth):
                runs = self.match(_branch(chain, depth, other)).runs
                there = {(run.node, run.tier) for run in runs if run.block_count > depth}
                for place in there:
                    tokens[place] = max(tokens.get(place, 0), depth * size + common)
                waiting -= there
                if depth and not waiting:
                    break
        return tokens

    def _branches(self, chain: Chain, depth: int) -> Iterator[tuple[int, bytes]]:
        """(common tokens, block) of the other blocks after this many of the chain, most in common first."""
        step = chain.block_tokens * TOKEN_NAME_BYTES
        own, itself = chain.token_names[depth * step : (depth + 1) * step], chain.block_hash(depth)
        below = self._below.get(chain.block_hash(depth - 1) if depth else b"", [])
        right = bisect_left(below, (own, b""))
        left = right - 1
        while True:  # away from its own place in their order, what is common only shrinks
            before = _common(own, below[left][0]) if left >= 0 else 0
            after = _common(own, below[right][0]) if right < len(below) else 0
            if not before and not after:
                return
            at = left if before > after else right
            left, right = (left - 1, right) if before > after else (left, right + 1)
            if below[at][1] != itself:
                yield max(before, after), below[at][1]

    def _drop(self, block: bytes, names: bytes) -> None:
        parent = self._parents.pop(block)
        siblings = self._below[parent]
        del siblings[bisect_left(siblings, (names, block))]
        if not siblings:
            del self._below[parent]


def _branch(chain: Chain, depth: int, block: bytes) -> Chain:
    """The first `depth` blocks of the chain, and then another."""
    hashes = chain.hashes[: depth * HASH_BYTES] + block
    return Chain(hashes=hashes, scope_ends=((0, depth + 1),), block_tokens=chain.block_tokens)


def _common(a: bytes, b: bytes) -> int:
    """How many token names two stretches begin with alike."""
    size = min(len(a), len(b))
    differs = int.from_bytes(a[:size], "big") ^ int.from_bytes(b[:size], "big")
    return (size - (differs.bit_length() + 7) // 8) // TOKEN_NAME_BYTES
