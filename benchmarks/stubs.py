"""Single modules of large packages, imported without the rest: what they import and do not use here is a dummy."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


class _Meta(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Dummy

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __getitem__(cls, key: Any) -> Any:
        return cls


class Dummy(metaclass=_Meta):
    """Stands for whatever is asked of it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else Dummy()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Dummy()

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (Dummy,), {}) if name[:1].isupper() else Dummy()
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, prefixes: Sequence[str]) -> None:
        self._prefixes = prefixes

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if any(name == p or name.startswith(p + ".") for p in self._prefixes):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        module = _Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: ModuleType) -> None: ...


def folder_of(package: str) -> Path:
    """Where the package lies; raises ImportError."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"no package `{package}`")
    return Path(spec.submodule_search_locations[0])


def bare(package: str) -> None:
    """`package` counts as imported, without its `__init__` having run."""
    if package not in sys.modules:
        module = ModuleType(package)
        module.__path__ = [str(folder_of(package))]
        module.__spec__ = importlib.machinery.ModuleSpec(package, None, is_package=True)
        sys.modules[package] = module


VLLM_UNUSED = [
    f"vllm.{part}"
    for part in (
        "config", "distributed", "inputs", "lora", "model_executor", "multimodal", "platforms", "pooling_params",
        "sampling_params", "tasks", "transformers_utils", "usage", "utils.mem_utils", "utils.torch_utils",
        "v1.core.sched", "v1.hisparse", "v1.kv_cache_interface", "v1.metrics", "v1.request", "v1.utils",
    )
]  # fmt: skip


def vllm() -> tuple[Any, Any, Any]:
    """vLLM's modules `block_pool`, `kv_cache_utils` and `hashing`; raises ImportError."""
    bare("vllm")
    sys.meta_path.insert(0, _Finder(VLLM_UNUSED))
    from vllm.utils import hashing  # type: ignore[import-not-found]
    from vllm.v1.core import block_pool, kv_cache_utils  # type: ignore[import-not-found]

    return block_pool, kv_cache_utils, hashing


def vllm_chain(seed: str) -> Callable[[list[int], int], list[bytes]]:
    """vLLM's own `sha256_cbor` chain of a prompt."""
    _, kv_cache_utils, hashing = vllm()
    os.environ["PYTHONHASHSEED"] = seed  # where it takes its seed from
    kv_cache_utils.init_none_hash(hashing.sha256_cbor)

    def chain(tokens: list[int], block_tokens: int) -> list[bytes]:
        parent, out = None, []
        for start in range(0, len(tokens), block_tokens):
            block = tokens[start : start + block_tokens]
            parent = kv_cache_utils.hash_block_tokens(hashing.sha256_cbor, parent, block)
            out.append(parent)
        return out

    return chain


def sglang_tree() -> Any:
    """SGLang's tree in Rust, a module of its own; raises ImportError."""
    (file,) = folder_of("sglang").glob("srt/mem_cache/rust_tree_core/mem_cache*.so")
    spec = importlib.util.spec_from_file_location("mem_cache", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
