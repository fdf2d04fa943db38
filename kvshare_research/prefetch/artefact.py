"""A trained predictor on disk: weights, the vocabulary it was trained under, and the epsilon that training spent.

Names in a vocabulary are keyed hashes of released prefixes, so that a predictor can name nothing that is not released.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.errors import ConfigError

_VERSION: Final = 1
Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What an artefact says of how it came about. `epsilon` is None where no privacy is claimed."""

    kind: str
    unit: str
    population: int
    epsilon: float | None
    rdp_epsilon: float | None
    delta: float
    noise_multiplier: float
    steps: int
    sample_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """A predictor: `names` in the order of its outputs, and its arrays."""

    training: Training
    names: tuple[bytes, ...]
    arrays: Mapping[str, Array]

    @property
    def vocabulary(self) -> str:
        """Equal for equal vocabularies, in any order of naming."""
        return vocabulary_of(self.names)


def vocabulary_of(names: Sequence[bytes]) -> str:
    """64 hex digits that say which set of names it is."""
    return hashlib.sha256(b"".join(sorted(names))).hexdigest()


def save(artefact: Artefact, path: Path) -> None:
    """The file holds the whole artefact, or what it held before."""
    buffer = io.BytesIO()
    np.savez(buffer, **{k: np.asarray(v, np.float32) for k, v in artefact.arrays.items()})  # type: ignore[arg-type]
    body = buffer.getvalue()
    head = {
        "version": _VERSION,
        "training": asdict(artefact.training),
        "names": [n.hex() for n in artefact.names],
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    line = json.dumps(head).encode() + b"\n"
    temporary = path.with_suffix(".new")
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(temporary, "wb") as file:
        file.write(line + body)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load(path: Path, kind: str, vocabulary: str | None = None) -> Artefact:
    """The artefact; ConfigError if it is missing, cut short, of another kind or of another vocabulary."""
    try:
        line, _, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise ConfigError(f"the predictor `{path}` cannot be read: {error.strerror}; train one first") from None
    try:
        head: Any = json.loads(line)
        if head["version"] != _VERSION or head["sha256"] != hashlib.sha256(body).hexdigest():
            raise ValueError
        with np.load(io.BytesIO(body), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        made = Artefact(
            training=Training(**head["training"]), names=tuple(bytes.fromhex(n) for n in head["names"]), arrays=arrays
        )
    except (ValueError, KeyError, TypeError, zipfile.BadZipFile):
        raise ConfigError(f"the predictor `{path}` is damaged or cut short; train it again") from None
    if made.training.kind != kind:
        raise ConfigError(f"the predictor `{path}` is of kind `{made.training.kind}`, expected `{kind}`")
    if vocabulary is not None and made.vocabulary != vocabulary:
        raise ConfigError(
            f"the predictor `{path}` was trained under another vocabulary ({made.vocabulary[:12]}, expected"
            f" {vocabulary[:12]}): what is released has changed; train it again"
        )
    return made
