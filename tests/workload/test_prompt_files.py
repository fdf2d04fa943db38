"""Public prompt sets: files in the sets' own formats, with invented text, and every way in which a file can be wrong."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from kvshare_research.core.errors import ConfigError
from kvshare_research.workload.prompt_files import PromptFilesWorkload
from kvshare_research.workload.prompt_sets import READERS, read_set

from .kit import ByteTokenizer, WordTokenizer, given

zstandard = pytest.importorskip("zstandard", reason="needs the extra [data]")


def workload(root: Path | str | None, **changes):
    values = {
        "data_root": None if root is None else str(root),
        "sets": ("bbh", "gsm8k", "mmlu_cot", "tau_bench", "awesome_chatgpt_prompts"),
        "applications_per_set": 9,
        "tenants_per_application": 3,
        "request_count": 40,
        "prompt_tokens_max": 400,
        "application_zipf_exponent": 0.0,
        "tenant_zipf_exponent": 0.0,
        "output_tokens_max": 2,
        "markup": "plain",
    }
    return PromptFilesWorkload(**(values | changes))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with all five sets, each two or three lines long."""
    top = tmp_path / "text_shared_prefix"

    def put(path: str, content: str | bytes) -> None:
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_bytes(content if isinstance(content, bytes) else content.encode())

    def packed(content: bytes) -> bytes:
        return zstandard.ZstdCompressor().compress(content)

    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for task, word in (("colours", "blue"), ("sizes", "large")):
            rows = [{"input": f"Is number {i} {word}?", "target": "No"} for i in range(30)]
            data = json.dumps({"examples": rows}).encode()
            member = tarfile.TarInfo(f"bbh/{task}.json")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
            put(
                f"bbh/cot-prompts/{task}.txt",
                f"a notice\n-----\nSay whether it is {word}.\n\nQ: Is the sea {word}?\nA: Yes.\n\nQ: Is salt?\nA: No.\n",
            )
    put("bbh/bbh_tasks.tar.zst", packed(archive.getvalue()))
    samples = [{"question": f"What is {i} and {i}?", "target": f"It is {2 * i}."} for i in range(3)]
    put("gsm8k/gsm8k-cot.fewshot.yaml", json.dumps({"doc": "{{question}}", "fewshot_config": {"samples": samples}}))
    put("gsm8k/test.jsonl", "".join(json.dumps({"question": f"Twice {i}?", "answer": "x"}) + "\n" for i in range(50)))
    subjects = {s: f"About {s}.\n\nQ: What is {s}?\nA: A word.\n\nQ: Why {s}?\nA: Because." for s in ("tides", "bread")}
    put("mmlu_cot/_cot_prompts.json", json.dumps(subjects))
    runs = [
        {
            "traj": [
                {"role": "system", "content": "Fly safely."},
                {"role": "user", "content": f"I am {i}."},
                {"role": "assistant", "content": None},
                {"role": "tool", "content": "ok"},
                {"role": "user", "content": "Thanks."},
            ]
        }
        for i in range(9)
    ]
    put("tau_bench/gpt-4o-airline.json.zst", packed(json.dumps(runs).encode()))
    put(
        "awesome_chatgpt_prompts/prompts.csv",
        '"act","prompt"\n"A Baker","Be a baker. My first loaf is rye."\n"A Poet!","Be a poet. My first line is ""o""."\n'
        '"Nobody","There is no request here."\n',
    )
    return tmp_path


def test_sets_become_prompts_with_their_own_prefixes(root):
    items = workload(root, request_count=120).make(given("prompt_files", tokenizer=ByteTokenizer()))
    text = {i.application: ByteTokenizer().decode(i.tokens) for i in items}
    assert sorted(text) == [
        "awesome_chatgpt_prompts/a_baker",
        "awesome_chatgpt_prompts/a_poet",
        "bbh/colours",
        "bbh/sizes",
        "gsm8k/test",
        "mmlu_cot/bread",
        "mmlu_cot/tides",
        "tau_bench/airline",
    ]
    assert text["bbh/colours"].startswith(
        "Say whether it is blue.\n\nQ: Is the sea blue?\nA: Yes.\n\nQ: Is salt?\nA: No."
    )
    assert text["bbh/colours"].endswith("blue?\nA: Let's think step by step.")
    assert "notice" not in "".join(text.values())
    assert text["gsm8k/test"].startswith("Q: What is 0 and 0?\nA: It is 0.\n\n")
    assert text["mmlu_cot/bread"].startswith("About bread.\n\nQ: What is bread?\nA: A word.")
    assert text["tau_bench/airline"].startswith("Fly safely.\n\nuser: I am ")
    assert text["awesome_chatgpt_prompts/a_poet"].startswith("Be a poet.\n\nMy first ")
    for item in items:
        assert item.request.token_count == len(item.tokens) <= 400
        same = next(i for i in items if i.application == item.application)
        shared = item.tenant_shared_tokens
        assert np.array_equal(item.tokens[:shared], same.tokens[:shared])
        assert 0 < item.overlap < 1


def test_questions_come_in_turn_and_by_seed(root):
    def tails(seed: int, count: int) -> list[bytes]:
        made = workload(root, sets=("gsm8k",), request_count=count).make(given("prompt_files", seed=seed))
        return [i.tokens[i.tenant_shared_tokens :].tobytes() for i in made]

    assert len(set(tails(1, 50))) == 50
    assert tails(1, 60)[50:] == tails(1, 60)[:10]
    assert tails(1, 20) != tails(2, 20)
    assert tails(1, 20) == tails(1, 50)[:20]


def test_examples_are_left_out_whole_until_questions_fit(root):
    sizes = {}
    for tokens_max in (60, 110, 200):
        made = workload(root, sets=("gsm8k",), prompt_tokens_max=tokens_max).make(
            given("prompt_files", tokenizer=ByteTokenizer())
        )
        assert all(len(i.tokens) <= tokens_max for i in made)
        sizes[tokens_max] = ByteTokenizer().decode(made[0].tokens).count("What is")
    assert sizes == {60: 0, 110: 1, 200: 3}


def test_chat_marks_enclose_the_layers(root):
    made = workload(root, sets=("bbh",), markup="chatml", prompt_tokens_max=600).make(
        given("prompt_files", tokenizer=ByteTokenizer())
    )
    text = ByteTokenizer().decode(made[0].tokens)
    assert text.startswith("<|im_start|>system\nSay")
    assert text.count("<|im_end|>\n<|im_start|>user\nQ: ") == 1
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert ByteTokenizer().decode(made[0].tokens[: made[0].tenant_shared_tokens]).endswith("<|im_start|>user\n")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sets": ("gsm9k",)}, "`workload.sets` has unknown set `gsm9k`; did you mean `gsm8k`?"),
        (
            {"sets": ()},
            "`workload.sets` is empty; choices: `awesome_chatgpt_prompts`, `bbh`, `gsm8k`, `mmlu_cot`, `tau_bench`",
        ),
        ({"request_count": 0}, "`workload.request_count` is `0`, expected at least 1 and at most 100000"),
        ({"data_root": None}, "`workload.data_root` is not set; set `data_root` or the variable KVSHARE_DATA"),
        ({"tenants_per_application": 4}, "`workload.tenants_per_application` is 4, but `bbh` has 3 tenants"),
        (
            {"sets": ("tau_bench",), "prompt_tokens_max": 10},
            "`workload.prompt_tokens_max` is 10, but `tau_bench/airline` needs 14 for its prefix and its shortest question",
        ),
    ],
)
def test_impossible_values_are_refused(root, changes, message):
    with pytest.raises(ConfigError) as caught:
        workload(**({"root": root} | changes)).make(given("prompt_files", tokenizer=WordTokenizer()))
    assert str(caught.value) == message


def test_missing_sets_and_templates_are_named(root, tmp_path):
    with pytest.raises(
        ConfigError, match=r"^prompt set `bbh` is not at `.*/nowhere/.*`; set `data_root` to the folder"
    ):
        workload(tmp_path / "nowhere").make(given("prompt_files"))
    with pytest.raises(ConfigError, match="no application `bbh` in the catalogue"):
        workload(root).make(given("demo"))


FILES = {
    "bbh": "bbh_tasks.tar.zst",
    "gsm8k": "test.jsonl",
    "mmlu_cot": "_cot_prompts.json",
    "tau_bench": "gpt-4o-airline.json.zst",
    "awesome_chatgpt_prompts": "prompts.csv",
}


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, r"cannot be read \(No such file or directory\); check `data_root`"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a Git LFS pointer, not the file itself"),
        (b"\n<!DOCTYPE html><html>", "is a saved web page, not the file itself"),
        (b'[{"x": 1}]\n', r"is not .*; fetch the set again"),
        (b"\xff\xfe\x00", r"is not .*; fetch the set again"),
    ],
    ids=["missing", "pointer", "web page", "other content", "not text"],
)
def test_a_file_that_is_not_what_it_should_be_is_named_in_one_line(root, name, content, reason):
    path = root / "text_shared_prefix" / name / FILES[name]
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=reason) as caught:
        read_set(name, root)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("gsm8k/gsm8k-cot.fewshot.yaml", "a: [1"),
        ("gsm8k/gsm8k-cot.fewshot.yaml", "fewshot_config: {}"),
        ("gsm8k/gsm8k-cot.fewshot.yaml", "just text"),
        ("bbh/cot-prompts/sizes.txt", "no rule and no question"),
        ("bbh/cot-prompts/other.txt", "n\n-----\nIt.\n\nQ: a?\nA: b.\n"),
        ("tau_bench/gpt-4o-airline.json.zst", zstandard.ZstdCompressor().compress(b"[]")),
        ("bbh/bbh_tasks.tar.zst", zstandard.ZstdCompressor().compress(b"no archive" * 100)),
        ("mmlu_cot/_cot_prompts.json", '{"tides": "no question"}'),
    ],
)
def test_files_of_another_shape_are_named(root, path, content):
    file = root / "text_shared_prefix" / path
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=rf"^`{file}` is not .*; fetch the set again$"):
        read_set(path.partition("/")[0], root)


@pytest.mark.skipif("KVSHARE_DATA" not in os.environ, reason="KVSHARE_DATA names no folder of public sets")
@pytest.mark.parametrize(("name", "count"), [("bbh", 27), ("gsm8k", 1), ("mmlu_cot", 57), ("tau_bench", 1)])
def test_the_public_sets_read_in_full(name, count):
    applications = read_set(name, Path(os.environ["KVSHARE_DATA"]))
    assert len(applications) == count
    for application in applications:
        assert all(dataclasses.asdict(application)["questions"])
        assert application.system or application.examples


def test_every_set_has_a_template():
    assert {t.application for t in given("prompt_files").catalogue.templates} == set(READERS)
