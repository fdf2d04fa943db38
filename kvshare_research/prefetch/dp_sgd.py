"""The next released prefix from a small recurrent network trained with DP-SGD; inference is a few NumPy products.

A gated cell of plain linear layers, as Opacus wants them: z = sigmoid(Wz [e, h]), h' = (1 - z) h + z tanh(Wc [e, h]).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.ports import Prefetch

from .artefact import Artefact
from .trained import Trained


def probabilities(artefact: Artefact, last: list[int]) -> NDArray[np.float64]:
    """The network's word on what follows the last names."""
    w = artefact.arrays
    hidden = np.zeros(w["gate.bias"].shape[0], np.float64)
    for number in last:
        given = np.concatenate([w["embedding.weight"][number], hidden])
        gate = 1 / (1 + np.exp(-np.clip(w["gate.weight"] @ given + w["gate.bias"], -60, 60)))
        hidden = (1 - gate) * hidden + gate * np.tanh(w["candidate.weight"] @ given + w["candidate.bias"])
    logits = w["output.weight"] @ hidden + w["output.bias"]
    exponentials: NDArray[np.float64] = np.exp(logits - logits.max())
    shares: NDArray[np.float64] = exponentials / exponentials.sum()
    return shares


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DpSgd(Trained, Prefetch):
    """A gated recurrent network over the actor's last released prefixes."""

    kind: ClassVar[str] = "dp_sgd"
    scores = staticmethod(probabilities)
