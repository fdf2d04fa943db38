"""Reads a GGUF file of a Llama-shaped model with NumPy alone: metadata, dequantised weights, tokenizer.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; blocks: ggml-common.h (`block_q4_1` and so on).
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.errors import EngineError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

Floats = NDArray[np.float32]


def _scale(rows: NDArray[np.uint8], at: int) -> Floats:
    """The half-precision number at byte `at` of every block, as a column."""
    return rows[:, at : at + 2].copy().view("<f2").astype(np.float32)


def _nibbles(rows: NDArray[np.uint8]) -> Floats:
    """Low halves of all bytes of a block, then the high halves."""
    return np.concatenate([rows & 15, rows >> 4], axis=1).astype(np.float32)


# ggml type -> (name, weights per block, bytes per block, dequantise [block][byte] -> [block][weight])
_TYPES: dict[int, tuple[str, int, int, Callable[[NDArray[np.uint8]], Any]]] = {
    0: ("F32", 1, 4, lambda rows: rows.view("<f4")),
    1: ("F16", 1, 2, lambda rows: rows.view("<f2").astype(np.float32)),
    2: ("Q4_0", 32, 18, lambda rows: _scale(rows, 0) * (_nibbles(rows[:, 2:]) - 8)),
    3: ("Q4_1", 32, 20, lambda rows: _scale(rows, 0) * _nibbles(rows[:, 4:]) + _scale(rows, 2)),
    8: ("Q8_0", 32, 34, lambda rows: _scale(rows, 0) * rows[:, 2:].view(np.int8)),
    30: ("BF16", 1, 2, lambda rows: (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """Where a tensor lies; `shape` is outermost first, as in NumPy."""

    shape: tuple[int, ...]
    type_id: int
    offset_bytes: int  # from the start of the file


class _Cursor:
    """A position in the file that moves as values are read."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def text(self) -> str:
        length = self.scalar("Q")
        raw = self.data[self.at : self.at + length]
        self.at += length
        return raw.decode("utf-8", "surrogateescape")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner, count = self.scalar("I"), self.scalar("Q")
            return [self.value(inner) for _ in range(count)]
        return self.scalar(_SCALARS[kind])


class GgufFile:
    """An open GGUF file: `metadata` by key, `entries` by tensor name; weights are read on demand."""

    def __init__(self, path: Path) -> None:
        """Raises EngineError if the file is missing, cut short or not GGUF."""
        try:
            with path.open("rb") as handle:
                self._data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
            self._read_header()
        except (OSError, ValueError, KeyError, struct.error, UnicodeError) as error:
            raise EngineError(f"`{path}` is no readable GGUF file ({error}); install it again") from error

    def _read_header(self) -> None:
        cursor = _Cursor(self._data)
        if self._data[:4] != b"GGUF":
            raise ValueError("it does not start with `GGUF`")
        cursor.at = 8  # past the magic and the version
        tensor_count, key_count = cursor.scalar("Q"), cursor.scalar("Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(key_count):
            key = cursor.text()
            self.metadata[key] = cursor.value(cursor.scalar("I"))
        found: dict[str, TensorEntry] = {}
        for _ in range(tensor_count):
            name = cursor.text()
            sizes = [cursor.scalar("Q") for _ in range(cursor.scalar("I"))]
            found[name] = TensorEntry(
                shape=tuple(reversed(sizes)), type_id=cursor.scalar("I"), offset_bytes=cursor.scalar("Q")
            )
        align = self.metadata.get("general.alignment", 32)
        base = -(-cursor.at // align) * align
        self.entries = {
            name: TensorEntry(shape=e.shape, type_id=e.type_id, offset_bytes=base + e.offset_bytes)
            for name, e in found.items()
        }
        for name, entry in self.entries.items():
            if entry.offset_bytes + self._size_bytes(entry) > len(self._data):
                raise ValueError(f"tensor {name} runs past the end of the file")

    @staticmethod
    def _size_bytes(entry: TensorEntry) -> int:
        if entry.type_id not in _TYPES:
            raise ValueError(f"ggml type {entry.type_id} is not supported, only {[t[0] for t in _TYPES.values()]}")
        _, weights, size_bytes, _ = _TYPES[entry.type_id]
        return math.prod(entry.shape) // weights * size_bytes

    def weights(self, name: str) -> Floats:
        """The tensor in single precision; raises KeyError if there is none of this name."""
        entry = self.entries[name]
        raw = np.frombuffer(self._data, np.uint8, self._size_bytes(entry), entry.offset_bytes)
        _, _, size_bytes, dequantise = _TYPES[entry.type_id]
        return np.ascontiguousarray(dequantise(raw.reshape(-1, size_bytes)), dtype=np.float32).reshape(entry.shape)
