"""What predictors from an artefact have in common: they know the released names and nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.ports import Prefetch, PrefetchIntent, Seen

from .artefact import Artefact, load
from .history import History, Predicting


@dataclass(slots=True)
class TrainedState:
    """The artefact as loaded once, and the past as seen since."""

    artefact: Artefact
    number: dict[bytes, int]
    history: History = field(default_factory=History)
    fits: bool = False  # whether the vocabulary has been checked and holds
    skipped: int = 0  # requests for names outside the vocabulary, or while it does not hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained(Predicting, Prefetch, ABC):
    """`artefact` is the file, of this `kind`. Its vocabulary is always checked: it must be `vocabulary` when it is
    loaded; where that is null, all its names must be promoted, and as long as one is not it proposes nothing."""

    kind: ClassVar[str]

    artefact: str | None
    vocabulary: str | None

    @staticmethod
    @abstractmethod
    def scores(artefact: Artefact, last: list[int]) -> NDArray[np.float64]:
        """Probability by number of name, after the last names."""

    def initial_state(self) -> TrainedState:
        """The state before any request; ConfigError where the artefact cannot be used."""
        if self.artefact is None:
            raise ConfigError(
                f"`prefetch={self.kind}` needs `prefetch.artefact`: train one with kvshare_research.privacy.train"
            )
        made = load(Path(self.artefact), self.kind, self.vocabulary)
        number = {name: i for i, name in enumerate(made.names)}
        return TrainedState(artefact=made, number=number, fits=self.vocabulary is not None)

    def told(self, state: TrainedState, promoted: frozenset[bytes]) -> tuple[TrainedState, bool]:
        """The state once these names are promoted; a vocabulary that nobody configured must be among them."""
        if self.vocabulary is None:
            state.fits = promoted.issuperset(state.number)
        return state, state.fits

    def observe(self, state: TrainedState, seen: Seen) -> TrainedState:
        """The state after one more request."""
        if state.history.note(seen) not in state.number or not state.fits:
            state.skipped += 1
        return state

    def propose(self, state: TrainedState, now_us: int) -> tuple[Any, tuple[PrefetchIntent, ...]]:
        """Intents for the likeliest names after each request whose name is known; a NaN is no probability."""
        out: list[PrefetchIntent] = []
        for seen in state.history.take_fresh():
            names = state.history.trails[seen.tenant_id, seen.user_id].names
            known = [state.number[n] for n in names if n in state.number]
            if not state.fits or not known or names[-1] not in state.number:
                continue
            p = np.nan_to_num(self.scores(state.artefact, known), nan=0.0, posinf=0.0, neginf=0.0)
            order = np.argsort(-p, kind="stable")[: 4 * self.proposals_max]
            out += self.intents(state.history, seen, [(state.artefact.names[i], float(p[i])) for i in order])
        return state, tuple(out)
