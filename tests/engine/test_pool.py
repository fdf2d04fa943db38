"""The pool: layout, transfer units, bounds."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.core.errors import ConfigError, EngineError
from kvshare_research.engine.base import ModelSpec
from kvshare_research.engine.pool import KvPool


def spec(dtype: str = "fp32", layer_count: int = 3, kv_head_count: int = 2, head_dim: int = 4) -> ModelSpec:
    return ModelSpec(
        name="m",
        layer_count=layer_count,
        kv_head_count=kv_head_count,
        head_dim=head_dim,
        dtype=dtype,
        context_tokens=64,
        vocabulary_count=10,
        end_token_ids=(),
        fingerprint="f",
    )


def filled(model: ModelSpec, *, block_tokens: int, block_count: int, seed: int) -> KvPool:
    pool = KvPool(model, block_tokens=block_tokens, pool_bytes=block_count * model.block_bytes(block_tokens))
    noise = torch.randn(pool.blocks_LCBHTD.shape, generator=torch.Generator().manual_seed(seed))
    pool.blocks_LCBHTD.copy_(noise)
    return pool


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    data=st.data(),
    dtype=st.sampled_from(["fp32", "fp16", "bf16"]),
    block_tokens=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_a_run_copied_by_layer_is_bit_equal_and_touches_nothing_else(
    data: st.DataObject, dtype: str, block_tokens: int, seed: int
) -> None:
    model = spec(dtype)
    source = filled(model, block_tokens=block_tokens, block_count=6, seed=seed)
    target = filled(model, block_tokens=block_tokens, block_count=9, seed=seed + 1000)
    from_slots = data.draw(st.lists(st.integers(0, 5), unique=True, max_size=6))
    to_slots = data.draw(st.lists(st.integers(0, 8), unique=True, min_size=len(from_slots), max_size=len(from_slots)))
    before = target.blocks_LCBHTD.clone()
    moved_bytes = 0
    for layer in range(model.layer_count):
        buffer = source.read_layer(layer, from_slots)
        moved_bytes += buffer.nbytes
        target.write_layer(layer, to_slots, buffer)
    assert moved_bytes == len(from_slots) * source.block_bytes == len(from_slots) * model.block_bytes(block_tokens)
    assert torch.equal(target.blocks_LCBHTD[:, :, to_slots], source.blocks_LCBHTD[:, :, from_slots])
    others = [slot for slot in range(9) if slot not in to_slots]
    assert torch.equal(target.blocks_LCBHTD[:, :, others], before[:, :, others])


def test_the_buffer_is_keys_then_values_by_block_head_token() -> None:
    pool = filled(spec(), block_tokens=2, block_count=4, seed=1)
    as_floats = pool.read_layer(1, [3, 0]).view(np.float32).reshape(2, 2, 2, 2, 4)
    assert np.array_equal(as_floats[1, 0], pool.blocks_LCBHTD[1, 1, 3].numpy())
    assert np.array_equal(as_floats[0, 1], pool.blocks_LCBHTD[1, 0, 0].numpy())


def test_read_only_and_misaligned_buffers_are_accepted() -> None:
    source = filled(spec(), block_tokens=2, block_count=2, seed=1)
    target = KvPool(spec(), block_tokens=2, pool_bytes=2 * source.block_bytes)
    raw = source.read_layer(0, [1]).tobytes()
    target.write_layer(0, [0], raw)
    target.write_layer(0, [1], memoryview(b"x" + raw)[1:])
    assert torch.equal(target.blocks_LCBHTD[0, :, 0], source.blocks_LCBHTD[0, :, 1])
    assert torch.equal(target.blocks_LCBHTD[0, :, 1], source.blocks_LCBHTD[0, :, 1])


@pytest.mark.parametrize(
    ("layer", "slots", "size_change", "message"),
    [
        (3, [0], 0, "layer 3 is outside the pool's 3 layers"),
        (-1, [0], 0, "layer -1 is outside"),
        (0, [4], 0, "slot 4 is outside the pool of 4 blocks"),
        (0, [-1], 0, "slot -1 is outside"),
        (0, [1, 1], 0, "a slot is given twice"),
        (0, [1, 2], -1, "bytes given for 2 blocks, expected"),
        (0, [1, 2], 1, "bytes given for 2 blocks, expected"),
    ],
)
def test_a_wrong_transfer_is_refused_and_changes_nothing(
    layer: int, slots: list[int], size_change: int, message: str
) -> None:
    pool = filled(spec(), block_tokens=2, block_count=4, seed=1)
    before = pool.blocks_LCBHTD.clone()
    with pytest.raises(EngineError, match=message):
        pool.write_layer(layer, slots, bytes(pool.layer_bytes(len(slots)) + size_change))
    assert torch.equal(pool.blocks_LCBHTD, before)
    if size_change == 0:
        with pytest.raises(EngineError, match=message):
            pool.read_layer(layer, slots)


def test_capacity_is_whole_blocks() -> None:
    one = spec().block_bytes(4)
    assert KvPool(spec(), block_tokens=4, pool_bytes=3 * one - 1).block_count == 2
    with pytest.raises(ConfigError, match=f"expected at least {one}: one block of 4 tokens"):
        KvPool(spec(), block_tokens=4, pool_bytes=one - 1)


@pytest.mark.parametrize("block_tokens", [0, 65])
def test_block_tokens_must_fit_the_context(block_tokens: int) -> None:
    with pytest.raises(ConfigError, match=r"`block_tokens` is `\d+`, expected 1 to 64"):
        KvPool(spec(), block_tokens=block_tokens, pool_bytes=1 << 20)
