"""The applications shipped with the project: a system prompt, worked examples, and endlessly many questions each.

All text is our own. A file of `texts/applications/` is one application; `cases` and `details` are templates
whose `{slots}` are filled from lists, so that thousands of distinct questions come from one page.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Formatter
from typing import Any

from omegaconf import OmegaConf

from kvshare_research.core.errors import ConfigError, did_you_mean

# Characters of a question's reference; look-alikes left out. Four give more than a million references.
REFERENCE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
REFERENCE_CHARACTERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TextApplication:
    """One application's texts. Examples and cases are (question, answer)."""

    name: str
    title: str
    system: str
    examples: tuple[tuple[str, str], ...]
    cases: tuple[tuple[str, str], ...]
    details: tuple[str, ...]
    slots: dict[str, tuple[str, ...]]
    first_names: tuple[str, ...]
    last_names: tuple[str, ...]

    def example_texts(self, rng: random.Random) -> Iterator[str]:
        """Worked examples in an order that `rng` chooses: first the written ones, then filled cases without end."""
        for question, answer in rng.sample(self.examples, len(self.examples)):
            yield f"Q: {question}\nA: {answer}\n\n"
        while True:
            question, answer = rng.choice(self.cases)
            values = self._values(rng, question + answer)
            yield _sentence(f"Q: {question.format_map(values)}\nA: ") + _sentence(answer.format_map(values)) + "\n\n"

    def question_texts(self, rng: random.Random, reference: str) -> Iterator[str]:
        """Sentences of one question: it opens with its unique reference, and details follow without end."""
        question, _ = rng.choice(self.cases)
        yield f"{reference}: {_sentence(question.format_map(self._values(rng, question)))}"
        yield f" Asked by {rng.choice(self.first_names)} {rng.choice(self.last_names)}."
        while True:
            for detail in rng.sample(self.details, len(self.details)):
                yield " " + _sentence(detail.format_map(self._values(rng, detail)))

    def _values(self, rng: random.Random, template: str) -> dict[str, str]:
        names = sorted({name for _, name, _, _ in Formatter().parse(template) if name})
        return {name: rng.choice(self.slots[name]) for name in names}


def _sentence(text: str) -> str:
    """The text with a capital at its beginning, where a slot may have come first."""
    return text[:1].upper() + text[1:]


@cache
def application_names() -> tuple[str, ...]:
    """Names of the shipped applications, sorted."""
    folder = resources.files(__package__) / "texts" / "applications"
    return tuple(sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")))


@cache
def load_application(name: str) -> TextApplication:
    """The shipped application of this name; ConfigError with the nearest name where there is none."""
    if name not in application_names():
        raise ConfigError(f"no texts for application `{name}`{did_you_mean(name, application_names())}")
    page, people = _page(f"applications/{name}.yaml"), _page("people.yaml")
    return TextApplication(
        name=name,
        title=page["title"],
        system=page["system"],
        examples=tuple((e["question"], e["answer"]) for e in page["examples"]),
        cases=tuple((c["question"], c["answer"]) for c in page["cases"]),
        details=tuple(page["details"]),
        slots={slot: tuple(str(v) for v in values) for slot, values in page["slots"].items()},
        first_names=tuple(people["first"]),
        last_names=tuple(people["last"]),
    )


def _page(path: str) -> dict[str, Any]:
    text = (resources.files(__package__) / "texts" / path).read_text(encoding="utf-8")
    page = OmegaConf.to_container(OmegaConf.create(text))
    assert isinstance(page, dict)
    return {str(key): value for key, value in page.items()}
