"""The attack through the whole system: it works where nothing protects, finds a liar out, and stays below the accountant."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from omegaconf import OmegaConf

from kvshare_research.config import check
from kvshare_research.core.ports import Ballot, Charge, Disclosure, Noise
from kvshare_research.disclosure.after_k import AfterK
from kvshare_research.privacy.bounds import area, epsilon_lower
from kvshare_research.study.membership import Membership
from kvshare_research.study.membership_stages import SimulatedStage
from kvshare_research.study.settings import choice
from tests.study.test_run import job

ROW = re.compile(r"^(.+?)  +([\d.]+) \[.*?\] +([\d.]+) \[.*?\] +([\d.]+)$", re.M)
MODULE = "kvshare_research.study.membership"
NO_NOISE = ("disclosure=after_k", "disclosure.k=2", "disclosure.unit=user", "membership.others=1")


def rows(printed: str) -> dict[str, tuple[float, float, float]]:
    found = {name: (float(a), float(b), float(c)) for name, a, b, c in ROW.findall(printed)}
    assert set(found) == {"time to first token", "reused tokens", "place"}, printed
    return found


def stage() -> SimulatedStage:
    data: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).parents[2] / "conf" / "membership.yaml"))
    groups = {
        k: v for entry in data.pop("defaults") if isinstance(entry, dict) for k, v in entry.items() if " " not in k
    }
    data.pop("hydra")
    chosen = {group: choice(group, name) for group, name in groups.items()}
    for key, value in chosen.items():
        data[key] = value | data.get(key, {})
    data["workload"] |= {"request_count": 1}
    return SimulatedStage(check(data, data.keys()))


@pytest.mark.parametrize("driver", ["simulator", "mpi"])
def test_without_noise_the_attack_is_always_right_after_the_release_and_blind_before(driver: str) -> None:
    done = job(f"driver={driver}", "membership.prefixes=60", *NO_NOISE, module=MODULE)
    assert done.returncode == 0, done.stderr
    assert "epsilon infinite" in done.stdout
    before, after, bound = rows(done.stdout)["reused tokens"]
    assert (before, after) == (0.5, 1.0)
    assert bound > 0.3


def test_the_shipped_mechanism_holds_in_the_system() -> None:
    done = job("membership.prefixes=60", module=MODULE)
    assert done.returncode == 0, done.stderr
    assert "epsilon 1.7" in done.stdout
    assert all(bound <= 1.7 for _, _, bound in rows(done.stdout).values())


@dataclass
class Liar(Disclosure):
    """No noise, and says that it spends 0.1."""

    is_private: ClassVar[bool] = True
    unit: str = "user"
    period_us: int = 1
    inner: AfterK = field(default_factory=lambda: AfterK(k=2, unit="user"))

    def initial_state(self) -> Any:
        return self.inner.initial_state()

    def observe(self, state: Any, ballot: Ballot) -> Any:
        return self.inner.observe(state, ballot)

    def charge(self, state: Any) -> Charge | None:
        return Charge(label="a lie", epsilon=0.1)

    def release(self, state: Any, noise: Noise) -> tuple[Any, frozenset[bytes]]:
        return self.inner.release(state, noise)


def test_a_mechanism_that_lies_is_found_out(capsys: pytest.CaptureFixture[str]) -> None:
    attack = Membership(prefixes=60, others=1, prefix_blocks=1, confidence=0.95)
    assert attack.play(stage(), Liar(), 1e-5, 0) == 1
    assert "ABOVE the accountant" in capsys.readouterr().out


def test_areas_and_bounds_of_unequal_sides() -> None:
    inside, outside = np.array([1.0, 2.0, 2.0]), np.array([0.0, 2.0])
    assert area(inside, outside)[0] == pytest.approx((1 + 2 + 2 * 0.5) / 6)
    assert epsilon_lower(90, 10, 100, 0.0) == epsilon_lower(90, 10, 100, 0.0, trials_out=100)
    assert epsilon_lower(90, 100, 100, 0.0, trials_out=1000) == pytest.approx(1.8389, rel=1e-3), (
        "more looks, a tighter bound"
    )
