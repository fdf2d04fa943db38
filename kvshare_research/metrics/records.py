"""The result of one case, as a frozen value that goes to JSON and back without loss.

A *case* is one run of one workload under one setting and one seed. Cases that differ in the seed only are
one row of the report (`CaseResult.key`); cases that differ in the selector only are compared request by request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import msgspec

from kvshare_research.core.errors import ConfigError
from kvshare_research.core.nouns import Outcome, Status

if TYPE_CHECKING:
    import polars

SCHEMA = "kvshare_research.results/1"
RECORDED = "arrivals as recorded"  # the load of a trace
BASELINE = "recompute_always"  # the selector that every other one is compared with
COUNTER_MASK = 0xFFFFFFFF  # a request id is (router incarnation << 32) + counter


class Label(StrEnum):
    """How a number came about. Every table and plot carries one; they are never mixed in one table."""

    MEASURED = "measured"  # real model, real bytes, as the machine is
    EMULATED = "emulated"  # real model and bytes, links slowed down on purpose
    SIMULATED = "simulated"  # virtual time
    COMPOSED = "composed"  # computed from measured parts


class CaseKey(NamedTuple):
    """Everything that tells two rows of a report apart; the seed is not part of it."""

    label: str
    workload: str
    overlap: float | None
    utilisation: float | None
    link: str
    tenancy: str
    selector: str
    extra: tuple[tuple[str, str], ...]
    recorded: bool = False


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What was counted beside the outcomes. All zero when a driver does not count it."""

    wire_bytes: int = 0  # KV payload that crossed between ranks, without headers
    planned_bytes: int = 0  # planned blocks x block bytes; equal to wire_bytes when nothing was refused
    block_bytes: int = 0
    node_stored_blocks: tuple[int, ...] = ()  # blocks in the pool at the end, by node
    node_unique_blocks: tuple[int, ...] = ()  # of those, distinct contents, by node
    fleet_unique_blocks: int = 0  # distinct contents over all nodes
    decide_us: tuple[int, ...] = ()  # router decision times; empty: taken from the outcomes
    wall_us: int = 0
    others: tuple[tuple[str, int], ...] = ()  # evictions, stale hits, refusals, ... by name


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One run. `overlap` is the dialled share of the prompt that others have too; `utilisation` None or 0 means idle,
    unless arrivals are as a trace has `recorded` them.

    Requests of two cases are paired by (seed, index in the workload); the index is the low half of the request id
    minus `first_counter`, so cases whose prompts differ need different labels. `partial` means that requests are
    missing; such a case is shown apart.
    """

    label: Label
    selector: str
    tenancy: str
    link: str
    seed: int
    overlap: float | None = None
    utilisation: float | None = None
    recorded: bool = False
    rate_per_s: float | None = None  # arrival rate, the same for every selector
    workload: str = ""  # names the set of requests, without the seed
    content_known: bool = True  # False: a trace that does not tell what its prompts have in common
    extra: tuple[tuple[str, str], ...] = ()  # further labels, for example model or retention
    outcomes: tuple[Outcome, ...] = ()
    simulated: tuple[Outcome, ...] = ()  # of a case on ranks: what its twin in virtual time gave
    counters: Counters = Counters()
    expected_requests: int | None = None
    fit_request_ids: tuple[int, ...] = ()  # requests that calibration has seen
    first_counter: int = 0
    partial: bool = False
    partial_reason: str = ""

    @property
    def key(self) -> CaseKey:
        return CaseKey(
            self.label.value,
            self.workload,
            self.overlap,
            self.utilisation or None,
            self.link,
            self.tenancy,
            self.selector,
            self.extra,
            self.recorded,
        )

    @property
    def incomplete(self) -> bool:
        """Marked partial, or fewer outcomes than requests expected."""
        return self.partial or (self.expected_requests is not None and len(self.outcomes) < self.expected_requests)

    def index_of(self, outcome: Outcome) -> int:
        """Position of the request in its workload."""
        return (outcome.request_id & COUNTER_MASK) - self.first_counter

    def measured(self) -> tuple[Outcome, ...]:
        """Outcomes that count: no warm-up; any status."""
        return tuple(o for o in self.outcomes if not o.warmup)

    def done(self) -> tuple[Outcome, ...]:
        """Outcomes that count and have a first token."""
        return tuple(o for o in self.outcomes if not o.warmup and o.status == Status.DONE)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsFile:
    """The content of results.json."""

    schema: str
    partial: bool
    command: str
    provenance: dict[str, Any]
    cases: tuple[CaseResult, ...]


def _map_floats(value: Any, change: Callable[[float], Any]) -> Any:
    if isinstance(value, float):
        return change(value)
    if isinstance(value, dict):
        return {k: _map_floats(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_map_floats(v, change) for v in value]
    return value


def _plain(value: Any) -> Any:
    """NumPy scalars as Python numbers; anything else (a path, an enum of a library) as its text."""
    return value.item() if hasattr(value, "item") else str(value)


def _spell(value: float) -> float | str:
    """JSON has no NaN and no infinity: they are written as strings, which a float field reads back."""
    return value if math.isfinite(value) else repr(value)


def encode_results(
    cases: Sequence[CaseResult], *, provenance: dict[str, Any] | None = None, command: str = "", partial: bool = False
) -> bytes:
    """results.json as bytes (UTF-8). `decode_results` gives equal cases back, floats bit by bit."""
    content = ResultsFile(
        schema=SCHEMA,
        partial=partial or any(c.incomplete for c in cases),
        command=command,
        provenance=provenance or {},
        cases=tuple(replace(c, outcomes=(), simulated=()) for c in cases),
    )
    plain = _map_floats(msgspec.to_builtins(content, enc_hook=_plain, str_keys=True), _spell)
    for row, case in zip(plain["cases"], cases, strict=True):
        row |= {"outcomes": _encoded(case.outcomes), "simulated": _encoded(case.simulated)}
    return msgspec.json.encode(plain)


def _encoded(outcomes: tuple[Outcome, ...]) -> msgspec.Raw:
    """As JSON. Their one field of floats is looked at here, so that hundreds of thousands need not be taken apart."""
    odd = [not all(map(math.isfinite, o.logit_fingerprint)) for o in outcomes]
    told = [
        _map_floats(msgspec.to_builtins(o, enc_hook=_plain), _spell) if is_odd else o
        for o, is_odd in zip(outcomes, odd, strict=True)
    ]
    return msgspec.Raw(msgspec.json.encode(told, enc_hook=_plain))


def decode_results(data: bytes, where: str = "results.json") -> ResultsFile:
    """Read what `encode_results` wrote; ConfigError for anything else."""
    try:
        plain = msgspec.json.decode(data)
        given = plain.get("schema") if isinstance(plain, dict) else type(plain).__name__
        if given != SCHEMA:
            raise ConfigError(f"{where}: schema `{given}`, expected `{SCHEMA}`")
        # Not strict: only so that "nan" and "inf" become floats again; fields that are text stay text.
        return msgspec.convert(plain, ResultsFile, strict=False)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{where}: no readable results file: {error}") from error


def load_results(path: Path) -> ResultsFile:
    """`decode_results` of a file; ConfigError if it cannot be read."""
    try:
        return decode_results(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read results: {error.strerror}") from error


def results_schema() -> dict[str, Any]:
    """JSON Schema of results.json (non-finite floats are the strings `nan`, `inf`, `-inf`)."""
    return msgspec.json.schema(ResultsFile)


_NESTED = ("quoted_us", "missed", "output_tokens", "logit_fingerprint")


def outcome_rows(cases: Iterable[CaseResult]) -> list[dict[str, Any]]:
    """One flat row per outcome: the labels of its case, its index in the workload, then its fields."""
    rows = []
    for case in cases:
        labels = {
            "label": case.label.value,
            "workload": case.workload,
            "overlap": case.overlap,
            "utilisation": case.utilisation,
            "rate_per_s": case.rate_per_s,
            "link": case.link,
            "tenancy": case.tenancy,
            "selector": case.selector,
            "seed": case.seed,
            "partial": case.incomplete,
        } | {f"extra_{name}": value for name, value in case.extra}
        for outcome in case.outcomes:
            fields = {name: getattr(outcome, name) for name in Outcome.__struct_fields__ if name not in _NESTED}
            fields["status"], fields["action"] = outcome.status.name.lower(), outcome.action.name.lower()
            fields["quoted_us"] = [{"component": name, "us": value} for name, value in outcome.quoted_us]
            fields["missed"] = [{"reason": reason, "tokens": count} for reason, count in outcome.missed]
            fields["output_tokens"] = list(outcome.output_tokens)
            fields["logit_fingerprint"] = list(outcome.logit_fingerprint)
            rows.append(labels | {"index": case.index_of(outcome)} | fields)
    return rows


def outcome_frame(cases: Sequence[CaseResult]) -> polars.DataFrame:
    """The outcomes of all cases as one polars table (what results.parquet holds); typed also when empty."""
    import polars as pl

    typed: dict[str, Any] = {"label": pl.String, "workload": pl.String, "overlap": pl.Float64}
    typed |= {"utilisation": pl.Float64, "rate_per_s": pl.Float64}
    typed |= dict.fromkeys(("link", "tenancy", "selector"), pl.String) | {"seed": pl.Int64, "partial": pl.Boolean}
    typed |= {f"extra_{name}": pl.String for name in sorted({n for c in cases for n, _ in c.extra})}
    typed["index"] = pl.Int64
    text = {"application", "status", "reason", "action", "output_digest"}
    for name in Outcome.__struct_fields__:
        typed[name] = pl.String if name in text else pl.Boolean if name == "warmup" else pl.Int64
    typed["quoted_us"] = pl.List(pl.Struct({"component": pl.String, "us": pl.Int64}))
    typed["missed"] = pl.List(pl.Struct({"reason": pl.Int64, "tokens": pl.Int64}))
    typed["output_tokens"], typed["logit_fingerprint"] = pl.List(pl.Int64), pl.List(pl.Float64)
    return pl.DataFrame(outcome_rows(cases), schema=typed)
