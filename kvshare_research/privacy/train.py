"""`python -m kvshare_research.privacy.train`: train a predictor with differential privacy and leave its artefact."""

from __future__ import annotations

import hashlib
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from kvshare_research.cli import app
from kvshare_research.core.errors import ConfigError


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """`sessions` is a .npz with `sessions` (tenants, steps) and `names` (hex); null: composed ones, for experiments.
    `epsilon` null trains without privacy, and the artefact says so. An interrupted `dp_sgd` goes on."""

    kind: Literal["dp_counts", "dp_sgd"]
    sessions: str | None
    artefact: str
    epsilon: float | None
    delta: float
    epochs: int
    batch: int
    tenants: int
    names_count: int
    steps: int

    def run(self, seed: int) -> int:
        """The artefact is on disk, with what it spent; the time and memory it took are printed."""
        from kvshare_research.disclosure.noise import SeededNoise, SystemNoise
        from kvshare_research.prefetch.artefact import save

        from .training import train_counts, train_network

        sessions, names = self._sessions(seed)
        began = time.monotonic()
        checkpoint = Path(f"{self.artefact}.checkpoint")
        if self.kind == "dp_counts":
            noise = SystemNoise() if self.sessions is not None else SeededNoise(seed)
            made = train_counts(sessions, names, epsilon=self.epsilon, delta=self.delta, noise=noise)
        else:
            made = train_network(
                sessions, names, epsilon=self.epsilon, delta=self.delta, epochs=self.epochs, batch=self.batch,
                seed=seed, checkpoint=checkpoint,
                progress=lambda done, of: print(f"\repoch {done} of {of}", end="", flush=True),
            )  # fmt: skip
            print()
        save(made, Path(self.artefact))
        checkpoint.unlink(missing_ok=True)
        t = made.training
        memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        spent = "no privacy" if t.epsilon is None else f"epsilon {t.epsilon:.3f} (RDP {t.rdp_epsilon:.3f}) per {t.unit}"
        print(f"{self.artefact}: {spent} at delta {t.delta:g}, vocabulary {made.vocabulary[:12]}")
        print(f"{t.population} {t.unit}s, {t.steps} steps, {time.monotonic() - began:.1f} s, {memory_mib:.0f} MiB")
        return 0

    def _sessions(self, seed: int) -> tuple[Any, tuple[bytes, ...]]:
        if self.sessions is None:
            from .sessions import make_sessions

            count = self.names_count
            names = tuple(hashlib.blake2b(b"%d" % i, digest_size=16).digest() for i in range(count))
            return make_sessions(self.tenants, self.names_count, self.steps, seed), names
        try:
            with np.load(self.sessions, allow_pickle=False) as stored:
                rows, names = stored["sessions"].astype(np.int64), tuple(bytes.fromhex(n) for n in stored["names"])
        except (OSError, KeyError, ValueError) as error:
            raise ConfigError(f"`train.sessions` is `{self.sessions}`, expected a .npz of sessions: {error}") from None
        return rows, names


@app("privacy_train", module="kvshare_research.privacy.train")
def main(cfg: Mapping[str, Any], comm: Any) -> int:
    """Trains and saves; returns the exit code."""
    from kvshare_research.build import build
    from kvshare_research.config import plain

    data = plain(cfg)
    code: int = build(data["train"], "train").run(int(data["seed"]))
    return code


if __name__ == "__main__":
    sys.exit(main())
