"""The next released prefix from noisy counts of transitions: one table for all, trained with differential privacy.

The strong simple baseline: a tenant's contribution to each table has length at most C, Gaussian noise is added once,
and cells below 2.5 sigma are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.ports import Prefetch

from .artefact import Artefact
from .trained import Trained

ESCAPE = 2.0  # weight of popularity against one transition


def probabilities(artefact: Artefact, last: list[int]) -> NDArray[np.float64]:
    """Transitions from the last name, blended with popularity."""
    popularity = artefact.arrays["popularity"].astype(np.float64)
    row = artefact.arrays["transitions"][last[-1]].astype(np.float64)
    total = row.sum()
    base = popularity / max(popularity.sum(), 1e-9)
    weight = total / (total + ESCAPE)
    blended: NDArray[np.float64] = weight * row / max(total, 1e-9) + (1 - weight) * base
    return blended


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DpCounts(Trained, Prefetch):
    """First-order transitions between released prefixes."""

    kind: ClassVar[str] = "dp_counts"
    scores = staticmethod(probabilities)
