"""An engine in virtual time: chunked prefill of one prompt beside continuous batching of decodes.

Work is done in iterations, as serving engines do it. Each computes at most one chunk of the prompt being prefilled and
one token of every request that decodes. Work that comes in the middle of an iteration joins the next one. Iterations
in which nothing ends are skipped in one step; sums are exact in picoseconds, so the times are those of the engine that
takes every step (`step_by_step`).
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from kvshare_research.core.costing import PS_PER_US, PrefillCoefficients, prefill_ps, up_to_us


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """Times of a modelled engine. An iteration that decodes B requests with C tokens of context among them adds

    `decode_ps_per_request` * B + `decode_ps_per_token` * C, and `decode_step_ps` if it prefills nothing (a prefill's
    launch is in its own c0). `chunk_tokens` 0 prefills a stretch in one iteration. Where engines share a machine, an
    iteration that begins while all others run takes `together_permille` / 1000 times as long, beside some of them less.
    """

    prefill: PrefillCoefficients
    decode_step_ps: int
    decode_ps_per_request: int = 0
    decode_ps_per_token: int = 0
    chunk_tokens: int = 0
    merge_ps_per_byte: int = 0
    together_permille: int = 1_000

    def slowed_permille(self, running: int, others: int) -> int:
        """What an iteration takes that begins while `running` of `others` engines run, in thousandths."""
        return 1_000 + (self.together_permille - 1_000) * running // others if others else 1_000


@dataclass(slots=True)
class _Prefill:
    request_id: int
    at_token: int
    end_token: int
    is_last: bool
    since_us: int


@dataclass(slots=True)
class _Decode:
    request_id: int
    token_count: int
    context_tokens: int  # at its first step
    since_us: int


class Ended(NamedTuple):
    """A stretch or a decode that has ended."""

    request_id: int
    is_prefill: bool
    is_last: bool  # of the prompt's stretches
    token: int  # the end of the stretch, or how many tokens were decoded
    elapsed_us: int


@dataclass(slots=True)
class ModelledEngine:
    """One node's engine. A driver submits, calls `begin`, and calls `end` at the time `begin` or `cut` gave."""

    model: EngineModel
    step_by_step: bool = False
    _prefill: _Prefill | None = None
    _decoding: list[tuple[int, int, _Decode]] = field(default_factory=list)  # a heap of (last step, order of joining)
    _joined: int = 0
    _taken: int = 0  # steps of decoding since the beginning
    _context_tokens: int = 0
    _coming: list[tuple[bool, _Prefill | _Decode]] = field(default_factory=list)  # whether it came between iterations
    _from_us: int = 0  # start of the present composition of the batch
    _past_ps: int = 0  # time spent in it by the iterations that have ended
    _due_ps: int = 0  # the same, when those under way have ended too
    _steps: int = 0  # iterations under way or to be skipped; 0: idle
    _ends_us: int = 0
    _slow_permille: int = 1_000  # of the present composition of the batch

    @property
    def running(self) -> bool:
        """Whether iterations are under way."""
        return self._steps > 0

    def prefill(self, request_id: int, start_token: int, end_token: int, is_last: bool, now_us: int) -> None:
        """The stretch [start, end) joins at the next iteration; one prompt at a time."""
        self._coming.append((not self._steps, _Prefill(request_id, start_token, end_token, is_last, now_us)))

    def decode(self, request_id: int, context_tokens: int, token_count: int, now_us: int) -> None:
        """The request joins the batch at the next iteration, for so many tokens."""
        work = _Decode(request_id, token_count, context_tokens, now_us)
        self._coming.append((not self._steps, work))

    def begin(self, now_us: int, slow_permille: int = 1_000) -> int | None:
        """What was submitted runs from now; when `end` is due, None if there is nothing to do."""
        assert not self._steps
        if (self._coming and self._join(now_us)) or slow_permille != self._slow_permille:
            self._from_us, self._past_ps, self._slow_permille = now_us, 0, slow_permille
        if self._prefill is None and not self._decoding:
            return None
        if self._prefill is not None:
            return self._runs(1, self._chunk_ps())
        steps = 1 if self.step_by_step else self._decoding[0][0] - self._taken
        return self._runs(steps, self._decode_ps(steps))

    def cut(self, now_us: int) -> int | None:
        """If iterations are being skipped and work waits, skipping stops at the next end of one; when `end` is due now.

        None if nothing changes. Work that comes at the very end of an iteration waits for the one after the next.
        """
        if self._steps <= 1 or not self._coming:
            return None
        passed_ps = (now_us - self._from_us) * PS_PER_US - self._past_ps
        steps = bisect_right(range(self._steps), passed_ps, lo=1, key=self._decode_ps)
        return None if steps == self._steps else self._runs(steps, self._decode_ps(steps))

    def _runs(self, steps: int, time_ps: int) -> int:
        """So many iterations are under way, which take so long together; when they end."""
        self._steps, self._due_ps = steps, self._past_ps + time_ps
        self._ends_us = self._from_us + up_to_us(self._due_ps)
        return self._ends_us

    def end(self, now_us: int) -> list[Ended]:
        """What has ended with the iterations that end now; the engine stands until `begin`."""
        assert self._steps, "an idle engine cannot end anything"
        assert now_us == self._ends_us, (now_us, self._ends_us)
        ended: list[Ended] = []
        self._past_ps = self._due_ps
        if self._prefill is not None:
            self._prefill.at_token = self._chunk_end()
            if self._prefill.at_token == self._prefill.end_token:
                done = self._prefill
                ended.append(Ended(done.request_id, True, done.is_last, done.end_token, now_us - done.since_us))
                self._prefill = None
        self._decoded(self._steps, now_us, ended)
        self._steps = 0
        if ended:
            self._from_us, self._past_ps = now_us, 0
        return ended

    # ------------------------------------------------------------------ the batch
    def _join(self, now_us: int) -> bool:
        """Whether any of the waiting work has joined: what came before now, or between iterations, or finds it idle."""
        ready: list[tuple[bool, _Prefill | _Decode]] = []
        later: list[tuple[bool, _Prefill | _Decode]] = []
        for row in self._coming:
            (ready if row[0] or row[1].since_us < now_us else later).append(row)
        if not ready and self._prefill is None and not self._decoding:
            ready, later = later, ready
        self._coming = later
        for _, work in ready:
            if isinstance(work, _Prefill):
                assert self._prefill is None, f"{work.request_id} is prefilled beside {self._prefill}"
                self._prefill = work
            else:
                self._joined += 1
                heapq.heappush(self._decoding, (self._taken + work.token_count, self._joined, work))
                self._context_tokens += work.context_tokens
        return bool(ready)

    def _decoded(self, steps: int, now_us: int, ended: list[Ended]) -> None:
        self._context_tokens += steps * len(self._decoding)
        self._taken += steps
        while self._decoding and self._decoding[0][0] <= self._taken:
            row = heapq.heappop(self._decoding)[2]
            self._context_tokens -= row.context_tokens + row.token_count
            ended.append(Ended(row.request_id, False, False, row.token_count, now_us - row.since_us))

    def _chunk_end(self) -> int:
        assert self._prefill is not None
        chunk = self.model.chunk_tokens or self._prefill.end_token
        return min(self._prefill.end_token, self._prefill.at_token + chunk)

    def _chunk_ps(self) -> int:
        assert self._prefill is not None
        start = self._prefill.at_token
        alone_ps = prefill_ps(self.model.prefill, self._chunk_end() - start, start) + self._batch_ps()
        return alone_ps * self._slow_permille // 1_000

    def _batch_ps(self) -> int:
        model = self.model
        return model.decode_ps_per_request * len(self._decoding) + model.decode_ps_per_token * self._context_tokens

    def _decode_ps(self, steps: int) -> int:
        """`steps` iterations that only decode; the context grows by a token of each request in each."""
        grown = self.model.decode_ps_per_token * len(self._decoding)
        alone_ps = steps * (self.model.decode_step_ps + self._batch_ps()) + grown * (steps * (steps - 1) // 2)
        return alone_ps * self._slow_permille // 1_000
