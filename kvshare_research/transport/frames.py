"""Block transfer: one frame per (layer, run of blocks) with a checksum over header and bytes.

    u8 version | 3 spare | u32 header length | header (msgpack) | zeros up to 64 | payload

A frame counts only if its checksum holds, it fits the fetch it names, and it has not come before.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import xxhash
from msgspec import Struct
from numpy.typing import NDArray

from kvshare_research.core.rights import Ticket
from kvshare_research.transport.wire import WIRE_VERSION

FRAME_BYTES_MAX: Final = 1 << 20  # payload of one frame: small enough to share a link, large enough to be cheap
_ALIGN: Final = 64
_PREFIX: Final = struct.Struct("<B3xI")

Bytes = NDArray[np.uint8]


class PoolBytes(Protocol):
    """What a transfer needs of a block pool: layers as raw bytes."""

    @property
    def layer_count(self) -> int: ...

    @property
    def layer_block_bytes(self) -> int:
        """Bytes of one block in one layer."""

    def read_layer(self, layer: int, slots: Sequence[int]) -> Any:
        """Bytes of these slots in this layer, in order, as one contiguous buffer."""

    def write_layer(self, layer: int, slots: Sequence[int], data: Any) -> None:
        """The slots hold these bytes in this layer."""


class FrameHeader(Struct, array_like=True, frozen=True):
    """What the payload is. `tickets`, `origins` and `marks` are in the first frame of a fetch only."""

    case: int
    fetch_id: int
    layer: int
    start: int  # first block, counted within the fetch
    count: int
    block_count: int  # blocks of the whole fetch
    layer_count: int
    tickets: tuple[Ticket, ...] = ()
    origins: tuple[int, ...] = ()
    marks: bytes = b""
    checksum: bytes = b""


class FrameError(Exception):
    """The frame may not be used: damaged, or not part of the fetch it names."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FrameHeader)


def _checksum(header: FrameHeader, payload: Bytes) -> bytes:
    digest = xxhash.xxh3_128(_encoder.encode(msgspec.structs.replace(header, checksum=b"")))
    digest.update(payload.data)
    return digest.digest()


def seal(header: FrameHeader, payload: Bytes) -> Bytes:
    """The frame: header with its checksum, then the payload (copied)."""
    head = _encoder.encode(msgspec.structs.replace(header, checksum=_checksum(header, payload)))
    at = -(-(_PREFIX.size + len(head)) // _ALIGN) * _ALIGN
    frame = np.empty(at + payload.size, np.uint8)
    frame[:at] = 0
    frame[: _PREFIX.size + len(head)] = np.frombuffer(_PREFIX.pack(WIRE_VERSION, len(head)) + head, np.uint8)
    frame[at:] = payload
    return frame


def peek(frame: Bytes) -> tuple[FrameHeader, Bytes]:
    """Header and payload (a view), not yet verified; raises FrameError where there is no header."""
    try:
        version, size = _PREFIX.unpack_from(frame.data)
        if version != WIRE_VERSION or _PREFIX.size + size > frame.size:
            raise FrameError(f"frame of version {version}, expected {WIRE_VERSION}")
        header = _decoder.decode(frame.data[_PREFIX.size : _PREFIX.size + size])
    except (struct.error, msgspec.MsgspecError) as error:
        raise FrameError(f"no frame header: {error}") from error
    at = -(-(_PREFIX.size + size) // _ALIGN) * _ALIGN
    return header, frame[at:]


def verify(header: FrameHeader, payload: Bytes) -> None:
    """Raises FrameError unless header and payload are what the holder sealed."""
    if _checksum(header, payload) != header.checksum:
        raise FrameError(f"checksum of layer {header.layer}, blocks from {header.start} does not hold")


def as_bytes(buffer: Any) -> Bytes:
    """The buffer as flat uint8; copies nothing where it is contiguous."""
    array = np.ascontiguousarray(buffer)
    return array.reshape(-1).view(np.uint8)


def frames_of(
    first: FrameHeader, slots: Sequence[int], pool: PoolBytes, frame_bytes_max: int = FRAME_BYTES_MAX
) -> Iterator[Bytes]:
    """The frames of a fetch, layer by layer, read from the pool when asked for; `first` carries what all share."""
    run = max(1, frame_bytes_max // pool.layer_block_bytes)
    about = {"tickets": first.tickets, "origins": first.origins, "marks": first.marks}
    for layer in range(pool.layer_count):
        for start in range(0, len(slots), run):
            part = slots[start : start + run]
            header = msgspec.structs.replace(first, layer=layer, start=start, count=len(part), **about)
            yield seal(header, as_bytes(pool.read_layer(layer, part)))
            about = {"tickets": (), "origins": (), "marks": b""}


@dataclass(slots=True, kw_only=True)
class Landing:
    """A fetch on the asker's side, until every frame is in the pool."""

    fetch_id: int
    source: int
    slots: tuple[int, ...]
    started_us: int
    deadline_us: int
    tickets: tuple[Ticket, ...] = ()
    origins: tuple[int, ...] = ()
    marks: bytes = b""
    block_count: int | None = None
    payload_bytes: int = 0
    merge_us: int = 0
    _seen: set[tuple[int, int]] = field(default_factory=set)
    _parts_left: int = 0

    def accept(self, header: FrameHeader, payload: Bytes, pool: PoolBytes, now_us: Callable[[], int]) -> bool:
        """The frame is in the pool; True with the last one. Raises FrameError, and then wrote nothing."""
        verify(header, payload)
        if self.block_count is None:
            self._begin(header, pool)
        end = header.start + header.count
        fits = header.block_count == self.block_count and 0 <= header.layer < pool.layer_count
        fits = fits and 0 <= header.start < end <= header.block_count
        fits = fits and payload.size == header.count * pool.layer_block_bytes
        blocks = [(header.layer, block) for block in range(header.start, end)]
        if not fits or any(block in self._seen for block in blocks):
            raise FrameError(f"layer {header.layer}, blocks {header.start} to {end} are no part of this fetch")
        began_us = now_us()
        pool.write_layer(header.layer, self.slots[header.start : end], payload)
        self.merge_us += now_us() - began_us
        self._seen.update(blocks)
        if header.tickets:
            self.tickets, self.origins, self.marks = header.tickets, header.origins, header.marks
        self.payload_bytes += payload.size
        self._parts_left -= header.count
        return self._parts_left == 0

    def _begin(self, header: FrameHeader, pool: PoolBytes) -> None:
        if not 0 < header.block_count <= len(self.slots) or header.layer_count != pool.layer_count:
            raise FrameError(f"{header.block_count} blocks of {header.layer_count} layers were not asked for")
        self.block_count = header.block_count
        self._parts_left = header.block_count * pool.layer_count
