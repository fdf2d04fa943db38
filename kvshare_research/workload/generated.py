"""Generated prompts with a dialled overlap: real text of our own, cut so that the shared part is as long as asked."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import final

import numpy as np

from kvshare_research.core.errors import ConfigError
from kvshare_research.workload.asking import Ask, Popularity, chosen_templates, is_own_text, prompt_item
from kvshare_research.workload.base import PromptItem, Tokens, Workload, WorkloadInput, new_blocks
from kvshare_research.workload.cutting import Cut, MarkupTokens, check_markup, cut_for, cut_text, markup_tokens
from kvshare_research.workload.texts import REFERENCE_CHARACTERS, REFERENCE_LETTERS, load_application

PROMPT_TOKENS_MAX = 1 << 20  # the longest contexts that models are served with
REQUEST_COUNT_MAX = 100_000  # a tenth of the references, so that drawing an unused one stays quick


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedWorkload(Workload):
    """Prompts of `prompt_tokens` tokens: system prompt, few-shot examples, and a question nobody else asks.

    The first `overlap` of every prompt (within one block) is what its application has in common: the system prompt
    takes up to `system_ratio` of the prompt, examples the rest of the shared part. Where the catalogue gives the
    examples to the tenant, each tenant has its own. Layers are tokenised one by one. The shared part need not end on a
    block boundary: the block over its end also contains the question, has the question's tighter scope and is shared
    by nobody, so at most `block_tokens` - 1 tokens of the dialled overlap cannot be reused.

    `request_count` prompts are made, or so many that their different full blocks come to `working_set_over_pool` times
    the pool of all nodes together; where both are null the study says how many.
    """

    application_count: int
    tenants_per_application: int
    prompt_tokens: int
    overlap: float
    system_ratio: float
    application_zipf_exponent: float
    tenant_zipf_exponent: float
    output_tokens_max: int
    markup: str
    request_count: int | None = None
    working_set_over_pool: float | None = field(default=None)

    def __post_init__(self) -> None:
        between("application_count", self.application_count, 1, None)
        between("tenants_per_application", self.tenants_per_application, 1, None)
        between("prompt_tokens", self.prompt_tokens, 2, PROMPT_TOKENS_MAX)
        between("output_tokens_max", self.output_tokens_max, 1, None)
        between("system_ratio", self.system_ratio, 0, 1)
        between("application_zipf_exponent", self.application_zipf_exponent, 0, None)
        between("tenant_zipf_exponent", self.tenant_zipf_exponent, 0, None)
        if not 0 < self.overlap < 1:
            raise ConfigError(f"`workload.overlap` is `{self.overlap}`, expected a number above 0 and below 1")
        if self.request_count is not None and self.working_set_over_pool is not None:
            raise ConfigError("`workload` has both `request_count` and `working_set_over_pool`, expected one at most")
        if self.request_count is not None:
            between("request_count", self.request_count, 1, REQUEST_COUNT_MAX)
        if self.working_set_over_pool is not None and not 0 < self.working_set_over_pool < float("inf"):
            raise ConfigError(
                f"`workload.working_set_over_pool` is `{self.working_set_over_pool}`, expected a number above 0"
            )
        check_markup(self.markup)

    def make(self, given: WorkloadInput) -> list[PromptItem]:
        items = self._items(given)
        if self.working_set_over_pool is not None:
            return list(self._until_full(items, given))
        return [item for item, _ in zip(items, range(counted(self.request_count)), strict=False)]

    def _items(self, given: WorkloadInput) -> Iterator[PromptItem]:
        templates = chosen_templates(given, self.application_count, self.tenants_per_application)
        popularity = Popularity(
            application_zipf_exponent=self.application_zipf_exponent,
            tenant_zipf_exponent=self.tenant_zipf_exponent,
        )
        press = _Press(spec=self, given=given, markup=markup_tokens(self.markup, given.tokenizer))
        for ask in popularity.asks(templates, self.tenants_per_application, given):
            yield prompt_item(ask, given, press.layers(ask), self.output_tokens_max)

    def _until_full(self, items: Iterator[PromptItem], given: WorkloadInput) -> Iterator[PromptItem]:
        assert self.working_set_over_pool is not None
        if not given.pool_blocks:
            raise ConfigError("`workload.working_set_over_pool` needs to know the pool: no capacity was given")
        wanted_blocks = self.working_set_over_pool * given.pool_blocks
        made: list[PromptItem] = []

        def kept() -> Iterator[PromptItem]:
            for item in items:
                made.append(item)
                yield item

        seen_blocks = 0
        for count in new_blocks(kept(), given.block_tokens):
            seen_blocks += count
            yield made[-1]
            if seen_blocks >= wanted_blocks:
                return
            if len(made) == REQUEST_COUNT_MAX:
                raise ConfigError(
                    f"{REQUEST_COUNT_MAX} requests have {seen_blocks} blocks, fewer than the {wanted_blocks:.0f} "
                    "of `workload.working_set_over_pool`; lower it, lower `overlap` or take a smaller pool"
                )


@dataclass(slots=True)
class _Press:
    """Makes the tokens of a prompt; what requests have in common is made once."""

    spec: GeneratedWorkload
    given: WorkloadInput
    markup: MarkupTokens
    prefixes: dict[tuple[str, str], tuple[Cut, Tokens, Tokens]] = field(default_factory=dict)
    references: set[str] = field(default_factory=set)

    def layers(self, ask: Ask) -> tuple[Tokens, Tokens, Tokens]:
        owner = self.given.directory.tenants[ask.tenant_id - 1] if is_own_text(ask.template) else ""
        key = (ask.template.application, owner)
        if key not in self.prefixes:
            self.prefixes[key] = self.prefix(*key)
        cut, system, few_shot = self.prefixes[key]
        return system, few_shot, self.question(ask, cut.user_tokens)

    def prefix(self, application: str, owner: str) -> tuple[Cut, Tokens, Tokens]:
        """The shared layers of an application; with an owner, the examples are that tenant's own."""
        texts, markup, encode = load_application(application), self.markup, self.given.tokenizer.encode
        system_text = encode(texts.system)
        cut = cut_for(
            overlap=self.spec.overlap,
            system_ratio=self.spec.system_ratio,
            prompt_tokens=self.spec.prompt_tokens,
            system_available=len(markup.opening) + len(system_text),
            markup=markup,
            block_tokens=self.given.block_tokens,
        )
        ends_here = markup.turn if not cut.few_shot_tokens else markup.turn[:0]
        room = cut.system_tokens - len(markup.opening) - len(ends_here)
        system = np.concatenate([markup.opening, system_text[:room], ends_here])
        few_shot = markup.turn[:0]
        if cut.few_shot_tokens:
            rng = random.Random(f"{self.given.seed}/examples/{application}/{owner}")
            heading = f"\nExamples kept by {owner}:\n\n" if owner else "\nExamples:\n\n"
            pieces = (heading + text if i == 0 else text for i, text in enumerate(texts.example_texts(rng)))
            room = cut.few_shot_tokens - len(markup.turn)
            few_shot = np.concatenate([cut_text(self.given.tokenizer, pieces, room), markup.turn])
        return cut, system, few_shot

    def question(self, ask: Ask, token_count: int) -> Tokens:
        rng = random.Random(f"{self.given.seed}/question/{ask.index}")
        reference = "".join(rng.choices(REFERENCE_LETTERS, k=REFERENCE_CHARACTERS))
        while reference in self.references:
            reference = "".join(rng.choices(REFERENCE_LETTERS, k=REFERENCE_CHARACTERS))
        self.references.add(reference)
        pieces = load_application(ask.template.application).question_texts(rng, reference)
        room = token_count - len(self.markup.closing)
        return np.concatenate([cut_text(self.given.tokenizer, pieces, room), self.markup.closing])


def counted(request_count: int | None) -> int:
    """The count; ConfigError where nobody has said it."""
    if request_count is None:
        raise ConfigError("`workload.request_count` is null and no study says how many requests are made")
    return request_count


def between(name: str, value: float, lowest: float, highest: float | None) -> None:
    """Nothing, if the value is in range; else a ConfigError that names it."""
    if isinstance(value, bool) or value < lowest or (highest is not None and value > highest):
        upper = "" if highest is None else f" and at most {highest}"
        raise ConfigError(f"`workload.{name}` is `{value}`, expected at least {lowest}{upper}")
