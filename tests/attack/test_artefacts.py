"""A canary prompt goes through the main job on real ranks; nothing that the run prints or leaves behind contains it."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.privacy.test_canary import TEXT

ROOT = Path(__file__).parents[2]
TOKENS = np.frombuffer((TEXT * 3).encode(), np.uint8).astype(np.uint32)  # as a tokenizer of bytes reads it
RUN = 12  # so many letters in a row give a prompt away
SETTINGS = (
    *("engine=tiny", "tenants=prompt_files", "workload=prompt_files", "tenancy=layered"),
    *("workload.sets=[awesome_chatgpt_prompts]", "study.calibration_seconds=1.0", "link=loopback"),
    "study.blocks=[{name: canary, requests: 12, selector: [recompute_always, cheapest], record: true}]",
)


def found(content: bytes) -> bool:
    """Whether `RUN` of its letters in a row stand there, as text, as numbers in memory or as numbers in text."""
    for start in range(len(TEXT) - RUN + 1):
        part = TOKENS[start : start + RUN]
        forms = [part.astype(kind).tobytes() for kind in ("u1", "<u2", ">u2", "<u4", ">u4", "<i8", ">i8")]
        forms += [sign.join(map(str, part.tolist())).encode() for sign in (",", ", ", " ", "\n")]
        if any(form in content for form in forms):
            return True
    return False


def data(folder: Path) -> Path:
    """A public set in which everybody asks the canary."""
    texts = io.StringIO()
    rows = csv.DictWriter(texts, ("act", "prompt"))
    rows.writeheader()
    for i in range(8):
        rows.writerow({"act": f"Clerk {i}", "prompt": f"You are clerk {i}. {TEXT}. My first note is {TEXT} {i}."})
    path = folder / "text_shared_prefix" / "awesome_chatgpt_prompts" / "prompts.csv"
    path.parent.mkdir(parents=True)
    path.write_text(texts.getvalue())
    return folder


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Everything a run printed or wrote, by name."""
    pytest.importorskip("mpi4py")
    root = tmp_path_factory.mktemp("canary")
    places = (f"output_root={root}/out", f"cache_root={root}/cache", f"data_root={data(root / 'data')}")
    command = [sys.executable, "-m", "kvshare_research", *SETTINGS, *places]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=290, check=False)
    assert done.returncode == 0, done.stderr.decode()
    files = {str(p.relative_to(root)): read(p) for p in root.rglob("*") if p.is_file() and "data" not in p.parts}
    return {"stdout": done.stdout, "stderr": done.stderr, **files}


def read(path: Path) -> bytes:
    """The content as a person would see it: columns of a packed table are unpacked."""
    if path.suffix != ".parquet":
        return path.read_bytes()
    import polars

    return polars.read_parquet(path).write_json().encode()


@pytest.mark.mpi
@pytest.mark.xdist_group("mpi")
def test_no_file_or_line_of_a_run_contains_the_canary(left: dict[str, bytes]) -> None:
    assert [name for name, content in left.items() if found(content)] == []
    kinds = {name.rpartition(".")[2] for name in left}
    assert b"12 of 12" in left["stderr"], "the canary was asked"
    assert {"json", "log", "html", "parquet", "stdout"} <= kinds, (
        "the search saw every kind of thing a run leaves behind"
    )
    assert sum(name.endswith(".log") for name in left) >= 3, "router and workers were recorded"


@pytest.mark.mpi
@pytest.mark.xdist_group("mpi")
def test_a_canary_planted_in_any_of_them_is_found(left: dict[str, bytes]) -> None:
    forms = (TEXT.encode(), TOKENS[5:19].tobytes(), str(TOKENS[8:22].tolist()).encode())
    for name, content in left.items():
        middle = len(content) // 2
        for form in forms:
            assert found(content[:middle] + form + content[middle:]), name
