"""What the compute thread runs: the engine calls behind Prefill and Decode, and timings for calibration."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvshare_research.core import messages as m
from kvshare_research.core.errors import EngineError
from kvshare_research.transport import wire

if TYPE_CHECKING:
    from kvshare_research.engine.base import Engine

Tokens = NDArray[np.uint32]


def computed(engine: Engine, effect: m.Prefill | m.Decode, tokens: Tokens, first_token: int) -> m.WorkerEvent:
    """The engine has done it; EngineFailed where it cannot serve this request. Raises what is wrong beyond it."""
    request_id = effect.request_id
    try:
        if isinstance(effect, m.Prefill):
            part = engine.prefill(tokens, effect.start_token, effect.end_token, effect.slots)
            return m.PrefillDone(
                request_id=request_id,
                end_token=effect.end_token,
                elapsed_us=part.elapsed_us + part.merge_us,
                merge_us=part.merge_us,
                first_token=part.first_token,
                logit_fingerprint=part.logit_fingerprint,
                attention=part.attention,
            )
        rest = engine.decode(first_token, effect.start_token, effect.token_count, effect.slots)
        return m.DecodeDone(request_id=request_id, tokens=rest.tokens, elapsed_us=rest.elapsed_us)
    except EngineError as error:
        return m.EngineFailed(request_id=request_id, reason=str(error))


def decode_times_us(engine: Engine, asked: wire.MeasureDecode) -> tuple[tuple[int, ...], ...]:
    """Wall time of each point and repeat, after random tokens; scaled up where an end token came early."""
    rng = random.Random(asked.seed)
    rows = []
    for context, count in asked.points:
        slots = range(-(-(context + count) // engine.pool.block_tokens))
        draws = [rng.randrange(engine.spec.vocabulary_count) for _ in range(context)]
        engine.prefill(np.array(draws, np.uint32), 0, context, slots)
        times = []
        for _ in range(asked.repeats):
            first = next(t for t in draws if t not in engine.spec.end_token_ids)
            began_ns = time.perf_counter_ns()
            made = len(engine.decode(first, context, count, slots).tokens)
            times.append((time.perf_counter_ns() - began_ns) * count // (1000 * made))
        rows.append(tuple(times))
    engine.reset()
    return tuple(rows)


def prefill_times_us(engine: Engine, asked: wire.MeasurePrefill) -> tuple[tuple[int, ...], ...]:
    """Wall time of each point and repeat, on random tokens; the pool is all zeros before and after."""
    rng = random.Random(asked.seed)
    rows = []
    for start, end in asked.points:
        slots = range(-(-end // engine.pool.block_tokens))
        times = []
        for _ in range(asked.repeats):
            draws = [rng.randrange(engine.spec.vocabulary_count) for _ in range(end)]
            began_ns = time.perf_counter_ns()
            engine.prefill(np.array(draws, np.uint32), start, end, slots)
            times.append((time.perf_counter_ns() - began_ns) // 1000)
        rows.append(tuple(times))
    engine.reset()
    return tuple(rows)
