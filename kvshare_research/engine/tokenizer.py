"""The two tokenizers: bytes as they are, and any `tokenizers` file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from .base import TokenArray, Tokenizer

if TYPE_CHECKING:
    import tokenizers


@final
@dataclass(frozen=True, slots=True)
class ByteTokenizer(Tokenizer):
    """One token per byte of UTF-8; ids above 255 decode to nothing."""

    version: str = "bytes-1"
    vocabulary_count: int = 256

    def encode(self, text: str) -> TokenArray:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32)

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace")


@final
@dataclass(frozen=True, slots=True)
class HuggingFaceTokenizer(Tokenizer):
    """A fast tokenizer; `version` is a hash of its whole definition."""

    inner: tokenizers.Tokenizer
    version: str
    vocabulary_count: int

    @classmethod
    def load(cls, source: str) -> HuggingFaceTokenizer:
        """From `tokenizer.json` in a folder if there is one, else as transformers finds it."""
        import blake3

        inner = _open(source)
        version = blake3.blake3(inner.to_str().encode()).hexdigest()[:16]
        vocabulary_count = 1 + max(inner.get_vocab(with_added_tokens=True).values(), default=-1)
        return cls(inner, version, vocabulary_count)

    def encode(self, text: str) -> TokenArray:
        return np.array(self.inner.encode(text, add_special_tokens=False).ids, dtype=np.uint32)

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.inner.decode([int(i) for i in ids], skip_special_tokens=False)
        return text


def sentence_enders(tokenizer: Tokenizer) -> TokenArray:
    """The tokens whose text ends in a stop, a question or exclamation mark, or a line break."""
    ids = range(tokenizer.vocabulary_count)
    ends = [i for i in ids if tokenizer.decode([i]).rstrip(" \t\"')").endswith((".", "?", "!", "\n"))]
    return np.array(ends, np.uint32)


def _open(source: str) -> Any:
    path = Path(source) / "tokenizer.json"
    if path.is_file():
        import tokenizers

        return tokenizers.Tokenizer.from_file(str(path))
    import transformers

    slow_or_fast = transformers.AutoTokenizer.from_pretrained(source)
    inner = getattr(slow_or_fast, "backend_tokenizer", None)
    if inner is None:
        raise ValueError("its tokenizer has no fast version (tokenizer.json)")
    return inner
