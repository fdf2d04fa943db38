"""The attack is real where nothing guards, and the scores are right; the guards are judged by the command's own run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvshare_research.attack.experiment import CASES, CONSTANT, PADDED
from kvshare_research.attack.probing import Scene, play
from kvshare_research.attack.scores import power
from kvshare_research.guard.layered import Layered
from kvshare_research.guard.one_group import OneGroup

SCENE = Scene(
    nodes=2, secrets=12, candidates=4, template_blocks=4, secret_blocks=2, gap_us=60_000, others_gap_us=100_000,
    jitter_us=100, us_per_token=200, capacity_blocks=512, seed=1,
)  # fmt: skip


def test_scores_of_certain_blind_and_wrong_guesses() -> None:
    right = np.array([[9.0, 1, 2, 3]] * 20)
    assert (power(right, 0).auc, power(right, 0).success_at_1) == (1, 1)
    blind = np.zeros((20, 4))
    assert (power(blind, 0).auc, power(blind, 0).success_at_1, power(blind, 0).success_at_3) == (0.5, 0.25, 0.75)
    wrong = -right
    assert (power(wrong, 0).auc, power(wrong, 0).success_at_3) == (0, 0)
    some = power(np.random.default_rng(0).normal(size=(300, 8)), 0)
    assert some.low < 0.5 < some.high


def test_without_a_guard_the_secret_is_found() -> None:
    seen = play(SCENE, OneGroup(), shared_secret=False)
    assert power(-seen.ttft_us, 0).success_at_1 == 1
    assert power(seen.reused_tokens, 0).auc == 1


def test_with_the_guard_reuse_says_nothing_although_the_template_is_reused() -> None:
    seen = play(SCENE, Layered(), shared_secret=False)
    assert power(seen.reused_tokens, 0).auc == 0.5
    assert seen.reused_tokens.min() == 4 * 16


def test_what_a_group_shares_its_members_see_unless_answers_have_one_shape() -> None:
    """The leak that theorem LEAK-2 says cannot be removed by the guard, and the defence that removes it."""
    seen = play(SCENE, Layered(), shared_secret=True)
    assert power(-seen.ttft_us, 0).auc == 1
    for shape in (PADDED, CONSTANT):
        held = play(replace(SCENE, secrets=60), Layered(), shared_secret=True, shape=shape)
        assert power(held.reused_tokens, 0).auc == power(held.elsewhere, 0).auc == 0.5
        assert 0.3 < power(-held.ttft_us, 0).auc < 0.7


def test_equal_seeds_give_equal_attacks() -> None:
    one, two = (play(SCENE, OneGroup(), shared_secret=False) for _ in range(2))
    assert np.array_equal(one.ttft_us, two.ttft_us)


def test_the_cases_contain_an_attack_that_must_work_and_guards_that_must_hold() -> None:
    assert [c.name for c in CASES if c.withstands is False] == ["one_group"]
    assert sum(c.withstands is True for c in CASES) >= 3
