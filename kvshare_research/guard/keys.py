"""The root secret and the keys derived from it. Nothing here can be printed, pickled or compared by accident.

One root secret stands behind every block hash; `hkdf_sha256` (RFC 5869) derives one independent key per
namespace. A secret comes from a file or the environment; simulations and demonstrations derive it from the seed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, Self, final

from kvshare_research.core.errors import ConfigError

ENVIRONMENT_VARIABLE = "KVSHARE_ROOT_SECRET"
KEY_BYTES = 32
SECRET_BYTES_MIN = 32  # a shorter secret could be guessed offline from a published hash
_SALT = b"kvshare-research/root/v1"


def hkdf_sha256(secret: bytes, *, salt: bytes, info: bytes, size_bytes: int = KEY_BYTES) -> bytes:
    """`size_bytes` of key for `info`, independent between different `info` (RFC 5869, sections 2.2 and 2.3)."""
    if not 0 < size_bytes <= 255 * 32:
        raise ValueError(f"HKDF-SHA256 gives 1..8160 bytes, not {size_bytes}")
    extracted = hmac.digest(salt, secret, hashlib.sha256)
    block, out = b"", b""
    for counter in range(1, -(-size_bytes // 32) + 1):
        block = hmac.digest(extracted, block + info + bytes([counter]), hashlib.sha256)
        out += block
    return out[:size_bytes]


@final
class RootSecret:
    """The one secret of a deployment. Only `derive` and `expose` (for the broadcast to ranks) ever use it."""

    __slots__ = ("__material",)

    def __init__(self, material: bytes, *, origin: str) -> None:
        if len(material) < SECRET_BYTES_MIN:
            raise ConfigError(
                f"the root secret from {origin} has {len(material)} bytes, expected at least {SECRET_BYTES_MIN}"
            )
        self.__material = material

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """The content of `path` without trailing newlines; refused if anybody but its owner may read it."""
        file = Path(path)
        try:
            mode, material = file.stat().st_mode, file.read_bytes()
        except OSError as error:
            raise ConfigError(f"root secret file `{file}` cannot be read: {error.strerror}") from error
        if mode & 0o077:
            raise ConfigError(f"root secret file `{file}` is open to others, expected mode 600: chmod 600 {file}")
        return cls(material.rstrip(b"\r\n"), origin=f"file `{file}`")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """The value of KVSHARE_ROOT_SECRET."""
        if ENVIRONMENT_VARIABLE not in environment:
            raise ConfigError(f"no root secret: set {ENVIRONMENT_VARIABLE} or `secret_file`")
        return cls(environment[ENVIRONMENT_VARIABLE].encode(), origin=ENVIRONMENT_VARIABLE)

    @classmethod
    def from_seed(cls, seed: int) -> Self:
        """A secret that anybody who knows the seed knows too: for simulations and demonstrations only."""
        return cls(hashlib.sha256(b"kvshare-research/seed/v1:%d" % seed).digest(), origin="the seed")

    @classmethod
    def resolve(cls, *, path: str | Path | None, seed: int | None, environment: Mapping[str, str] = os.environ) -> Self:
        """The file if named, else the environment if set, else the seed if one is allowed; else a ConfigError."""
        if path is not None:
            return cls.from_file(path)
        if seed is not None and ENVIRONMENT_VARIABLE not in environment:
            return cls.from_seed(seed)
        return cls.from_environment(environment)

    def derive(self, info: bytes) -> bytes:
        """The 32-byte key for `info`."""
        return hkdf_sha256(self.__material, salt=_SALT, info=info)

    def expose(self) -> bytes:
        """The secret itself, for the driver that broadcasts it to its own ranks; never log it."""
        return self.__material

    def __repr__(self) -> str:
        return "RootSecret(<hidden>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a root secret is not pickled or copied; use expose() where that is meant")


@final
class KeyRing:
    """Keys by `info`, derived once each. Holds the root; neither printed nor pickled."""

    __slots__ = ("__keys", "__root")

    def __init__(self, root: RootSecret) -> None:
        self.__root = root
        self.__keys: dict[bytes, bytes] = {}

    def key(self, info: bytes) -> bytes:
        """The key for `info`; the same in every process that has the same root secret."""
        key = self.__keys.get(info)
        if key is None:
            key = self.__keys[info] = self.__root.derive(info)
        return key

    def __repr__(self) -> str:
        return "KeyRing(<hidden>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key ring is not pickled or copied; build one from the root secret")
