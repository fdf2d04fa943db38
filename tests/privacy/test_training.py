"""Predictors trained with privacy: the shipped inference is the trained network's, artefacts are refused when they must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.foresight import Foresight
from kvshare_research.core.nouns import Chain
from kvshare_research.core.ports import Seen
from kvshare_research.disclosure.noise import SeededNoise
from kvshare_research.prefetch import dp_counts, dp_sgd
from kvshare_research.prefetch.artefact import Artefact, load, save, vocabulary_of
from kvshare_research.prefetch.dp_counts import DpCounts
from kvshare_research.prefetch.dp_sgd import DpSgd
from kvshare_research.privacy.training import network, train_counts, train_network

SIZE, TENANTS, STEPS = 8, 400, 12
NAMES = tuple(bytes([i]) * 16 for i in range(SIZE))


def sessions(seed: int = 0) -> np.ndarray:
    """Each prefix is followed by the next one four times of five."""
    rng = np.random.default_rng(seed)
    out = np.zeros((TENANTS, STEPS), np.int64)
    out[:, 0] = rng.integers(0, SIZE, TENANTS)
    for step in range(1, STEPS):
        jump = rng.random(TENANTS) < 0.2
        out[:, step] = np.where(jump, rng.integers(0, SIZE, TENANTS), (out[:, step - 1] + 1) % SIZE)
    return out


def test_noisy_counts_learn_what_many_tenants_do() -> None:
    made = train_counts(sessions(), NAMES, epsilon=2.0, delta=1e-4, noise=SeededNoise(1))
    assert made.training.epsilon == pytest.approx(2.0, rel=0.03)
    assert made.training.rdp_epsilon is not None and made.training.rdp_epsilon >= made.training.epsilon
    hits = [int(np.argmax(dp_counts.probabilities(made, [i]))) == (i + 1) % SIZE for i in range(SIZE)]
    assert sum(hits) >= SIZE - 1
    for i in range(SIZE):
        p = dp_counts.probabilities(made, [i])
        assert p.min() >= 0 and p.sum() == pytest.approx(1, abs=1e-6)


def test_one_tenant_moves_the_tables_by_a_bounded_length() -> None:
    """However extreme: with a silent noise source, both tables together differ by at most C sqrt(2)."""

    class Silent(SeededNoise):
        def gaussian(self, sigma: float, count: int) -> np.ndarray:
            return np.zeros(count)

    flood = np.vstack([sessions(), np.zeros((1, STEPS), np.int64)])
    a, b = (
        train_counts(given, NAMES, epsilon=1e3, delta=1e-4, noise=Silent(0)).arrays for given in (flood, sessions())
    )
    length = np.sqrt(sum(((a[k].astype(float) - b[k]) ** 2).sum() for k in a))
    assert length <= 3.0 * np.sqrt(2) + 1e-3


def test_the_network_is_evaluated_as_it_was_trained() -> None:
    """NumPy inference equals torch's, weight for weight."""
    import torch

    from kvshare_research.privacy.training import _training

    torch.manual_seed(3)
    model = network(SIZE, 6, 10)
    arrays = {k: v.detach().numpy().astype(np.float32) for k, v in model.state_dict().items()}
    record = _training("dp_sgd", "tenant", 10, None, 0.0, 0.0, 1, 1.0)
    made = Artefact(training=record, names=NAMES, arrays=arrays)
    for last in ([3], [3, 1], [7, 0, 5]):
        theirs = torch.softmax(model(torch.tensor([last]))[0, -1], 0).detach().numpy()
        np.testing.assert_allclose(dp_sgd.probabilities(made, last), theirs, rtol=1e-4, atol=1e-6)


def test_dp_sgd_learns_and_says_what_it_spent() -> None:
    made = train_network(sessions(), NAMES, epsilon=8.0, delta=1e-4, epochs=12, batch=100, width=8, hidden=16)
    assert made.training.epsilon is not None
    assert 7.0 < made.training.epsilon <= 8.05
    assert made.training.rdp_epsilon is not None and made.training.rdp_epsilon > made.training.epsilon
    right = np.mean([int(np.argmax(dp_sgd.probabilities(made, [i]))) == (i + 1) % SIZE for i in range(SIZE)])
    assert right > 2 / SIZE, "twice chance at least"


def test_an_artefact_is_refused_where_it_must_be(tmp_path: Path) -> None:
    path = tmp_path / "predictor"
    made = train_counts(sessions(), NAMES, epsilon=None, delta=0.0, noise=SeededNoise(1))
    save(made, path)
    again = load(path, "dp_counts", vocabulary_of(NAMES[::-1]))
    assert again.training == made.training
    np.testing.assert_array_equal(again.arrays["transitions"], made.arrays["transitions"])
    with pytest.raises(ConfigError, match="another vocabulary"):
        load(path, "dp_counts", vocabulary_of(NAMES[1:]))
    with pytest.raises(ConfigError, match="kind"):
        load(path, "dp_sgd")
    whole = path.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ConfigError, match="damaged"):
            load(path, "dp_counts")
    with pytest.raises(ConfigError, match="train one first"):
        load(tmp_path / "nothing", "dp_counts")


def test_training_is_refused_without_meaning() -> None:
    with pytest.raises(ConfigError, match="vocabulary has 4"):
        train_counts(sessions(), NAMES[:4], epsilon=1.0, delta=1e-4, noise=SeededNoise(0))
    with pytest.raises(ConfigError, match="below 1/400"):
        train_counts(sessions(), NAMES, epsilon=1.0, delta=0.01, noise=SeededNoise(0))


@pytest.mark.parametrize(("kind", "make"), [("dp_counts", DpCounts), ("dp_sgd", DpSgd)])
def test_a_vocabulary_is_checked_also_where_none_is_configured(tmp_path: Path, kind: str, make: Any) -> None:
    """Until all its names are promoted, and again once one is not, the predictor proposes nothing; that is counted."""
    path = tmp_path / kind
    if kind == "dp_counts":
        save(train_counts(sessions(), NAMES, epsilon=None, delta=0.0, noise=SeededNoise(1)), path)
    else:
        save(train_network(sessions(), NAMES, epsilon=None, delta=0.0, epochs=1, batch=100, width=4, hidden=4), path)
    common = {
        "price_ps_per_byte": 0,
        "inflight_bytes_max": 0,
        "horizon_us": 9,
        "proposals_max": 2,
        "probability_min": 0.0,
    }

    def proposals(foresight: Foresight) -> int:
        chain = Chain(hashes=NAMES[1], scope_ends=((0, 1),), block_tokens=16)
        seen = Seen(
            request_id=1, tenant_id=1, user_id=0, step="", chain=chain, prefix_blocks=1, executor=1, ingress=0,
            queued_requests=0, pulled_blocks=0, now_us=0,
        )  # fmt: skip
        foresight.state = foresight.policy.observe(foresight.state, seen)
        return len(foresight.intents(0))

    strict = Foresight(make(artefact=str(path), vocabulary=None, **common))
    counts = [proposals(strict)]
    for promoted in (frozenset(NAMES[1:]), frozenset(NAMES), frozenset((*NAMES, b"more")), frozenset(NAMES[:-1])):
        strict.promoted(promoted)
        counts.append(proposals(strict))
    assert counts == [0, 0, 1, 1, 0]
    assert strict.counters["another vocabulary"] == 2
    named = Foresight(make(artefact=str(path), vocabulary=vocabulary_of(NAMES), **common))
    assert proposals(named) == 1
    named.promoted(frozenset())
    assert proposals(named) == 1, "checked when it was loaded"


class _Interrupted(Exception):
    pass


def test_an_interrupted_training_goes_on_and_says_what_all_of_it_spent(tmp_path: Path) -> None:
    path = tmp_path / "p.checkpoint"
    given: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-4, "epochs": 4, "batch": 100, "width": 4, "hidden": 4}
    told: list[int] = []

    def stop(done: int, _all: int) -> None:
        told.append(done)
        if done == 2 and len(told) == 2:
            raise _Interrupted

    with pytest.raises(_Interrupted):
        train_network(sessions(), NAMES, checkpoint=path, progress=stop, **given)
    whole = path.read_bytes()
    for cut in (0, 40, 200, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ConfigError, match="damaged or cut short"):
            train_network(sessions(), NAMES, checkpoint=path, **given)
    path.write_bytes(whole)
    with pytest.raises(ConfigError, match="another training"):
        train_network(sessions(), NAMES, checkpoint=path, **{**given, "epsilon": 2.0})
    made = train_network(sessions(), NAMES, checkpoint=path, progress=stop, **given)
    assert told == [1, 2, 3, 4]
    fresh = train_network(sessions(), NAMES, **given)
    assert made.training == fresh.training, "as many steps, the same noise, the same epsilon"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_a_predictor_that_answers_nonsense_moves_nothing_and_nothing_breaks(tmp_path: Path, bad: float) -> None:
    made = train_counts(sessions(), NAMES, epsilon=None, delta=0.0, noise=SeededNoise(1))
    arrays = {name: np.full_like(array, bad) for name, array in made.arrays.items()}
    save(Artefact(training=made.training, names=NAMES, arrays=arrays), tmp_path / "p")
    policy = DpCounts(
        artefact=str(tmp_path / "p"), vocabulary=vocabulary_of(NAMES), price_ps_per_byte=0, inflight_bytes_max=0, horizon_us=9,
        proposals_max=2, probability_min=0.1,
    )  # fmt: skip
    foresight = Foresight(policy)
    chain = Chain(hashes=NAMES[1], scope_ends=((0, 1),), block_tokens=16)
    seen = Seen(
        request_id=1, tenant_id=1, user_id=0, step="", chain=chain, prefix_blocks=1, executor=0, ingress=0,
        queued_requests=0, pulled_blocks=0, now_us=0,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        foresight.state = policy.observe(foresight.state, seen)
        assert foresight.intents(0) == ()
