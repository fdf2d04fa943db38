"""Cutting text to token counts: how many tokens each layer of a prompt gets, and the tokens themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kvshare_research.core.errors import ConfigError, did_you_mean
from kvshare_research.workload.base import Tokenizer, Tokens

# Enough for the reference that makes a question unique, at one character a token.
QUESTION_TOKENS_MIN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Markup:
    """What a model's chat format puts before the system text, between system and user text, and before the answer."""

    opening: str
    turn: str
    closing: str


MARKUPS = {
    "plain": Markup(opening="", turn="", closing=""),
    "chatml": Markup(
        opening="<|im_start|>system\n",
        turn="<|im_end|>\n<|im_start|>user\n",
        closing="<|im_end|>\n<|im_start|>assistant\n",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkupTokens:
    """A chat format in tokens. `opening` begins the prompt, `turn` ends its shared part, `closing` ends it."""

    opening: Tokens
    turn: Tokens
    closing: Tokens


def check_markup(name: str) -> None:
    """Nothing, if the chat format is known; else a ConfigError with the nearest name."""
    if name not in MARKUPS:
        raise ConfigError(f"`workload.markup` is `{name}`, expected a known chat format{did_you_mean(name, MARKUPS)}")


def markup_tokens(name: str, tokenizer: Tokenizer) -> MarkupTokens:
    """The chat format of this name in the tokenizer's ids; ConfigError for an unknown name."""
    check_markup(name)
    texts = MARKUPS[name]
    return MarkupTokens(
        opening=tokenizer.encode(texts.opening),
        turn=tokenizer.encode(texts.turn),
        closing=tokenizer.encode(texts.closing),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Tokens of the three layers, markup included; `few_shot_tokens` may be 0."""

    system_tokens: int
    few_shot_tokens: int
    user_tokens: int

    @property
    def shared_tokens(self) -> int:
        return self.system_tokens + self.few_shot_tokens


def cut_for(
    *,
    overlap: float,
    system_ratio: float,
    prompt_tokens: int,
    system_available: int,
    markup: MarkupTokens,
    block_tokens: int,
) -> Cut:
    """Layer sizes whose shared part is within one block of `overlap` x `prompt_tokens`.

    The system prompt takes up to `system_ratio` of the prompt and never more than the `system_available` tokens
    that its text has; examples take the rest of the shared part. ConfigError where the dial cannot be met because
    the chat format and the shortest question leave no room.
    """
    aim = round(overlap * prompt_tokens)
    opening, turn, closing = len(markup.opening), len(markup.turn), len(markup.closing)
    lowest, highest = opening + turn + 1, prompt_tokens - closing - QUESTION_TOKENS_MIN
    shared = min(max(aim, lowest), highest)
    if shared < lowest or abs(shared - overlap * prompt_tokens) > block_tokens:
        raise ConfigError(
            f"`workload.overlap` {overlap} of {prompt_tokens} prompt tokens is {aim} shared tokens, but chat format "
            f"and question allow {lowest} to {highest}; change `overlap` or enlarge `prompt_tokens`"
        )
    system = min(shared, max(round(system_ratio * prompt_tokens), lowest), system_available)
    few_shot = shared - system
    if 0 < few_shot <= turn:  # the turn marker must fit into the layer it ends
        few_shot = turn + 1
    return Cut(system_tokens=shared - few_shot, few_shot_tokens=few_shot, user_tokens=prompt_tokens - shared)


def cut_text(tokenizer: Tokenizer, pieces: Iterable[str], token_count: int) -> Tokens:
    """The first `token_count` tokens of the pieces put together; draws only as many pieces as needed.

    The text is encoded in one go, so that no token boundary depends on where a piece ends.
    """
    text, source = "", iter(pieces)
    while True:
        target_characters = max(2 * len(text), 6 * token_count)
        while len(text) < target_characters:
            piece = next(source, None)
            if piece is None:
                target_characters = -1
                break
            text += piece
        tokens = tokenizer.encode(text)
        if len(tokens) >= token_count + 8 or target_characters < 0:
            break
    if len(tokens) < token_count:
        raise ConfigError(f"the text has {len(tokens)} tokens, {token_count} are needed; shorten `prompt_tokens`")
    return tokens[:token_count].astype(np.uint32, copy=False)
