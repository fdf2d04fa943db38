"""Compiled hash tables of the flat index: block keys to ids, and counts of copies beyond the first.

`slots` is open addressing with linear probing; a slot is fingerprint (32 bits) | id (32 bits), 0 is empty; the
fingerprint alone gives the home. `extra` has rows of `id << 20 | column, count`.

Compiled code is cached beside each file and does not notice changes in another: after editing this file, touch
`kernels.py`.
"""

# Numba types come from the signatures; masks and keys are uint64 throughout (a mixed expression would become a float).
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

U = np.uint64
KEY_WORDS = 2
PARENT, CHILD, NEXT, PREV = range(4)
UNKNOWN, FREE = -1, -2  # values of links[id, PARENT]: parent not announced yet; id on the free list
# Counters and cursors in `meta`, int64.
LIVE, NEXT_ID, FREE_ID, ENTRIES, EXTRAS, HAND, DROPPED, REFUSED, CONTRADICTIONS, META_SIZE = range(10)


class Tables(NamedTuple):
    """All of an index. `unrooted[column]` counts what a column holds without holding all ancestors of it."""

    slots: NDArray[np.uint64]
    rows: NDArray[np.uint64]
    links: NDArray[np.int32]
    meta: NDArray[np.int64]
    unrooted: NDArray[np.int64]
    extra: NDArray[np.uint64]


SLOTS, ROWS = nb.uint64[::1], nb.uint64[:, ::1]
TABLES = types.NamedTuple(  # type: ignore[no-untyped-call]
    [SLOTS, ROWS, nb.int32[:, ::1], nb.int64[::1], nb.int64[::1], ROWS], Tables
)
KEYS = types.Array(types.uint64, 2, "C", readonly=True)
OFFSETS = types.Array(types.int64, 1, "C", readonly=True)
F = TypeVar("F")


def jit(*signature: Any, forceinline: bool = False) -> Callable[[F], F]:
    """Compiled when this module is imported, once: later imports read the result from disk."""
    njit: Any = nb.njit
    options = {"cache": True, "nogil": True, "boundscheck": False, "error_model": "numpy", "forceinline": forceinline}
    return njit(*signature, **options)  # type: ignore[no-any-return]


def _ctz(_context: Any, word: Any) -> Any:
    """Number of the lowest set bit; undefined for 0."""

    def codegen(_c: Any, builder: Any, _s: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen


def _prefetch(_context: Any, array: Any, index: Any) -> Any:
    """Row `index` of an array is on its way to the cache; any index within the array, no effect on values."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = sig.args[0]
        made = context.make_array(kind)(context, builder, args[0])
        at = [args[1]] + [context.get_constant(types.intp, 0)] * (kind.ndim - 1)
        where = cgutils.get_item_pointer(  # type: ignore[no-untyped-call]
            context, builder, kind, made, at, wraparound=False
        )
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], _PREFETCH_TYPE)
        to_read, keep, data = (ir.Constant(word, n) for n in (0, 3, 1))
        builder.call(function, [builder.bitcast(where, byte), to_read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


_PREFETCH_TYPE = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), *[ir.IntType(32)] * 3])
ctz: Any = intrinsic(_ctz)
prefetch: Any = intrinsic(_prefetch)


# ------------------------------------------------------------- the table of slots
@jit(forceinline=True)
def mix(k0: Any, k1: Any) -> Any:
    """32 well-mixed bits of a key of two words."""
    x = (k0 ^ (k1 >> U(29))) * U(0x9E3779B97F4A7C15) + k1
    return (x ^ (x >> U(31))) * U(0xD6E8FEB86659FD93) >> U(32)


@jit(forceinline=True)
def find(slots: Any, rows: Any, k0: Any, k1: Any) -> Any:
    """The id of a key, or 0."""
    mask, mark = U(len(slots) - 1), mix(k0, k1)
    i = mark & mask
    while slots[i] != U(0):
        if slots[i] >> U(32) == mark:
            block = slots[i] & U(0xFFFFFFFF)
            if rows[block, U(0)] == k0 and rows[block, U(1)] == k1:
                return np.int64(block)
        i = (i + U(1)) & mask
    return np.int64(0)


@jit(forceinline=True)
def announce(slots: Any, rows: Any, links: Any, keys: Any, at: Any) -> None:
    """The cache is asked for what `find` will read of keys some places after `at`: a table is larger than any cache."""
    mask, far, near = U(len(slots) - 1), at + 12, at + 6
    if far < len(keys):
        prefetch(slots, np.int64(mix(keys[far, 0], keys[far, 1]) & mask))
    if near < len(keys):
        slot = slots[mix(keys[near, 0], keys[near, 1]) & mask]
        prefetch(rows, np.int64(slot & U(0xFFFFFFFF)))
        prefetch(links, np.int64(slot & U(0xFFFFFFFF)))


@jit(forceinline=True)
def place(slots: Any, value: Any) -> None:
    """`value` is in the first free slot of its probe sequence."""
    mask = U(len(slots) - 1)
    i = (value >> U(32)) & mask
    while slots[i] != U(0):
        i = (i + U(1)) & mask
    slots[i] = value


@jit((SLOTS, SLOTS))
def rehash(old: Any, new: Any) -> None:
    """Every slot of `old` is in the empty `new`."""
    for s in old:
        if s != U(0):
            place(new, s)


@jit(forceinline=True)
def erase(t: Any, block: Any) -> None:
    """No slot names `block` any more, and every probe sequence through it still finds what it found."""
    slots, rows = t.slots, t.rows
    mask, mark = U(len(slots) - 1), mix(rows[block, 0], rows[block, 1])
    value = (mark << U(32)) | U(block)
    i = mark & mask
    while slots[i] != value:
        i = (i + U(1)) & mask
    j = i
    while True:  # close the gap: move back what may stand nearer to its home
        j = (j + U(1)) & mask
        if slots[j] == U(0):
            break
        home = (slots[j] >> U(32)) & mask
        if ((j - home) & mask) >= ((j - i) & mask):
            slots[i] = slots[j]
            i = j
    slots[i] = U(0)


# ------------------------------------------------------------- copies beyond the first
@jit()
def _extra_home(key: Any, mask: Any) -> Any:
    return (key * U(0x9E3779B97F4A7C15) >> U(20)) & mask


@jit(forceinline=True)
def extra_at(extra: Any, key: Any) -> Any:
    """The row of a key, or of the empty row where it would go."""
    mask = U(len(extra) - 1)
    i = _extra_home(key, mask)
    while extra[i, U(0)] != U(0) and extra[i, U(0)] != key:
        i = (i + U(1)) & mask
    return i


@jit()
def extra_drop(t: Any, key: Any) -> None:
    """The extra count of `key` is gone, if there was one."""
    meta, extra = t.meta, t.extra
    mask, i = U(len(extra) - 1), extra_at(extra, key)
    if extra[i, U(0)] == U(0):
        return
    meta[EXTRAS] -= 1
    j = i
    while True:
        j = (j + U(1)) & mask
        if extra[j, U(0)] == U(0):
            break
        if ((j - _extra_home(extra[j, U(0)], mask)) & mask) >= ((j - i) & mask):
            extra[i, U(0)], extra[i, U(1)] = extra[j, U(0)], extra[j, U(1)]
            i = j
    extra[i, U(0)] = U(0)


@jit((ROWS, ROWS))
def rehash_extra(old: Any, new: Any) -> None:
    """Every row of `old` is in the empty `new`."""
    for s in range(len(old)):
        if old[s, 0] != U(0):
            i = extra_at(new, old[s, 0])
            new[i, U(0)], new[i, U(1)] = old[s, 0], old[s, 1]
