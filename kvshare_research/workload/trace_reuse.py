"""How much of a trace could be reused at best: an infinite cache that everybody may read, over the whole trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .trace import TraceRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """Tokens of all prompts, and of those how many an infinite cache would have held."""

    requests: int
    tokens: int
    named_tokens: int  # of them, those that the trace's ids name; RAGPulse leaves out the joints between parts
    chain_tokens: int  # in the longest stretch from the start that an earlier prompt began with too
    anywhere_tokens: int  # in stretches that an earlier prompt, or an earlier place of this one, contained

    @property
    def chain_ratio(self) -> float:
        """Of the named tokens."""
        return self.chain_tokens / self.named_tokens if self.named_tokens else 0.0

    @property
    def anywhere_ratio(self) -> float:
        return self.anywhere_tokens / self.named_tokens if self.named_tokens else 0.0


def reuse(rows: Iterable[TraceRow]) -> Reuse:
    """What could be reused, by the trace's own stretches (a last, partial one included)."""
    trie: dict[tuple[int, str, int], int] = {}  # (parent node, id space, id) -> node
    seen: set[tuple[str, int]] = set()
    requests = tokens = named = chained = anywhere = 0
    for row in rows:
        requests += 1
        tokens += row.input_tokens
        node, known = 0, True
        for content, length in row.stretches():
            named += length
            step = (node, row.space, content)
            known = known and step in trie
            node = trie.setdefault(step, len(trie) + 1)
            chained += length if known else 0
            anywhere += length if (row.space, content) in seen else 0
            seen.add((row.space, content))
    return Reuse(requests=requests, tokens=tokens, named_tokens=named, chain_tokens=chained, anywhere_tokens=anywhere)
