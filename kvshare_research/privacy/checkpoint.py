"""Where a training stands, on disk after each epoch: an interrupted one goes on, and says what all of it spent.

The file belongs to one training: its data, its settings. A damaged one, or one of another training, is refused.
"""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from kvshare_research.core.errors import ConfigError


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """`training` is what identifies the training, as hex digits."""

    path: Path
    training: str

    def write(self, state: dict[str, Any]) -> None:
        """The file holds this state, or what it held before. `state` is plain values and tensors."""
        import torch

        buffer = io.BytesIO()
        torch.save(state, buffer)
        body = buffer.getvalue()
        head = f"{self.training} {hashlib.sha256(body).hexdigest()}\n".encode()
        temporary = self.path.with_suffix(".new")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(head + body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)

    def read(self) -> dict[str, Any] | None:
        """The last state, None where there is no file; ConfigError if it cannot be gone on from."""
        import torch

        try:
            head, _, body = self.path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        training, _, digest = head.decode("ascii", "replace").partition(" ")
        if digest != hashlib.sha256(body).hexdigest():
            raise ConfigError(f"the checkpoint `{self.path}` is damaged or cut short; remove it to begin again")
        if training != self.training:
            raise ConfigError(
                f"the checkpoint `{self.path}` is of another training; finish that one, or remove it to begin again"
            )
        state: dict[str, Any] = torch.load(io.BytesIO(body), weights_only=True)
        return state
