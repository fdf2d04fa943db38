"""What the tests of this folder share: two real tokenizers, parties, and an input."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from omegaconf import OmegaConf

from kvshare_research.workload.base import Tokens, WorkloadInput
from kvshare_research.workload.generated import GeneratedWorkload
from kvshare_research.workload.parties import load_parties

CONF = Path(__file__).parents[2] / "conf"


class ByteTokenizer:
    """One token for each byte of UTF-8: nothing merges, so every offset can be checked by hand."""

    def encode(self, text: str) -> Tokens:
        return np.frombuffer(text.encode(), np.uint8).astype(np.uint32)

    def decode(self, tokens: Tokens) -> str:
        return tokens.astype(np.uint8).tobytes().decode()


class WordTokenizer:
    """One token for each mark, or up to six letters with the space before, numbered by CRC-32."""

    def encode(self, text: str) -> Tokens:
        words = re.findall(r" ?\w{1,6}|\s+|[^\w\s]", text)
        return np.array([self._crc(w) for w in words], np.uint32)

    def decode(self, tokens: Tokens) -> str:
        raise NotImplementedError("ids are checksums")

    @staticmethod
    @cache
    def _crc(word: str) -> int:
        return crc32(word.encode())


def table(name: str) -> dict[str, Any]:
    value = OmegaConf.to_container(OmegaConf.load(CONF / "tenants" / f"{name}.yaml"))
    assert isinstance(value, dict)
    return value


def given(parties: str = "demo", tokenizer: Any = None, seed: int = 0, **more: Any) -> WorkloadInput:
    directory, catalogue = load_parties(table(parties), f"conf/tenants/{parties}.yaml")
    values: dict[str, Any] = {"block_tokens": 16, "node_count": 2} | more
    return WorkloadInput(
        tokenizer=tokenizer or WordTokenizer(), directory=directory, catalogue=catalogue, seed=seed, **values
    )


def spec(**changes: Any) -> GeneratedWorkload:
    values = OmegaConf.to_container(OmegaConf.load(CONF / "workload" / "generated.yaml"))
    assert isinstance(values, dict)
    del values["_target_"]
    return GeneratedWorkload(**(values | {"request_count": 24} | changes))
