"""A token-level radix tree: how many tokens, not blocks, of a prompt a node has seen. For estimates and studies.

KV is moved in whole blocks, so its answers are an upper bound that no fetch reaches; schedulers that steer by text
prefixes (SGLang's router, for one) keep such a tree.
"""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.uint32]


class _Edge:
    """A stretch of tokens below a branching point; `holders` have all of it and everything above."""

    __slots__ = ("below", "holders", "tokens")

    def __init__(self, tokens: Tokens, holders: int) -> None:
        self.tokens = tokens
        self.holders = holders
        self.below: dict[int, _Edge] = {}

    def common(self, tokens: Tokens) -> int:
        """Length of the common front of this stretch and `tokens`."""
        size = min(len(self.tokens), len(tokens))
        differs = np.flatnonzero(self.tokens[:size] != tokens[:size])
        return int(differs[0]) if len(differs) else size

    def split(self, at: int) -> None:
        """The stretch ends at `at`, and the rest hangs below it."""
        rest = _Edge(self.tokens[at:], self.holders)
        rest.below = self.below
        self.tokens, self.below = self.tokens[:at], {int(rest.tokens[0]): rest}


@final
class TokenTrie:
    """Prompts by node. Holders only shrink along a path, because whoever stores a prompt stores its front."""

    def __init__(self) -> None:
        self._root = _Edge(np.empty(0, np.uint32), -1)
        self.edge_count = 0

    @property
    def size_bytes(self) -> int:
        """Tokens kept, and about 400 bytes of objects for each edge."""
        todo, tokens = [self._root], 0
        while todo:
            edge = todo.pop()
            tokens += len(edge.tokens)
            todo.extend(edge.below.values())
        return 4 * tokens + 400 * self.edge_count

    def insert(self, node: int, tokens: Tokens) -> None:
        """`node` has this prompt."""
        edge, bit = self._root, 1 << node
        while len(tokens):
            following = edge.below.get(int(tokens[0]))
            if following is None:
                edge.below[int(tokens[0])] = _Edge(tokens.copy(), bit)
                self.edge_count += 1
                return
            length = following.common(tokens)
            if length < len(following.tokens):
                following.split(length)
                self.edge_count += 1
            following.holders |= bit
            edge, tokens = following, tokens[length:]

    def forget(self, node: int) -> None:
        """`node` has nothing any more."""
        bit = 1 << node
        todo = [self._root]
        while todo:
            edge = todo.pop()
            for first, below in list(edge.below.items()):
                below.holders &= ~bit
                if below.holders:
                    todo.append(below)
                else:
                    self.edge_count -= _size(below)
                    del edge.below[first]

    def match(self, tokens: Tokens) -> dict[int, int]:
        """Tokens of the front of the prompt that each node has, partial blocks included; changes nothing."""
        depths: dict[int, int] = {}
        edge, depth = self._root, 0
        while depth < len(tokens):
            following = edge.below.get(int(tokens[depth]))
            if following is None:
                break
            length = following.common(tokens[depth:])
            depth += length
            mask = following.holders
            while mask:
                low = mask & -mask
                depths[low.bit_length() - 1] = depth
                mask ^= low
            if length < len(following.tokens):
                break
            edge = following
        return depths


def _size(edge: _Edge) -> int:
    return 1 + sum(_size(below) for below in edge.below.values())
