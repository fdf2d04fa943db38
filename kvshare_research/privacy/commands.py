"""What the commands under `kvshare_research.privacy` are configured by, and what they print."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kvshare_research.core.errors import ConfigError
from kvshare_research.disclosure.noise import SeededNoise, SystemNoise

from .mechanism_audit import audit, planted, shipped


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismAudit:
    """The shipped mechanisms and planted mistakes, each at its worst neighbour. Noise from the system where no seed."""

    epsilon: float
    delta: float
    l0: int
    checks: int
    trials: int
    online_trials: int  # each takes `checks` real releases
    noise_seed: int | None

    def __post_init__(self) -> None:
        if self.trials < 1000 or self.online_trials < 1000:
            raise ConfigError("`audit.trials` and `audit.online_trials` must be at least 1000 to bound anything")

    def run(self) -> int:
        """Prints claimed and measured bounds; 1 if a mechanism is refuted or a planted mistake is not."""
        noise = SystemNoise() if self.noise_seed is None else SeededNoise(self.noise_seed)
        subjects = (
            *shipped(self.epsilon, self.delta, self.l0, self.checks, noise),
            *planted(self.epsilon, self.delta, self.l0, noise),
        )
        print(f"{'mechanism':34} {'claimed':>8} {'at least':>9}  neighbour (epsilon per user, delta {self.delta:g})")
        wrong = 0
        for subject in subjects:
            found = audit(subject, self.online_trials if subject.online else self.trials)
            wrong += found.violated != subject.planted
            verdict = "refuted" if found.violated else "holds"
            where = f"{found.base:.1f} others, {found.at_least} of {subject.names} released: {verdict}"
            print(f"{subject.name:34} {subject.epsilon:8.2f} {found.epsilon_lower:9.2f}  {where}", flush=True)
        caught = "as it should be" if not wrong else f"{wrong} NOT AS IT SHOULD BE"
        print(f"every shipped mechanism holds and every planted mistake is refuted: {caught}")
        return int(wrong > 0)
