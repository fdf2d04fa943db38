"""Results go to JSON and back without loss."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import msgspec
import pytest
from msgspec import structs

from kvshare_research.core.errors import ConfigError
from kvshare_research.metrics.records import (
    CaseResult,
    decode_results,
    encode_results,
    outcome_frame,
    outcome_rows,
    results_schema,
)

from .synthetic import make_case


def test_round_trip_is_lossless_also_for_not_a_number() -> None:
    case = make_case(rejected=2, utilisation=0.7)
    odd = structs.replace(
        case.outcomes[0], logit_fingerprint=(math.nan, -math.inf, math.inf, 0.1 + 0.2), application="nan"
    )
    case = replace(case, outcomes=(odd, *case.outcomes[1:]), simulated=(odd,), extra=(("model", "1e5"), ("inf", "nan")))
    data = encode_results([case], provenance={"commit": "abc", "n": 3}, command="make demo")
    json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    back = decode_results(data)
    got = back.cases[0]
    # NaN is not equal to itself, its spelling is.
    assert repr(got.outcomes[0].logit_fingerprint) == repr(odd.logit_fingerprint)
    assert repr(got.simulated) == repr((got.outcomes[0],))
    assert structs.replace(got.outcomes[0], logit_fingerprint=()) == structs.replace(odd, logit_fingerprint=())
    assert replace(got, outcomes=got.outcomes[1:], simulated=()) == replace(
        case, outcomes=case.outcomes[1:], simulated=()
    )
    assert encode_results(back.cases, provenance=back.provenance, command=back.command) == data
    assert back.provenance == {"commit": "abc", "n": 3}
    assert back.command == "make demo"
    assert not back.partial


def test_missing_outcomes_make_the_file_partial() -> None:
    case = make_case()
    assert decode_results(encode_results([replace(case, outcomes=case.outcomes[:-1])])).partial
    assert decode_results(encode_results([replace(case, partial=True)])).partial


@pytest.mark.parametrize("data", [b"", b"[]", b'{"schema": "other/1"}', b'{"schema": "kvshare_research.results/1"}'])
def test_other_files_are_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        decode_results(data, "here.json")
    assert "here.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_schema_names_every_field() -> None:
    text = json.dumps(results_schema())
    assert all(f'"{name}"' in text for name in CaseResult.__dataclass_fields__)


def test_frame_has_one_row_per_outcome_and_typed_columns_when_empty() -> None:
    case = make_case(rejected=1, count=12)
    frame = outcome_frame([case])
    assert frame.height == 12
    assert frame["ttft_us"].sum() == sum(o.ttft_us for o in case.outcomes)
    assert frame["status"].to_list()[-1] == "rejected"
    assert set(outcome_rows([case])[0]) == set(frame.columns)
    assert outcome_frame([]).schema["missed"] == frame.schema["missed"]


def test_index_ignores_the_router_incarnation() -> None:
    case = make_case(count=3)
    moved = replace(
        case, outcomes=tuple(structs.replace(o, request_id=(7 << 32) + 5 + o.request_id) for o in case.outcomes)
    )
    assert [replace(moved, first_counter=5).index_of(o) for o in moved.outcomes] == [0, 1, 2]
    assert msgspec.to_builtins(case.key)[0] == "measured"
