"""The YAML files of this folder compose under Hydra and work with the default model's tokenizer."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from kvshare_research.workload.azure import AzureTrace
from kvshare_research.workload.base import distinct_blocks
from kvshare_research.workload.claude_code import ClaudeCodeTrace
from kvshare_research.workload.conversations import ConversationTrace
from kvshare_research.workload.generated import GeneratedWorkload
from kvshare_research.workload.mooncake import MooncakeTrace
from kvshare_research.workload.prompt_files import PromptFilesWorkload
from kvshare_research.workload.ragpulse import RagPulseTrace
from kvshare_research.workload.servegen import ServeGenTrace

from .kit import CONF, given


def composed(group: str, name: str, *overrides: str):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(overrides=[f"+{group}={name}", "+data_root=/nowhere", *overrides])
    return instantiate(config[group])


@pytest.mark.parametrize(
    ("group", "name", "kind"),
    [
        ("workload", "generated", GeneratedWorkload),
        ("workload", "generated_eviction", GeneratedWorkload),
        ("workload", "prompt_files", PromptFilesWorkload),
        ("workload", "mooncake", MooncakeTrace),
        ("workload", "ragpulse", RagPulseTrace),
        ("workload", "azure", AzureTrace),
        ("workload", "servegen", ServeGenTrace),
        ("workload", "claude_code", ClaudeCodeTrace),
        ("workload", "conversations", ConversationTrace),
    ],
)
def test_every_file_composes_and_builds(group, name, kind):
    assert type(composed(group, name)) is kind


def test_every_file_is_named_above():
    mark = next(m for m in test_every_file_composes_and_builds.pytestmark if m.name == "parametrize")
    assert {p.stem for p in (CONF / "workload").glob("*.yaml")} == {row[1] for row in mark.args[1]}


def test_eviction_differs_from_generated_only_in_what_it_says():
    plain, eviction = (OmegaConf.load(CONF / "workload" / f"{n}.yaml") for n in ("generated", "generated_eviction"))
    assert eviction.working_set_over_pool == 2.0
    built = composed("workload", "generated_eviction")
    assert built.prompt_tokens == plain.prompt_tokens
    items = built.make(given("saas", pool_blocks=200))
    assert 400 <= distinct_blocks(items, 16) < 416


@pytest.mark.model
@pytest.mark.parametrize("overlap", [0.30, 0.50, 0.80, 0.90, 0.95])
def test_the_default_models_tokenizer_meets_every_dial(overlap):
    smollm = pytest.importorskip("kvshare_research.engine.smollm")
    pytest.importorskip("tokenizers")
    from kvshare_research.engine.gguf import GgufFile
    from kvshare_research.engine.tokenizer import HuggingFaceTokenizer

    inner = smollm.tokenizer_of(GgufFile(smollm.find_gguf()))
    tokenizer = HuggingFaceTokenizer(inner, "test", inner.get_vocab_size())
    items = composed("workload", "generated", f"workload.overlap={overlap}", "workload.request_count=24").make(
        given(tokenizer=tokenizer)
    )
    for item in items:
        assert abs(item.overlap - overlap) * 256 < 2
        shared, tail = item.tokens[: item.tenant_shared_tokens], item.tokens[item.tenant_shared_tokens :]
        # The chat marks are single tokens of this model, and each is where the format wants it.
        starts = [i for i, t in enumerate(item.tokens) if t == inner.token_to_id("<|im_start|>")]
        assert len(starts) == 3
        assert starts[0] == 0
        assert tokenizer.decode(shared).endswith("<|im_end|>\n<|im_start|>user\n")
        assert tokenizer.decode(tail).endswith("<|im_end|>\n<|im_start|>assistant\n")
