"""``x[index] = value`` as a function: the tensor with other values at an index; nothing is gathered."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np

from spmdsim.core import Layout
from spmdsim.errors import OutOfRange, RuleError
from spmdsim.ops.arrange import take
from spmdsim.ops.declare import cast
from spmdsim.ops.elementwise import maximum, subtract, where
from spmdsim.ops.functions import greater_equal
from spmdsim.ops.indexing import per_dim, place_of, span
from spmdsim.ops.operators import operator
from spmdsim.ops.reduce import as_type
from spmdsim.ops.reduce import sum as sum_
from spmdsim.ops.scans import cumulative_sum
from spmdsim.ops.selecting import flattened
from spmdsim.ops.shape import broadcast_to, flip, reshape
from spmdsim.ops.windows import slice_update
from spmdsim.tensor import Tensor
from spmdsim.tensor.operands import Operand, as_operand
from spmdsim.tensor.sources import Described
from spmdsim.tensor.tensor import Index


@operator()
def setitem(x: Tensor, index: Index, value: Operand) -> Tensor:
    """The tensor with ``value`` at an index: integers, slices, ``...``, None, arrays of integers and masks.

    Args:
        x: the tensor; dims that are cut may be split.
        index: as in numpy. Arrays are those that all ranks have; a mask of the tensor's shape may be a tensor.
        value: broadcasts to what is at the index, and takes the tensor's element type. Where a place is named
            several times the last value stays.

    Returns:
        Of ``x``'s shape and type.

    Raises:
        RuleError: tensors of integers as indices, a value that does not fit, an index out of range.
    """
    new = as_operand(value, x)
    if new.dtype != x.dtype:
        if not np.can_cast(new.dtype, x.dtype, "same_kind"):
            raise RuleError(f"elements of {new.dtype} are not assigned to {x.dtype}; convert them first")
        new = as_type(new, x.dtype)
    mask = _mask(index, x)
    if mask is not None:
        if new.size == 1:
            return where(_beside(mask, x), reshape(new, ()), x)
        if _holds_tensor(index):
            return _looked_up(x, _numbers_of(mask, x, new), new)
    entries = index if isinstance(index, tuple) else (index,)
    if any(isinstance(entry, (list, np.ndarray)) for entry in entries) and not _holds_tensor(index):
        return _scattered(x, entries, new)
    parts = per_dim([place_of(p) for p in entries], x.ndim)
    if any(isinstance(p, (np.ndarray, Tensor)) for p in parts):
        raise RuleError(
            "values are assigned to places that all ranks know, not to tensors of integers; use x[ids.full()]"
        )
    return _assigned(x, parts, new)


def _holds_tensor(index: Any) -> bool:
    return any(isinstance(entry, Tensor) for entry in (index if isinstance(index, tuple) else (index,)))


def _numbers_of(mask: Tensor, x: Tensor, value: Tensor) -> Tensor:
    """For each element the number of its value, row by row, and -1 where the mask does not hold."""
    places = cast(broadcast_to(mask, x.shape), np.int64)
    count = int(sum_(places))
    if value.shape != (count,):
        raise RuleError(f"the mask holds for {count} elements, but the values have shape {value.shape}")
    running = reshape(cumulative_sum(flattened(places), 0), x.shape, x.layout.reduced)
    return where(places, subtract(running, 1), -1)


def _scattered(x: Tensor, entries: tuple[Any, ...], value: Tensor) -> Tensor:
    """Values at places that arrays name: each rank finds out for its own piece which value comes where."""
    lines = np.ix_(*[np.arange(n) for n in x.shape]) if x.ndim else ()
    try:  # the coordinates of all places, dim by dim: numpy says which those are
        places = [np.broadcast_to(line, x.shape)[entries] for line in lines]
    except IndexError as error:
        raise OutOfRange(f"an index of a tensor of shape {x.shape}: {error}") from None
    shape = places[0].shape
    if value.size != 1:
        extra = max(0, value.ndim - len(shape))
        kept = value.shape[extra:] if math.prod(value.shape[:extra]) == 1 else value.shape
        value = broadcast_to(reshape(value, kept), shape)

    def numbers(box: tuple[slice, ...]) -> np.ndarray:
        here = np.logical_and.reduce([(p >= b.start) & (p < b.stop) for p, b in zip(places, box)])
        piece = np.full([b.stop - b.start for b in box], -1)
        piece[tuple(p[here] - b.start for p, b in zip(places, box))] = np.flatnonzero(here)
        return piece

    words = f"places {zlib.crc32(np.stack(places).tobytes())}"
    described = Described(numbers, words)
    layout = x.layout.reduced
    return _looked_up(x, Tensor.from_global(described, layout, x.world, shape=x.shape, dtype=np.int64), value)


def _looked_up(x: Tensor, numbers: Tensor, value: Tensor) -> Tensor:
    """The tensor with values by number, where the number is not negative."""
    there = greater_equal(numbers, 0)
    if value.size == 1:
        return where(there, reshape(value, ()), x)
    if not value.size:
        return x
    return where(there, take(reshape(value, -1), maximum(numbers, 0), 0), x)


def _mask(index: Any, x: Tensor) -> Tensor | None:
    """The only entry of an index, if it is truth values of the first dims, as one that broadcasts with the tensor."""
    one = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if not (isinstance(one, (list, bool, np.bool_, np.ndarray, Tensor))):
        return None
    mask = one if isinstance(one, Tensor) else np.asarray(one)
    if mask.dtype.kind != "b":
        return None
    if tuple(mask.shape) != x.shape[: mask.ndim]:
        raise OutOfRange(f"a mask of shape {tuple(mask.shape)} does not fit a tensor of shape {x.shape}")
    return reshape(as_operand(mask, x), (*mask.shape, *[1] * (x.ndim - mask.ndim)))


def _assigned(x: Tensor, parts: list[Any], value: Tensor) -> Tensor:
    spans: list[tuple[int, int, int]] = []
    seen: list[int] = []
    turned: list[int] = []
    for part in parts:
        if part is None:
            seen.append(1)
            continue
        d = len(spans)
        a, b, s = span(part, x.shape[d], d)
        if s < 0:
            turned.append(d)
        spans.append((a, b, abs(s)))
        if not isinstance(part, int):
            seen.append(len(range(*spans[-1])))
    window = [len(range(*one)) for one in spans]
    extra = value.ndim - len(seen)
    if extra > 0 and math.prod(value.shape[:extra]) == 1:  # numpy drops leading dims of size one
        value = reshape(value, value.shape[extra:])
    whole = value if value.shape == tuple(seen) else broadcast_to(value, seen)
    shaped = whole if whole.shape == tuple(window) else reshape(whole, window)
    start, stop, step = ([one[k] for one in spans] for k in range(3))
    placed = flip(shaped, turned) if turned else shaped
    return slice_update(x, _beside(placed, x, cut=any(placed.layout.dims)), start, stop, step)


def _beside(value: Tensor, x: Tensor, cut: bool = False) -> Tensor:
    """What has as many dims as the tensor, split where its whole dims are: the tensor itself then stays as it is.

    Args:
        value: what has other sizes in some dims.
        x: the tensor.
        cut: split those of other sizes, too.
    """
    if x.layout.partial_axes:
        return value
    kept = [axes if cut or n == m else () for axes, n, m in zip(x.layout.dims, value.shape, x.shape)]
    return value.to(Layout(x.layout.mesh, kept))
