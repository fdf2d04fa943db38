"""What every index must do, told with tiny trees so that collisions of paths are the norm."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path as FilePath

from hydra.utils import instantiate
from omegaconf import OmegaConf

from kvshare_research.core.nouns import Chain
from kvshare_research.core.ports import Index, IndexStore

CONF = FilePath(__file__).parents[2] / "conf" / "index"
NAMES = sorted(p.stem for p in CONF.glob("*.yaml"))
COARSE = ("segment", "sentence")
EXACT = [name for name in NAMES if name not in COARSE]  # the same answers as the specification, block by block
UNIT_ENDS = (2, 3, 7)  # of every chain here, and its end
Path = tuple[int, ...]  # a block is a path of small choices from the root


@cache
def load(name: str) -> Index:
    index = instantiate(OmegaConf.load(CONF / f"{name}.yaml"))
    assert Index in type(index).__mro__, "a policy inherits its seam by name"
    return index  # type: ignore[no-any-return]


@cache
def block(path: Path) -> bytes:
    return hashlib.blake2b(bytes(path), digest_size=16).digest()


def parent(path: Path) -> bytes | None:
    return block(path[:-1]) if len(path) > 1 else None


def chain(path: Path) -> Chain:
    hashes = b"".join(block(path[:k]) for k in range(1, len(path) + 1))
    ends = (*(end for end in UNIT_ENDS if end < len(path)), len(path))
    return Chain(hashes=hashes, scope_ends=((0, len(path)),), block_tokens=16, unit_ends=ends)


def floor(name: str, path: Path, block_count: int) -> int:
    """A run of so many blocks in the unit of the index."""
    if name in EXACT:
        return block_count
    return max((end for end in (0, *UNIT_ENDS, len(path)) if end <= block_count), default=0)


def depths(store: IndexStore, path: Path) -> dict[tuple[int, int], int]:
    return {(r.node, r.tier): r.block_count for r in store.match(chain(path)).runs}
