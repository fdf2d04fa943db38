"""Sizes that cannot work are refused from the configuration alone, and the size asked for is the least that works."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvshare_research.core.errors import ConfigError
from kvshare_research.engine.huggingface import shape_of
from kvshare_research.engine.tiny import Tiny
from kvshare_research.study.fitting import check_fits
from kvshare_research.workload.generated import GeneratedWorkload

BLOCK_BYTES_1 = Tiny().load(0).spec.block_bytes(1)  # by the model itself


def asking(prompt: int, output: int) -> GeneratedWorkload:
    return GeneratedWorkload(
        application_count=1, tenants_per_application=1, prompt_tokens=prompt, overlap=0.5, system_ratio=0.3,
        application_zipf_exponent=0.8, tenant_zipf_exponent=0.4, output_tokens_max=output, markup="plain", request_count=1,
    )  # fmt: skip


@given(st.integers(1, 64), st.integers(65, 400), st.integers(1, 40))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_the_size_asked_for_is_the_least_that_works(block: int, prompt: int, output: int) -> None:
    workload = asking(prompt, output)
    with pytest.raises(ConfigError, match="pool_bytes") as caught:
        check_fits(Tiny(block_tokens=block, pool_bytes=1), workload)
    asked = int(re.findall(r"expected (\d+) or more", str(caught.value))[0])
    check_fits(Tiny(block_tokens=block, pool_bytes=asked), workload)
    with pytest.raises(ConfigError):
        check_fits(Tiny(block_tokens=block, pool_bytes=asked - 1), workload)
    assert asked == BLOCK_BYTES_1 * block * -(-(prompt + output) // block)


def test_a_block_as_long_as_the_prompt_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"`engine\.block_tokens` is `256`"):
        check_fits(Tiny(block_tokens=256), asking(256, 4))
    check_fits(Tiny(block_tokens=255), asking(256, 4))


def test_a_folder_that_does_not_say_is_not_judged(tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert shape_of(str(tmp_path)) is None
    (tmp_path / "config.json").write_text('{"num_attention_heads": 9, "hidden_size": 576, "num_hidden_layers": 30}')
    assert shape_of(str(tmp_path)) == (30, 9, 64)
    (tmp_path / "config.json").write_text("[]")
    assert shape_of(str(tmp_path)) is None
