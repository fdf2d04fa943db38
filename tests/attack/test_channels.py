"""Every channel is an attack that works where its hole is planted, and says nothing where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from kvshare_research.attack.channels import CHANNELS, Channels
from kvshare_research.attack.probing import Scene, Ways, play
from kvshare_research.attack.scores import power
from kvshare_research.core import fetching, serving
from kvshare_research.core.rights import may_deliver, open_read
from kvshare_research.guard.layered import Layered

SCENE = Scene(
    nodes=2, secrets=8, candidates=3, template_blocks=4, secret_blocks=2, gap_us=60_000, others_gap_us=0,
    jitter_us=0, us_per_token=200, capacity_blocks=512, seed=2,
)  # fmt: skip
NOISY = ("order of answers",)  # some answer always comes first: judged over many secrets by the command


@pytest.mark.parametrize("name", CHANNELS)
def test_the_hole_is_found(name: str) -> None:
    assert power(CHANNELS[name](SCENE, True), 0).auc >= 0.95


@pytest.mark.parametrize("name", [n for n in CHANNELS if n not in NOISY])
def test_as_shipped_nothing_is_found(name: str) -> None:
    assert power(CHANNELS[name](SCENE, False), 0).auc == pytest.approx(0.5, abs=0.04)


def test_no_hole_stays_planted() -> None:
    for name in ("old ticket", "known hash"):
        CHANNELS[name](SCENE, True)
    assert fetching.may_deliver is may_deliver
    assert serving.open_read is open_read


def test_a_claim_that_is_not_believed_changes_nothing() -> None:
    plain = play(SCENE, Layered())
    claiming = play(SCENE, Layered(), ways=Ways(claims=True))
    assert np.array_equal(plain.reused_tokens, claiming.reused_tokens)


def test_two_rows_per_channel() -> None:
    few = Channels(scene=SCENE)
    assert [(r.guard, r.signal) for r in few.rows()] == [
        (g, n) for n in CHANNELS for g in ("with a hole", "as shipped")
    ]
