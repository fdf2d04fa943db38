"""Public prompt sets, read where they lie: each becomes applications with one prefix and many questions.

Nothing of a set is copied. A file that is missing, or is not what it should be, is a ConfigError of one line
that names it. Sets without questions of their own (`mmlu_cot`, `awesome_chatgpt_prompts`) ask every question of the
set in each of its applications: their sharing is composed, not observed.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kvshare_research.core.errors import ConfigError

FOLDER = "text_shared_prefix"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileApplication:
    """One application of a set: `name` is set/part. Any of system text and examples may be empty."""

    name: str
    system: str
    examples: tuple[str, ...]
    questions: tuple[str, ...]


def read_set(name: str, data_root: Path) -> tuple[FileApplication, ...]:
    """The applications of the set, sorted by name; `name` is a key of READERS."""
    folder = data_root / FOLDER / name
    if not folder.is_dir():
        raise ConfigError(f"prompt set `{name}` is not at `{folder}`; set `data_root` to the folder above `{FOLDER}`")
    applications = READERS[name](folder)
    return tuple(sorted(applications, key=lambda a: a.name))


# ------------------------------------------------------------------ one reader for each set
def _bbh(folder: Path) -> list[FileApplication]:
    """BIG-Bench Hard: three worked examples per task, some 250 questions each."""
    questions = _bbh_questions(folder / "bbh_tasks.tar.zst")
    paths = sorted((folder / "cot-prompts").glob("*.txt"))
    if not paths:
        _not(folder / "cot-prompts", "a folder of BIG-Bench Hard prompts (*.txt)")
    applications = []
    for path in paths:
        _, rule, text = _text(path).partition("-----\n")  # what stands above the rule is a notice, not prompt
        system, *examples = re.split(r"\n\n(?=Q: )", text.strip())
        if not rule or not examples or path.stem not in questions:
            _not(path, "a BIG-Bench Hard prompt with examples and a task of the same name")
        applications.append(
            FileApplication(
                name=f"bbh/{path.stem}",
                system=system + "\n\n",
                examples=tuple(e + "\n\n" for e in examples),
                questions=tuple(f"Q: {q}\nA: Let's think step by step." for q in questions[path.stem]),
            )
        )
    return applications


def _bbh_questions(path: Path) -> dict[str, list[str]]:
    what = "the archive of BIG-Bench Hard tasks"
    questions: dict[str, list[str]] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(_unpacked(path, what))) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.name.endswith(".json") else None
                if file is not None:
                    examples = json.loads(file.read())["examples"]
                    questions[Path(member.name).stem] = [e["input"] for e in examples]
    except (tarfile.TarError, ValueError, KeyError, TypeError):
        _not(path, what)
    return questions


def _gsm8k(folder: Path) -> list[FileApplication]:
    """Grade-school mathematics: the eight examples of the usual prompt, 1,319 questions."""
    page = _yaml(folder / "gsm8k-cot.fewshot.yaml", "the few-shot file of GSM8K")
    test = folder / "test.jsonl"
    try:
        samples = page["fewshot_config"]["samples"]
        examples = tuple(f"Q: {s['question']}\nA: {s['target']}\n\n" for s in samples)
    except (KeyError, TypeError):
        _not(folder / "gsm8k-cot.fewshot.yaml", "the few-shot file of GSM8K")
    try:
        rows = [json.loads(line) for line in _text(test).splitlines() if line.strip()]
        questions = tuple(f"Q: {row['question']}\nA:" for row in rows)
    except (ValueError, KeyError, TypeError):
        _not(test, "the questions of GSM8K, one JSON object in a line")
    return [FileApplication(name="gsm8k/test", system="", examples=examples, questions=questions)]


def _mmlu_cot(folder: Path) -> list[FileApplication]:
    """MMLU with reasoning: instruction and worked examples per subject; the questions of the set are the examples'."""
    path = folder / "_cot_prompts.json"
    what = "the MMLU prompts, a JSON object of subject and text"
    try:
        page: dict[str, str] = json.loads(_text(path))
        parts = {subject: re.split(r"\n\n(?=Q: )", text.strip()) for subject, text in sorted(page.items())}
    except (ValueError, AttributeError, TypeError):
        _not(path, what)
    questions = tuple(e.partition("\nA:")[0] + "\nA:" for _, *examples in parts.values() for e in examples)
    if not questions:
        _not(path, what)
    return [
        FileApplication(
            name=f"mmlu_cot/{subject}",
            system=system + "\n\n",
            examples=tuple(e + "\n\n" for e in examples),
            questions=questions,
        )
        for subject, (system, *examples) in parts.items()
    ]


def _tau_bench(folder: Path) -> list[FileApplication]:
    """tau-bench, airline: one long policy; a question is a conversation up to and including a user's turn."""
    path = folder / "gpt-4o-airline.json.zst"
    what = "the airline conversations of tau-bench"
    questions: list[str] = []
    try:
        runs = json.loads(_unpacked(path, what))
        policy = runs[0]["traj"][0]["content"]
        for run in runs:
            said = ""
            for turn in run["traj"][1:]:
                if turn.get("content"):
                    said += f"{turn['role']}: {turn['content']}\n"
                    if turn["role"] == "user":
                        questions.append(said + "assistant:")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        _not(path, what)
    return [FileApplication(name="tau_bench/airline", system=f"{policy}\n\n", examples=(), questions=tuple(questions))]


def _awesome_chatgpt_prompts(folder: Path) -> list[FileApplication]:
    """Personas: the role is the system text, and what the persona is first asked is a question of the set."""
    path = folder / "prompts.csv"
    rows = list(csv.DictReader(io.StringIO(_text(path))))
    if not rows or not {"act", "prompt"} <= set(rows[0]):
        _not(path, "the table of personas with the columns act and prompt")
    roles: dict[str, str] = {}
    questions = []
    for row in rows:
        role, marker, first = row["prompt"].partition("My first ")
        name = re.sub(r"[^a-z0-9]+", "_", row["act"].lower()).strip("_")
        if marker and role.strip() and name not in roles:
            roles[name] = role.strip() + "\n\n"
            questions.append(marker + first)
    return [
        FileApplication(name=f"awesome_chatgpt_prompts/{name}", system=role, examples=(), questions=tuple(questions))
        for name, role in roles.items()
    ]


READERS: Mapping[str, Callable[[Path], list[FileApplication]]] = {
    "awesome_chatgpt_prompts": _awesome_chatgpt_prompts,
    "bbh": _bbh,
    "gsm8k": _gsm8k,
    "mmlu_cot": _mmlu_cot,
    "tau_bench": _tau_bench,
}


# ------------------------------------------------------------------ files
def _not(path: Path, what: str) -> NoReturn:
    raise ConfigError(f"`{path}` is not {what}; fetch the set again") from None


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be read ({error.strerror}); check `data_root`") from error
    if data.startswith(b"version https://git-lfs"):
        raise ConfigError(f"`{path}` is a Git LFS pointer, not the file itself; run `git lfs pull` where it came from")
    if data[:200].lstrip().lower().startswith((b"<!doctype", b"<html")):
        raise ConfigError(f"`{path}` is a saved web page, not the file itself; fetch the raw file")
    return data


def _text(path: Path) -> str:
    try:
        return _bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        _not(path, "UTF-8 text")


def _yaml(path: Path, what: str) -> Any:
    try:
        return OmegaConf.to_container(OmegaConf.create(_text(path)), resolve=False)
    except (OmegaConfBaseException, ValueError, TypeError):
        _not(path, what)
    except Exception as error:
        if type(error).__module__.startswith("yaml"):
            _not(path, what)
        raise


def _unpacked(path: Path, what: str) -> bytes:
    data = _bytes(path)
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError(f"`{path}` needs the package zstandard; pip install zstandard") from error
    try:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    except zstandard.ZstdError:
        _not(path, what)
