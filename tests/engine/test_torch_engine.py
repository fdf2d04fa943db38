"""Reuse is exact: what the engine computes does not depend on where the prefix came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.engine.base import PrefillResult, chunk_ends
from kvshare_research.engine.tiny import Tiny
from kvshare_research.engine.torch_engine import TorchEngine

BLOCK = 4


def load(**changes: object) -> TorchEngine:
    settings: dict[str, Any] = {"block_tokens": BLOCK, "pool_bytes": 1 << 18, **changes}
    engine = Tiny(**settings).load(0)
    assert isinstance(engine, TorchEngine)
    return engine


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    return load()


@pytest.fixture(scope="module")
def other() -> TorchEngine:
    """Another process's engine: same model, own pool."""
    return load()


@pytest.fixture(scope="module", params=[(BLOCK, None), (BLOCK, BLOCK // 2), (3 * BLOCK, BLOCK), (16, 16)])
def canonical(request: pytest.FixtureRequest) -> tuple[TorchEngine, TorchEngine]:
    block, chunk = request.param
    made = [load(chunking="canonical", block_tokens=block, chunk_tokens=chunk) for _ in range(2)]
    return made[0], made[1]


def prompt(length: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.random.default_rng(seed).integers(0, 256, length).astype(np.uint32)


def copy_blocks(source: TorchEngine, from_slots: Sequence[int], target: TorchEngine, to_slots: Sequence[int]) -> None:
    for layer in range(source.spec.layer_count):
        target.pool.write_layer(layer, to_slots, source.pool.read_layer(layer, from_slots))


def reused(
    source: TorchEngine, target: TorchEngine, length: int, prefix_blocks: int, seed: int
) -> tuple[PrefillResult, PrefillResult, list[int], list[int]]:
    """A cold prefill on `source`, and one on `target` whose first blocks were copied into other slots; then decodes."""
    block_tokens = source.pool.block_tokens
    block_count = -(-(length + 6) // block_tokens)
    shuffled = np.random.default_rng(seed + 1).permutation(source.pool.block_count).tolist()
    first, second = shuffled[:block_count], shuffled[block_count : 2 * block_count]
    target.pool.blocks_LCBHTD.fill_(7.0)  # whatever is not copied or computed must not matter
    tokens = prompt(length, seed)
    cold = source.prefill(tokens, 0, length, first)
    copy_blocks(source, first[:prefix_blocks], target, second[:prefix_blocks])
    warm = target.prefill(tokens, prefix_blocks * block_tokens, length, second)
    assert cold.first_token is not None
    assert warm.first_token is not None
    cold_tokens = source.decode(cold.first_token, length, 6, first).tokens
    warm_tokens = target.decode(warm.first_token, length, 6, second).tokens
    return cold, warm, [cold.first_token, *cold_tokens], [warm.first_token, *warm_tokens]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(length=st.integers(2, 70), share=st.floats(0, 1), seed=st.integers(0, 10**6))
def test_reuse_gives_equal_greedy_tokens(
    engine: TorchEngine, other: TorchEngine, length: int, share: float, seed: int
) -> None:
    prefix_blocks = int(share * ((length - 1) // BLOCK))  # the last prompt token is always computed
    cold, warm, cold_tokens, warm_tokens = reused(engine, other, length, prefix_blocks, seed)
    assert cold_tokens == warm_tokens
    assert np.allclose(cold.logit_fingerprint, warm.logit_fingerprint, atol=1e-4, rtol=0)
    assert len(cold.logit_fingerprint) == 8
    assert cold.logit_fingerprint == tuple(sorted(cold.logit_fingerprint, reverse=True))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(length=st.integers(2, 70), share=st.floats(0, 1), seed=st.integers(0, 10**6))
def test_canonical_reuse_is_bit_equal(
    canonical: tuple[TorchEngine, TorchEngine], length: int, share: float, seed: int
) -> None:
    """Whatever the block, and however many blocks are reused."""
    source, target = canonical
    prefix_blocks = int(share * ((length - 1) // source.pool.block_tokens))
    cold, warm, cold_tokens, warm_tokens = reused(source, target, length, prefix_blocks, seed)
    assert cold_tokens == warm_tokens
    assert cold.logit_fingerprint == warm.logit_fingerprint


def test_a_changed_prefix_changes_the_answer(engine: TorchEngine) -> None:
    """Guards the tests above: the engine really reads the prefix from the pool."""
    tokens = prompt(33, 5)
    slots = list(range(9))
    cold = engine.prefill(tokens, 0, 33, slots)
    engine.pool.blocks_LCBHTD[:, :, 2] += 0.5
    assert engine.prefill(tokens, 32, 33, slots).logit_fingerprint != cold.logit_fingerprint


def test_prefill_in_stretches_equals_one_prefill(engine: TorchEngine) -> None:
    tokens = prompt(50, 1)
    whole = engine.prefill(tokens, 0, 50, range(13))
    front = engine.prefill(tokens, 0, 24, range(20, 33))
    assert front.first_token is None
    assert front.logit_fingerprint == ()
    rest = engine.prefill(tokens, 24, 50, range(20, 33))
    assert rest.first_token == whole.first_token
    assert np.allclose(rest.logit_fingerprint, whole.logit_fingerprint, atol=1e-4, rtol=0)
    kv_LCBHTD = engine.pool.blocks_LCBHTD
    assert torch.allclose(kv_LCBHTD[:, :, :13], kv_LCBHTD[:, :, 20:33], atol=1e-5)


def test_prefill_and_decode_touch_only_their_slots_and_leave_no_residue(engine: TorchEngine) -> None:
    engine.pool.blocks_LCBHTD.fill_(3.0)
    engine.prefill(prompt(60, 2), 0, 60, range(15))  # fills the workspace with another sequence
    before = engine.pool.blocks_LCBHTD.clone()
    result = engine.prefill(prompt(6, 3), 0, 6, [30, 31, 32, 33])
    assert result.first_token is not None
    untouched = [slot for slot in range(engine.pool.block_count) if slot not in (30, 31)]
    assert torch.equal(engine.pool.blocks_LCBHTD[:, :, untouched], before[:, :, untouched])
    assert not engine.pool.blocks_LCBHTD[:, :, 31, :, 2:].any()
    assert engine.pool.blocks_LCBHTD[:, :, 31, :, :2].all()
    tokens = engine.decode(result.first_token, 6, 3, [30, 31, 32, 33]).tokens
    written = 6 + len(tokens)
    assert (
        not engine.pool.blocks_LCBHTD[:, :, 31 + (written - 4) // BLOCK, :, written % BLOCK :].any()
        or written % BLOCK == 0
    )
    assert torch.equal(engine.pool.blocks_LCBHTD[:, :, 33], before[:, :, 33])


@pytest.mark.parametrize("seed", range(4))
def test_greedy_tokens_equal_those_of_transformers_generate(engine: TorchEngine, seed: int) -> None:
    tokens = prompt(37, seed)
    network = engine._network
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    expected = network.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=256)[0, 37:].tolist()
    first = engine.prefill(tokens, 0, 37, range(13))
    assert first.first_token is not None
    tail = engine.decode(first.first_token, 37, 11, range(13)).tokens
    assert [first.first_token, *tail] == expected


def test_decode_stops_after_an_end_token_and_after_an_end_first_token(engine: TorchEngine) -> None:
    (end,) = engine.spec.end_token_ids
    assert engine.decode(end, 5, 10, range(5)).tokens == ()
    assert engine.decode(1, 5, 0, range(5)).tokens == ()
    ended = 0
    for seed in range(40):
        engine.prefill(prompt(9, seed), 0, 9, range(20))
        tokens = engine.decode(seed, 9, 60, range(20)).tokens
        assert end not in tokens[:-1]
        assert len(tokens) == 60 or tokens[-1] == end
        ended += tokens[-1] == end
    assert ended > 0


def test_tokens_that_are_decoded_continue_as_a_prompt_would(engine: TorchEngine) -> None:
    """Blocks made by decode hold what a prefill of the same tokens would have put there."""
    tokens = prompt(15, 8)
    first = engine.prefill(tokens, 0, 15, range(8)).first_token
    assert first is not None
    produced = engine.decode(first, 15, 9, range(8)).tokens
    longer = np.concatenate([tokens, np.array([first, *produced[:-1]], np.uint32)])
    engine.prefill(longer, 0, len(longer), range(20, 28))
    full = len(longer) // BLOCK
    kv_LCBHTD = engine.pool.blocks_LCBHTD
    assert torch.allclose(kv_LCBHTD[:, :, :full], kv_LCBHTD[:, :, 20 : 20 + full], atol=1e-4)


def test_reset_leaves_nothing(engine: TorchEngine) -> None:
    engine.prefill(prompt(20, 1), 0, 20, range(5))
    engine.reset()
    assert not engine.pool.blocks_LCBHTD.any()
    assert engine.prefill(prompt(20, 1), 0, 20, range(5)).first_token is not None


def test_equal_models_have_equal_fingerprints_and_others_do_not(engine: TorchEngine, other: TorchEngine) -> None:
    assert engine.spec == other.spec
    changed = {
        load(seed=1).spec.fingerprint,
        load(dtype="bf16").spec.fingerprint,
        load(context_tokens=1024).spec.fingerprint,
    }
    assert len(changed | {engine.spec.fingerprint}) == 4


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_lower_precision_runs_and_is_canonical_too(dtype: str) -> None:
    source = load(dtype=dtype, chunking="canonical")
    target = load(dtype=dtype, chunking="canonical")
    cold, warm, cold_tokens, warm_tokens = reused(source, target, 43, 6, 3)
    assert cold_tokens == warm_tokens
    assert cold.logit_fingerprint == warm.logit_fingerprint
    assert source.pool.block_bytes * 2 == load().pool.block_bytes


def test_long_prompts_take_the_sliced_attention_path(engine: TorchEngine) -> None:
    """More than 64 queries are attended slice by slice; transformers' own attention must agree."""
    tokens = prompt(300, 4)
    small = load(context_tokens=512)
    mine = small.prefill(tokens, 0, 300, range(75))
    small.prefill(tokens, 0, 8, range(80, 155))
    late = small.prefill(tokens, 8, 300, range(80, 155))
    small._network.set_attn_implementation("eager")
    theirs = small.prefill(tokens, 0, 300, range(75))
    assert np.allclose(mine.logit_fingerprint, theirs.logit_fingerprint, atol=1e-4, rtol=0)
    assert np.allclose(late.logit_fingerprint, theirs.logit_fingerprint, atol=1e-4, rtol=0)


@given(start=st.integers(0, 200), length=st.integers(1, 200), chunk=st.integers(1, 64))
def test_cuts_after_a_whole_chunk_are_those_of_a_cold_prefill(start: int, length: int, chunk: int) -> None:
    end = start + length
    cuts = chunk_ends(start, end, chunk)
    assert cuts[-1] == end
    assert list(cuts) == sorted(set(cuts))
    assert all(cut % chunk == 0 for cut in cuts[:-1])
    assert cuts == tuple(cut for cut in chunk_ends(0, end, chunk) if cut > start)
    assert chunk_ends(start, end, None) == (end,)


def test_the_reported_attention_is_that_of_the_model() -> None:
    """Against transformers' own weights: averaged over heads and layers, summed over the last rows, in blocks."""
    engine = load(attention_rows=5)
    tokens = prompt(22, 4)
    part = engine.prefill(tokens, 0, 22, range(6))
    network = engine._network
    network.set_attn_implementation("eager")
    ids = torch.from_numpy(tokens.astype("int64"))[None]
    weights = torch.stack(network(input_ids=ids, output_attentions=True).attentions)[:, 0, :, -5:]
    expected = weights.detach().mean((0, 1)).sum(0)
    assert list(part.attention) == pytest.approx([float(p.sum()) for p in expected.split(BLOCK)], abs=1e-5)
    assert sum(part.attention) == pytest.approx(5, abs=1e-4)


def test_reporting_attention_changes_no_answer_and_costs_nothing_where_it_is_off() -> None:
    tokens = prompt(30, 9)
    quiet, telling = load(), load(attention_rows=4)
    one, other = (e.prefill(tokens, 0, 30, range(8)) for e in (quiet, telling))
    assert (one.first_token, one.logit_fingerprint) == (other.first_token, other.logit_fingerprint)
    assert one.attention == () and len(other.attention) == 8
