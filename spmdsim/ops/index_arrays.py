"""``x[...]`` with masks of several dims, computed masks, and several arrays of integers, made of what one array needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.errors import OutOfRange, RuleError
from spmdsim.ops import indexing
from spmdsim.ops.declare import cast
from spmdsim.ops.elementwise import add, multiply
from spmdsim.ops.indexing import cut_of, looked_up, per_dim, place_of, taken, written_plainly
from spmdsim.ops.lookup import gather
from spmdsim.ops.selecting import nonzero, select
from spmdsim.ops.shape import merged, transpose
from spmdsim.tensor import Tensor
from spmdsim.tensor.operands import as_operand
from spmdsim.tensor.tensor import Index


def getitem(x: Tensor, index: Index) -> Tensor:
    """Indexing as numpy has it: integers, slices, ``...``, None, arrays of integers and masks.

    Dims that are cut or turned round are brought together first; a dim that is looked up by an array may stay split,
    then the result is partial over its axes, as with :func:`spmdsim.ops.gather`. How many entries a mask chooses is
    agreed by one small gathering, and they lie in balanced blocks.

    Args:
        x: the tensor.
        index: as in numpy. Arrays are lists, arrays or tensors of any shape; a list or array of one dim of truth values
            stands for the places where it is true, and has to be the same on all ranks.

    Raises:
        RuleError: anything else, an index out of range, a mask that does not fit.
        InputError: a tensor of integers with one out of range.
        WorldError: a computed mask in a world without values.
    """
    if (written := written_plainly(index)) is not None:
        return taken(x, cut_of(x.meta.shape, written))
    if isinstance(index, Tensor) and not index.ndim and index.dtype.kind == "b":
        return select(x, index)
    entries = list(index) if isinstance(index, tuple) else [index]
    masks = [k for k, entry in enumerate(entries) if _is_mask(entry)]
    arrays = [k for k, entry in enumerate(entries) if _is_array(entry)]
    if len(masks) == 1 and len(arrays) == 1:
        return _masked(x, entries, masks[0])
    if masks or len(arrays) > 1:
        return _several(x, [part for entry in entries for part in _written(entry, x)])
    return indexing.getitem(x, index)


def _is_array(entry: Any) -> bool:
    """Whether an entry is looked up: an array with dims, or a tensor, whose value no rank needs to look at."""
    if isinstance(entry, Tensor):
        return entry.ndim > 0 or entry.dtype.kind in "iu"
    return isinstance(entry, list) or (isinstance(entry, np.ndarray) and entry.ndim > 0)


def _is_mask(entry: Any) -> bool:
    """Whether an entry is truth values that are computed, or of several dims."""
    if isinstance(entry, Tensor):
        return entry.dtype.kind == "b" and entry.ndim > 0
    if not isinstance(entry, (list, np.ndarray)):
        return False
    array = np.asarray(entry)
    return array.dtype.kind == "b" and array.ndim > 1


def _masked(x: Tensor, entries: list[Any], at: int) -> Tensor:
    """One mask among slices and integers: these first, then the mask's dims in front, and the chosen ones in their place."""
    mask = entries[at] if isinstance(entries[at], Tensor) else as_operand(np.asarray(entries[at]), x)
    before, after = entries[:at], entries[at + 1 :]
    plain = [*before, *[slice(None)] * mask.ndim, *after]
    parts = per_dim([place_of(part) for part in plain], x.ndim)
    first = next(d for d in range(len(parts)) if _same(plain, parts, d, at))
    dims = list(range(first, first + mask.ndim))
    if x.shape[_operand_dim(parts, first) : _operand_dim(parts, first) + mask.ndim] != mask.shape:
        raise OutOfRange(
            f"a mask of shape {mask.shape} does not fit a tensor of shape {x.shape} at dim {first}"
        )
    y = x if all(part == slice(None) for part in parts) else indexing.getitem(x, tuple(parts))
    place = sum(not isinstance(part, int) for part in parts[:first])
    dims = list(range(place, place + mask.ndim))
    others = [d for d in range(y.ndim) if d not in dims]
    chosen = select(y if not place else transpose(y, [*dims, *others]), mask)
    numbers = [d for d, part in enumerate(parts) if isinstance(part, int)]
    together = sorted({*numbers, *range(first, first + mask.ndim)})
    apart = together[-1] - together[0] >= len(together) or (
        numbers and indexing.divided([*before, 0, *after])
    )
    if apart or not place:
        return chosen
    return transpose(chosen, [*range(1, place + 1), 0, *range(place + 1, chosen.ndim)])


def _same(plain: list[Any], parts: list[Any], d: int, at: int) -> bool:
    """Whether the mask's first dim is entry ``d`` once ``...`` is written out."""
    if Ellipsis not in [p for p in plain[:at] if p is None or p is Ellipsis or isinstance(p, (int, slice))]:
        return d == at
    return d == len(parts) - (len(plain) - at)


def _operand_dim(parts: Sequence[Any], place: int) -> int:
    return sum(part is not None for part in parts[:place])


def _written(entry: Any, x: Tensor) -> list[Any]:
    """A mask as the places where it is true, one array per dim; anything else as it is."""
    if not _is_mask(entry):
        return [entry]
    if isinstance(entry, Tensor):
        return list(nonzero(entry))
    return list(np.nonzero(np.asarray(entry)))


def _several(x: Tensor, entries: list[Any]) -> Tensor:
    """Several arrays: their dims as one, which is looked up by the numbers that they make together."""
    entries = [place_of(entry) for entry in entries]
    parts = per_dim(entries, x.ndim)
    looked = [k for k, part in enumerate(parts) if isinstance(part, (np.ndarray, Tensor))]
    apart = looked[-1] - looked[0] >= len(looked) + sum(
        isinstance(p, int) for p in parts[looked[0] : looked[-1]]
    )
    apart = apart or indexing.divided(entries)
    outside = [k for k, part in enumerate(parts) if isinstance(part, int)]
    apart = apart or any(abs(k - j) > 1 for k in outside for j in [min(looked, key=lambda j: abs(k - j))])
    y = indexing.getitem(x, tuple(slice(None) if k in looked else part for k, part in enumerate(parts)))
    dims = [sum(not isinstance(part, int) for part in parts[:k]) for k in looked]
    numbers: Any = None
    for k, dim in zip(looked, dims):
        ids = looked_up(parts[k], y.shape[dim], _operand_dim(parts, k))
        numbers = ids if numbers is None else _sum(_times(numbers, y.shape[dim]), ids)
    others = [d for d in range(y.ndim) if d not in dims]
    place = 0 if apart else dims[0]
    order = [*others[:place], *dims, *others[place:]]
    y = y if order == list(range(y.ndim)) else transpose(y, order)
    end = place + len(dims)
    flat = merged(y, place, end)
    return gather(flat, as_operand(numbers, x), place)


def _times(numbers: Any, size: int) -> Any:
    """Products in 64 bits: the numbers are of one dim, what they make together counts the elements of several."""
    if isinstance(numbers, Tensor):
        return multiply(cast(numbers, np.int64), size)
    return np.asarray(numbers, np.int64) * size


def _sum(a: Any, b: Any) -> Any:
    if not (isinstance(a, Tensor) or isinstance(b, Tensor)):
        try:
            return np.asarray(a) + np.asarray(b)
        except ValueError:
            raise RuleError(
                f"index arrays of shapes {np.shape(a)} and {np.shape(b)} do not broadcast"
            ) from None
    return add(a, b)
