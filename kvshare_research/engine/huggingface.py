"""Any causal language model that transformers loads: a local folder, or a name in its cache or the hub."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from kvshare_research.core.errors import ConfigError, EngineError

from .torch_spec import TorchEngineSpec

if TYPE_CHECKING:
    import torch

    from .base import Tokenizer


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFace(TorchEngineSpec):
    """`model` is a folder, or a name that transformers resolves (its own cache first, then the hub unless offline)."""

    model: str

    def open_model(self) -> tuple[str, torch.nn.Module, Tokenizer]:
        if not self.model:
            raise ConfigError(
                "`model` is empty, expected a model folder or a Hugging Face name, as in `engine.model=/models/mine`"
            )
        return Path(self.model).name, *open_folder(self.model, self.dtype)

    def open_tokenizer(self) -> Tokenizer:
        return open_tokenizer(self.model)

    def kv_shape(self) -> tuple[int, int, int] | None:
        return shape_of(self.model)


def shape_of(folder: str) -> tuple[int, int, int] | None:
    """Layers, KV heads and their dimension from a folder's config.json; None where it does not say.
    Raises EngineError if there is no such folder."""
    check_folder(folder)
    try:
        told = json.loads((Path(folder).expanduser() / "config.json").read_text(encoding="utf-8"))
        heads = int(told["num_attention_heads"])
        dim = int(told.get("head_dim") or int(told["hidden_size"]) // heads)
        return int(told["num_hidden_layers"]), int(told.get("num_key_value_heads") or heads), dim
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def check_folder(model: str) -> None:
    """Nothing, or an EngineError where `model` is written as a path and leads nowhere."""
    where = Path(model).expanduser()
    if (where.is_absolute() or model.startswith((".", "~"))) and not where.is_dir():
        raise EngineError(
            f"model folder `{model}` does not exist; give a folder with config.json, *.safetensors and tokenizer.json"
        )


def open_folder(model: str, dtype: str) -> tuple[torch.nn.Module, Tokenizer]:
    """The causal language model and its tokenizer, on the CPU, ready for inference. Raises EngineError in one line."""
    import transformers

    from .pool import TORCH_DTYPES
    from .tokenizer import HuggingFaceTokenizer

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    check_folder(model)
    where = Path(model).expanduser()
    source = str(where) if where.is_dir() else model
    try:
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype=TORCH_DTYPES[dtype], output_loading_info=True
        )
        tokenizer = HuggingFaceTokenizer.load(source)
    except Exception as error:  # transformers, safetensors and the hub raise a dozen unrelated types
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EngineError(
            f"model `{model}` cannot be loaded ({reason[:200]}); check or delete the folder and try again"
        ) from error
    network, loading = loaded
    absent = sorted(str(key) for kind in ("missing_keys", "mismatched_keys") for key in loading[kind])
    if absent:  # transformers would draw them at random
        raise EngineError(f"model `{model}` misses weights: `{absent[0]}` and {len(absent) - 1} more; get a whole copy")
    evaluated: torch.nn.Module = network.eval()
    return evaluated, tokenizer


def open_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of a folder or name alone. Raises EngineError in one line."""
    from .tokenizer import HuggingFaceTokenizer

    where = Path(model).expanduser()
    try:
        return HuggingFaceTokenizer.load(str(where) if where.is_dir() else model)
    except Exception as error:  # as in `open_folder`
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EngineError(f"the tokenizer of `{model}` cannot be loaded ({reason[:200]}); check the folder") from error
