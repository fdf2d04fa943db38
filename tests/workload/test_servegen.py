"""ServeGen's draws: a cut is the same requests as in a longer stretch, to the second; an empty one is an error."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.core.errors import ConfigError
from kvshare_research.workload.servegen import ServeGenTrace
from kvshare_research.workload.trace import Reading

zstandard = pytest.importorskip("zstandard")
RATES = {0: (0.05, 0.2), 600: (0.1, 0.0), 1200: (0.0, 0.0), 1800: (0.02, 0.3)}  # of two clients, by window


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "servegen").mkdir()
    lengths = json.dumps({"0": {"input_tokens": "{100: 0.5, 200: 0.5}", "output_tokens": "{10: 1.0}"}})
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for client in range(2):
            windows = "\n".join(f"{start},{rates[client]},1.5,Gamma" for start, rates in RATES.items())
            for name, text in ((f"chunk-{client}-trace.csv", windows), (f"chunk-{client}-dataset.json", lengths)):
                member = tarfile.TarInfo(name)
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
    data = zstandard.ZstdCompressor().compress(packed.getvalue())
    (folder / "servegen" / "servegen_reason_deepseek-r1.tar.zst").write_bytes(data)
    return folder


def rows(root: Path, start_s: int, duration_s: int) -> list[tuple[int, int, str]]:
    """(second of the trace, tokens, client), in order."""
    trace = ServeGenTrace(data_root=str(root), start_s=start_s, duration_s=duration_s)
    found = list(trace.rows(Reading()))
    assert all(0 <= row.arrival_us < duration_s * 1_000_000 for row in found)
    assert [row.arrival_us for row in found] == sorted(row.arrival_us for row in found)
    return [(row.arrival_us + start_s * 1_000_000, row.input_tokens, row.client) for row in found]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(start_s=st.integers(0, 1100), duration_s=st.integers(100, 2400))
def test_a_cut_is_what_the_whole_has_there(root: Path, start_s: int, duration_s: int) -> None:
    whole = rows(root, 0, 2400)
    assert len(whole) > 100
    first_us, end_us = start_s * 1_000_000, (start_s + duration_s) * 1_000_000
    wanted = [row for row in whole if first_us <= row[0] < end_us]
    found = rows(root, start_s, duration_s)
    assert [row[1:] for row in found] == [row[1:] for row in wanted]
    assert all(abs(a[0] - b[0]) <= 1 for a, b in zip(found, wanted, strict=True)), "rounded after the cut"


@pytest.mark.parametrize(
    ("start_s", "duration_s", "words"),
    [
        (1201, 60, "nobody asks anything in deepseek-r1 from second 1201 to 1261"),
        (99_000, 600, "nobody asks anything"),
        (0, 0, "`duration_s` 0, expected at least 0 and 1"),
    ],
)
def test_a_stretch_without_requests_is_an_error(root: Path, start_s: int, duration_s: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        rows(root, start_s, duration_s)
