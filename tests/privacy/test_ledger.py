"""The epsilon ledger: composition is the accountant's, spending survives a restart, and the budget is never exceeded."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from kvshare_research.core.directory import Directory
from kvshare_research.core.errors import ConfigError
from kvshare_research.core.ports import Charge
from kvshare_research.disclosure.calibration import analytic_sigma, gaussian_delta
from kvshare_research.disclosure.dp_batch import DpBatch
from kvshare_research.disclosure.noise import SeededNoise
from kvshare_research.privacy.balance import settle
from kvshare_research.privacy.ledger import Budget, BudgetSpent, Ledger, composed
from kvshare_research.privacy.settings import BudgetSettings

BUDGET = Budget(epsilon=8.0, delta=1e-6, unit="tenant", population=5_000)


def daily(epsilon: float, threshold_delta: float = 0.0) -> Charge:
    return Charge(label="a day", noise_multiplier=analytic_sigma(epsilon, 5e-7, 1.0), delta=threshold_delta)


@pytest.mark.parametrize("days", [1, 7, 30])
def test_gaussian_releases_compose_as_one_gaussian(days: int) -> None:
    """Exact: d releases with multiplier s are one of sensitivity sqrt(d). PRV is within 2 %, RDP is never below it."""
    sigma = analytic_sigma(1.0, 1e-6, 1.0)
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, sigma, math.sqrt(days)) > BUDGET.delta else (low, middle)
    spent = composed([Charge(label="day", noise_multiplier=sigma)] * days, BUDGET)
    assert spent.epsilon == pytest.approx(high, rel=0.02)
    assert spent.epsilon <= spent.rdp_epsilon < 1.25 * spent.epsilon
    assert days == 1 or spent.epsilon < days


def test_plain_charges_add_up_and_their_deltas_too() -> None:
    charges = [Charge(label="svt", epsilon=1.0, delta=4e-7)] * 2
    assert composed(charges, BUDGET).epsilon == 2.0
    assert composed(charges * 2, BUDGET).epsilon == math.inf, "deltas of 1.6e-6 do not fit into 1e-6"
    mixed = composed([*charges, Charge(label="day", noise_multiplier=5.0)], BUDGET)
    assert mixed.epsilon > 2.0 + composed([Charge(label="day", noise_multiplier=5.0)], BUDGET).epsilon


def test_a_restart_goes_on_where_it_stopped_and_the_budget_holds(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    for spent in range(5):
        ledger = Ledger(BUDGET, path)
        assert len(ledger.charges) == spent
        ledger.spend(Charge(label="a day", epsilon=1.5))
    ledger = Ledger(BUDGET, path)
    with pytest.raises(BudgetSpent, match=r"tenant's epsilon to 9.000, the budget is 8"):
        ledger.spend(Charge(label="a day", epsilon=1.5))
    assert len(ledger.charges) == 5
    assert ledger.spent.epsilon == 7.5
    assert "per tenant" in str(ledger.spent)


def test_two_open_ledgers_do_not_overspend(tmp_path: Path) -> None:
    one, two = (Ledger(BUDGET, tmp_path / "ledger.json") for _ in range(2))
    one.spend(Charge(label="x", epsilon=5.0))
    with pytest.raises(BudgetSpent):
        two.spend(Charge(label="x", epsilon=5.0))
    assert two.refused == 1
    assert two.spent.epsilon == 5.0, "what the other one has spent is known"


@pytest.mark.parametrize("charges", [(3.0, 6.0, 4.0, 2.0, 0.5, 1.0), (8.0, 0.1), (9.0, 8.0)])
def test_spent_and_remaining_add_up_and_a_refusal_costs_nothing(charges: tuple[float, ...]) -> None:
    ledger = Ledger(BUDGET, None)
    for epsilon in charges:
        before = ledger.spent.epsilon
        settled = settle(BUDGET.epsilon, before, before + epsilon)
        assert settled.spent + settled.remaining == BUDGET.epsilon
        if settled.ok:
            assert ledger.spend(Charge(label="x", epsilon=epsilon)).epsilon == settled.spent
        else:
            with pytest.raises(BudgetSpent, match=f"{settled.remaining:.3f} remains"):
                ledger.spend(Charge(label="x", epsilon=epsilon))
        assert ledger.spent.epsilon == settled.spent


def test_a_damaged_or_foreign_ledger_is_never_taken_for_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    Ledger(BUDGET, path).spend(Charge(label="x", epsilon=5.0))
    whole = path.read_text()
    for cut in range(0, len(whole) - 2, 41):
        path.write_text(whole[:cut])
        with pytest.raises(ConfigError, match="damaged"):
            Ledger(BUDGET, path)
    path.write_text(whole.replace('"epsilon": 5.0', '"epsilon": 0.5'))
    with pytest.raises(ConfigError, match="damaged"):
        Ledger(BUDGET, path)
    path.write_text(whole)
    other = Budget(**{**asdict(BUDGET), "epsilon": 80.0})
    with pytest.raises(ConfigError, match="another budget"):
        Ledger(other, path)


@pytest.mark.parametrize("kept", [None, 1])
def test_a_file_that_loses_charges_while_it_is_in_use_gives_nothing_back(tmp_path: Path, kept: int | None) -> None:
    path = tmp_path / "ledger.json"
    ledger = Ledger(BUDGET, path)
    ledger.spend(Charge(label="x", epsilon=1.0))
    before = path.read_text()
    ledger.spend(Charge(label="x", epsilon=6.0))
    if kept is None:
        path.unlink()
    else:
        path.write_text(before)
    with pytest.raises(ConfigError, match="has lost charges"):
        ledger.spend(Charge(label="x", epsilon=1.0))
    assert ledger.spent.epsilon == 7.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": -5.0},
        {"epsilon": math.nan},
        {"noise_multiplier": 1.0, "delta": -1e-3},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": 1.0, "steps": -3},
        {"noise_multiplier": 1.0, "sample_rate": 0.0},
    ],
)
def test_a_charge_that_gives_budget_back_is_none(wrong: dict[str, float]) -> None:
    ledger = Ledger(BUDGET, None)
    with pytest.raises(ConfigError, match="is no charge"):
        ledger.spend(Charge(label="x", **wrong))  # type: ignore[arg-type]
    assert ledger.spent.epsilon == 0.0


def test_a_crash_while_writing_leaves_the_former_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.json"
    ledger = Ledger(BUDGET, path)
    ledger.spend(Charge(label="x", epsilon=1.0))

    def crash(*_: object) -> None:
        raise OSError("power cut")

    monkeypatch.setattr("os.replace", crash)
    with pytest.raises(OSError, match="power cut"):
        ledger.spend(Charge(label="y", epsilon=1.0))
    monkeypatch.undo()
    assert [c.label for c in Ledger(BUDGET, path).charges] == ["x"]
    assert json.loads(path.read_text())["charges"][0]["epsilon"] == 1.0


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"delta": 1e-3}, "below 1/5000"),
        ({"delta": 0.0}, "delta"),
        ({"unit": "request"}, "expected one of `tenant`, `user`"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"population": 0}, "population"),
    ],
)
def test_a_budget_that_protects_nobody_is_refused(change: dict[str, float], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Budget(**{**asdict(BUDGET), **change})


@pytest.mark.parametrize("unit", ["tenant", "user"])
def test_a_mechanism_that_gives_a_unit_away_is_refused_before_anything_is_asked(unit: str) -> None:
    directory = Directory(tenants=("a", "b"), groups=(), users=(("u", 1), ("v", 1), ("w", 2), ("x", 2)))
    settings = BudgetSettings(epsilon=1.0, delta=1e-3, ledger_file=None, keep_releases=None)
    limit = 1 / (2 if unit == "tenant" else 4)
    policy = DpBatch(epsilon=1.0, delta=limit * 0.99, l0=1, unit=unit, period_us=1)
    assert settings.desk(policy, directory, SeededNoise(0)).released == frozenset()
    with pytest.raises(ConfigError, match=f"`disclosure.delta` is .*one {unit} in"):
        settings.desk(replace(policy, delta=limit), directory, SeededNoise(0))
