"""What a declared workflow runs next: prefixes of the steps ahead, by steps to execution (KVFlow, arXiv 2507.07400).

An application is a step. A tenant that has run a step before gets its prefix moved when it comes near again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.ports import Prefetch, PrefetchIntent, Seen

from .history import History, Predicting


@dataclass(slots=True)
class _State:
    history: History = field(default_factory=History)
    names: dict[tuple[int, str], bytes] = field(default_factory=dict)  # by tenant and step


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow(Predicting, Prefetch):
    """`steps` says what may follow each step; where several may, each is as likely. `steps_ahead` bounds the look."""

    steps: dict[str, tuple[str, ...]]
    steps_ahead: int

    def __post_init__(self) -> None:
        unknown = {s for after in self.steps.values() for s in after} - self.steps.keys()
        if unknown:
            raise ConfigError(f"`prefetch.steps` leads to `{min(unknown)}`, which it does not list")
        if self.steps_ahead < 1:
            raise ConfigError(f"`prefetch.steps_ahead` is `{self.steps_ahead}`, expected at least 1")

    def initial_state(self) -> Any:
        return _State()

    def observe(self, state: Any, seen: Seen) -> Any:
        name = state.history.note(seen)
        if name is not None:
            state.names[seen.tenant_id, seen.step] = name
        return state

    def propose(self, state: Any, now_us: int) -> tuple[Any, tuple[PrefetchIntent, ...]]:
        out: list[PrefetchIntent] = []
        for seen in state.history.take_fresh():
            known = ((state.names.get((seen.tenant_id, step)), p) for step, p in self.ahead(seen.step))
            out += self.intents(state.history, seen, [(name, p) for name, p in known if name is not None])
        return state, tuple(out)

    def ahead(self, step: str) -> list[tuple[str, float]]:
        """(step, probability of coming up within `steps_ahead`), likeliest and nearest first."""
        reached: dict[str, float] = {}
        now = {step: 1.0}
        for _ in range(self.steps_ahead):
            later: dict[str, float] = {}
            for at, p in now.items():
                for follower in self.steps.get(at, ()):
                    later[follower] = later.get(follower, 0.0) + p / len(self.steps[at])
            for follower, p in later.items():
                reached[follower] = max(reached.get(follower, 0.0), p)
            now = later
        return sorted(reached.items(), key=lambda item: -item[1])
