"""Prompts from public sets at a configured path: real prefixes at their natural length, real questions behind them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import numpy as np

from kvshare_research.core.errors import ConfigError, did_you_mean
from kvshare_research.workload.asking import Popularity, prompt_item
from kvshare_research.workload.base import PromptItem, Tokens, Workload, WorkloadInput
from kvshare_research.workload.catalogue import Template
from kvshare_research.workload.cutting import MarkupTokens, check_markup, markup_tokens
from kvshare_research.workload.generated import REQUEST_COUNT_MAX, between, counted
from kvshare_research.workload.prompt_sets import READERS, FileApplication, read_set

QUESTIONS_SHARE = 0.5  # of a longest prompt that is kept free for questions when examples are fitted in


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFilesWorkload(Workload):
    """`request_count` prompts from `sets` below `data_root`, none longer than `prompt_tokens_max`.

    Of each set the first `applications_per_set` applications are asked, under the catalogue's template of the set's
    name. Texts are never cut: examples are left out from the last, whole, until a question of usual length fits, and
    questions that still do not fit are not asked. An application none of whose questions fit is a ConfigError. The
    overlap is what it is; every item says its own.
    """

    data_root: str | None
    sets: tuple[str, ...]
    applications_per_set: int
    tenants_per_application: int
    request_count: int | None
    prompt_tokens_max: int
    application_zipf_exponent: float
    tenant_zipf_exponent: float
    output_tokens_max: int
    markup: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "sets", tuple(self.sets))
        for name in self.sets:
            if name not in READERS:
                raise ConfigError(f"`workload.sets` has unknown set `{name}`{did_you_mean(name, READERS)}")
        if self.request_count is not None:
            between("request_count", self.request_count, 1, REQUEST_COUNT_MAX)
        if not self.sets:
            raise ConfigError(f"`workload.sets` is empty{did_you_mean('', READERS)}")
        for name in ("applications_per_set", "tenants_per_application", "prompt_tokens_max", "output_tokens_max"):
            between(name, getattr(self, name), 1, None)
        for name in ("application_zipf_exponent", "tenant_zipf_exponent"):
            between(name, getattr(self, name), 0, None)
        check_markup(self.markup)

    def make(self, given: WorkloadInput) -> list[PromptItem]:
        applications = self._applications()
        templates = [self._template(a, given) for a in applications]
        presses = {a.name: self._press(a, given) for a in applications}
        popularity = Popularity(
            application_zipf_exponent=self.application_zipf_exponent,
            tenant_zipf_exponent=self.tenant_zipf_exponent,
        )
        asks = popularity.asks(templates, self.tenants_per_application, given)
        items = []
        for ask, _ in zip(asks, range(counted(self.request_count)), strict=False):
            layers = presses[ask.template.application].next_layers()
            items.append(prompt_item(ask, given, layers, self.output_tokens_max))
        return items

    def _applications(self) -> list[FileApplication]:
        if not self.data_root:
            raise ConfigError("`workload.data_root` is not set; set `data_root` or the variable KVSHARE_DATA")
        root = Path(self.data_root)
        return [a for name in self.sets for a in read_set(name, root)[: self.applications_per_set]]

    def _template(self, application: FileApplication, given: WorkloadInput) -> Template:
        template = given.catalogue.template(application.name.partition("/")[0])
        if len(template.tenant_ids) < self.tenants_per_application:
            raise ConfigError(
                f"`workload.tenants_per_application` is {self.tenants_per_application}, but `{template.application}` "
                f"has {len(template.tenant_ids)} tenants"
            )
        return replace(template, application=application.name)

    def _press(self, application: FileApplication, given: WorkloadInput) -> _Press:
        encode, markup = given.tokenizer.encode, markup_tokens(self.markup, given.tokenizer)
        rng = random.Random(f"{given.seed}/questions/{application.name}")
        questions = rng.sample(application.questions, len(application.questions))
        room = self.prompt_tokens_max - len(markup.opening) - len(markup.turn) - len(markup.closing)
        system = encode(application.system)
        few_shot = encode("")
        for count in range(len(application.examples), 0, -1):
            few_shot = encode("".join(application.examples[:count]))
            if len(system) + len(few_shot) <= room * (1 - QUESTIONS_SHARE):
                break
            few_shot = few_shot[:0]
        press = _Press(
            system=np.concatenate([markup.opening, system, markup.turn if not len(few_shot) else markup.turn[:0]]),
            few_shot=np.concatenate([few_shot, markup.turn]) if len(few_shot) else few_shot,
            question_room=room - len(system) - len(few_shot),
            questions=questions,
            markup=markup,
            given=given,
        )
        press.check(application, self.prompt_tokens_max)
        return press


@dataclass(slots=True)
class _Press:
    """The shared layers of one application, and its questions in turn; after the last the first comes again."""

    system: Tokens
    few_shot: Tokens
    question_room: int
    questions: list[str]
    markup: MarkupTokens
    given: WorkloadInput
    position: int = field(default=0)

    def check(self, application: FileApplication, prompt_tokens_max: int) -> None:
        """Nothing, if some question fits; else a ConfigError with the smallest length at which one would."""
        # The shortest text has, for practical purposes, the fewest tokens; others are looked at when it fails.
        lengths: Iterator[int] = (len(self.given.tokenizer.encode(q)) for q in sorted(self.questions, key=len))
        shortest = next(lengths)
        if shortest > self.question_room:
            shortest = min([shortest, *lengths])
        if shortest > self.question_room:
            needed_tokens = prompt_tokens_max - self.question_room + shortest
            raise ConfigError(
                f"`workload.prompt_tokens_max` is {prompt_tokens_max}, but `{application.name}` needs {needed_tokens} "
                "for its prefix and its shortest question"
            )

    def next_layers(self) -> tuple[Tokens, Tokens, Tokens]:
        while True:  # ends: some question fits
            question = self.given.tokenizer.encode(self.questions[self.position % len(self.questions)])
            self.position += 1
            if len(question) <= self.question_room:
                return self.system, self.few_shot, np.concatenate([question, self.markup.closing])
