"""Training predictors with tenant-level differential privacy: noisy counts, and DP-SGD by Opacus.

One example is one tenant: a window of sessions of fixed length, so that clipping an example bounds what a tenant does.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.ports import Charge, Noise
from kvshare_research.disclosure.calibration import analytic_sigma
from kvshare_research.prefetch.artefact import Artefact, Training

from .checkpoint import Checkpoint
from .ledger import Budget, composed

Sessions = NDArray[np.int64]  # (tenants, steps): numbers of names
CLIP = 3.0  # length of a tenant's contribution to a table of counts
ZERO_BELOW = 2.5  # cells with less than so many sigma are noise
TABLES = 2


def train_counts(
    sessions: Sessions,
    names: tuple[bytes, ...],
    *,
    epsilon: float | None,
    delta: float,
    noise: Noise,
    unit: str = "tenant",
) -> Artefact:
    """Transitions and popularity; with an epsilon, both tables together are (epsilon, delta)-private for a tenant."""
    _check(sessions, names, epsilon, delta)
    size = len(names)
    transitions, popularity = np.zeros((size, size)), np.zeros(size)
    for row in sessions:
        cells, counts = np.unique(row[:-1] * size + row[1:], return_counts=True)
        transitions.ravel()[cells] += _clipped(counts, epsilon)
        cells, counts = np.unique(row, return_counts=True)
        popularity[cells] += _clipped(counts, epsilon)
    multiplier = 0.0
    if epsilon is not None:
        multiplier = analytic_sigma(epsilon, delta, 1.0)
        sigma = multiplier * CLIP * math.sqrt(TABLES)
        transitions += noise.gaussian(sigma, size * size).reshape(size, size)
        popularity += noise.gaussian(sigma, size)
        transitions[transitions < ZERO_BELOW * sigma] = 0
        popularity = np.maximum(popularity, 0)
    training = _training("dp_counts", unit, len(sessions), epsilon, delta, multiplier, 1, 1.0)
    arrays = {"transitions": transitions.astype(np.float32), "popularity": popularity.astype(np.float32)}
    return Artefact(training=training, names=names, arrays=arrays)


def _clipped(counts: NDArray[np.int64], epsilon: float | None) -> NDArray[np.float64]:
    values = counts.astype(np.float64)
    return values if epsilon is None else values * min(1.0, CLIP / float(np.linalg.norm(values)))


def _check(sessions: Sessions, names: tuple[bytes, ...], epsilon: float | None, delta: float) -> None:
    if sessions.ndim != 2 or sessions.shape[1] < 2 or not len(sessions):
        raise ConfigError(f"sessions have shape {sessions.shape}, expected (tenants, steps) with 2 steps or more")
    if sessions.min() < 0 or sessions.max() >= len(names):
        raise ConfigError(f"a session names prefix {int(sessions.max())}, the vocabulary has {len(names)}")
    if epsilon is not None and not 0 < delta < 1 / len(sessions):
        raise ConfigError(f"`delta` is `{delta}`, expected above 0 and below 1/{len(sessions)}")


def _training(
    kind: str,
    unit: str,
    population: int,
    epsilon: float | None,
    delta: float,
    multiplier: float,
    steps: int,
    rate: float,
) -> Training:
    """The record of a training, with what the accountants say it spent."""
    spent = None
    if epsilon is not None:
        budget = Budget(epsilon=1e6, delta=delta, unit=unit, population=population)
        charge = Charge(label=kind, noise_multiplier=multiplier, sample_rate=rate, steps=steps)
        spent = composed((charge,), budget)
    return Training(
        kind=kind,
        unit=unit,
        population=population,
        epsilon=None if spent is None else spent.epsilon,
        rdp_epsilon=None if spent is None else spent.rdp_epsilon,
        delta=delta,
        noise_multiplier=multiplier,
        steps=steps,
        sample_rate=rate,
    )


def network(size: int, width: int, hidden: int) -> Any:
    """The module whose weights `prefetch/dp_sgd.py` evaluates: (tenants, steps) of numbers -> logits of the next."""
    import torch
    from torch import nn

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(size, width)
            self.gate = nn.Linear(width + hidden, hidden)
            self.candidate = nn.Linear(width + hidden, hidden)
            self.output = nn.Linear(hidden, size)

        def forward(self, numbers: Any) -> Any:
            given = self.embedding(numbers)
            state = torch.zeros(numbers.shape[0], hidden)
            out = []
            for step in range(numbers.shape[1]):
                both = torch.cat([given[:, step], state], 1)
                gate = torch.sigmoid(self.gate(both))
                state = (1 - gate) * state + gate * torch.tanh(self.candidate(both))
                out.append(self.output(state))
            return torch.stack(out, 1)

    return Gated()


def _restored(state: dict[str, Any] | None, model: Any, optimizer: Any) -> int:
    """Epochs that are done already; model and optimizer are as they were then, with fresh chance for what follows."""
    import torch

    if state is None:
        return 0
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.seed()  # noise that was used is never drawn again
    return int(state["epoch"])


def train_network(
    sessions: Sessions, names: tuple[bytes, ...], *, epsilon: float | None, delta: float, epochs: int, batch: int,
    width: int = 24, hidden: int = 48, rate: float = 1e-2, clip: float = 1.0, seed: int = 0, unit: str = "tenant",
    progress: Callable[[int, int], None] | None = None, checkpoint: Path | None = None,
) -> Artefact:  # fmt: skip
    """The gated network; with an epsilon, by DP-SGD with Poisson sampling of tenants. `seed` is for repeatable
    simulations. `progress` is told (epochs done, all); it goes on where `checkpoint` says an earlier call stopped."""
    import torch
    from torch.nn.functional import cross_entropy
    from torch.utils.data import DataLoader, TensorDataset

    _check(sessions, names, epsilon, delta)
    torch.manual_seed(seed)
    model: Any = network(len(names), width, hidden)
    optimizer: Any = torch.optim.Adam(model.parameters(), rate)
    data = TensorDataset(torch.tensor(sessions[:, :-1]), torch.tensor(sessions[:, 1:]))
    loader: Any = DataLoader(data, batch_size=min(batch, len(sessions)), shuffle=epsilon is None)
    if epsilon is not None:
        from opacus import PrivacyEngine

        model, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
            module=model, optimizer=optimizer, data_loader=loader, target_epsilon=epsilon, target_delta=delta,
            epochs=epochs, max_grad_norm=clip,
        )  # fmt: skip
    kept = None
    if checkpoint is not None:
        said = (epsilon, delta, epochs, batch, width, hidden, rate, clip, seed, unit, sessions.shape)
        digest = hashlib.sha256(repr(said).encode() + sessions.tobytes() + b"".join(names)).hexdigest()
        kept = Checkpoint(path=checkpoint, training=digest)
    done = 0 if kept is None else _restored(kept.read(), model, optimizer)
    for epoch in range(done, epochs):
        for given, wanted in loader:
            optimizer.zero_grad()
            if len(given):
                losses = cross_entropy(model(given).transpose(1, 2), wanted, reduction="none")
                loss: Any = losses.mean(1).mean(0)
                loss.backward()
            optimizer.step()
        if kept is not None:
            kept.write({"epoch": epoch + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()})
        if progress is not None:
            progress(epoch + 1, epochs)
    multiplier = 0.0 if epsilon is None else float(optimizer.noise_multiplier)
    steps, share = epochs * len(loader), 1 / len(loader)
    training = _training("dp_sgd", unit, len(sessions), epsilon, delta, multiplier, steps, share)
    inner = model._module if epsilon is not None else model
    arrays = {name: value.detach().numpy().astype(np.float32) for name, value in inner.state_dict().items()}
    return Artefact(training=training, names=names, arrays=arrays)
