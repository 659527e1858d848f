"""``x[...]`` in numpy's words, made of slices, flips, look-ups, and a reshape; several arrays are made of what one needs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.arrays.ops.declare import Shape, cast
from spmdsim.arrays.ops.elementwise import add, less, multiply, where
from spmdsim.arrays.ops.lookup import gather
from spmdsim.arrays.ops.selecting import nonzero, select
from spmdsim.arrays.ops.shape import flip, merged, reshape, transpose
from spmdsim.arrays.ops.slicing import slice_
from spmdsim.arrays.program_tensor import Index
from spmdsim.errors import OutOfRange, RuleError, many
from spmdsim.worlds.convert_operands import as_operand

__all__ = ["getitem"]

_MASK = (
    "the shape of x[mask] depends on the mask's values; use where(mask, x, 0), or a mask of one dim as a numpy array "
    "that every rank holds"
)


def _with_one_array(x: Tensor, index: Any) -> Tensor:
    """``x[...]`` with at most one array of integers."""
    entries = [place_of(p) for p in (index if isinstance(index, tuple) else (index,))]
    parts = per_dim(entries, len(x.meta.shape))
    cut = cut_of_parts(x.meta.shape, parts)
    result, looked, place = taken(x, cut), cut.looked, cut.place
    if looked is None:
        return result
    ids = looked_up(parts[looked], result.shape[place], len([p for p in parts[:looked] if p is not None]))
    result = gather(result, as_operand(ids, x), place)
    if place and (_apart(_places(parts)) or _divided(entries)):
        # As numpy has it: indices that do not stand side by side leave their dims in front.
        new = range(place, place + np.ndim(ids))
        result = transpose(result, [*new, *[d for d in range(result.ndim) if d not in new]])
    return result


def place_of(part: Any) -> Any:
    """One entry of an index: an integer, a slice, None, ``...``, or an array or tensor of integers or truth."""
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    if isinstance(part, Tensor) and part.dtype.kind in "iu":
        return part
    if isinstance(part, (bool, np.bool_)) or (isinstance(part, Tensor) and part.dtype.kind == "b"):
        raise RuleError(_MASK)
    if isinstance(part, (int, np.integer)):
        return int(part)
    array = np.asarray(part) if isinstance(part, (list, np.ndarray)) else None
    if array is not None and isinstance(part, list) and not array.size:
        array = array.astype(np.intp)
    if array is None or array.dtype.kind not in "iub":
        what = type(part).__name__ if array is None else f"{type(part).__name__} of {array.dtype}"
        raise RuleError(f"a tensor is indexed by integers, slices and arrays of integers, not {what}")
    if array.dtype.kind == "b" and array.ndim != 1:
        raise RuleError(_MASK)
    return array if array.ndim else int(array)


def per_dim(parts: list[Any], ndim: int) -> list[Any]:
    """The entries with ``...`` written out: one per dim, and None where a dim is new."""
    count = len([p for p in parts if p is not None and p is not Ellipsis])
    if count > ndim:
        raise OutOfRange(
            f"{many(count, 'index is', 'indices are')} too many for a tensor of {many(ndim, 'dim')}"
        )
    dots = [k for k, p in enumerate(parts) if p is Ellipsis]
    if len(dots) > 1:
        raise RuleError("an index has at most one '...'")
    at = dots[0] if dots else len(parts)
    return [*parts[:at], *[slice(None)] * (ndim - count), *parts[at + 1 :]]


def _is_looked_up(part: Any) -> bool:
    return isinstance(part, (np.ndarray, Tensor))


def _places(entries: Sequence[Any]) -> list[int]:
    """Where integers and arrays stand."""
    return [k for k, entry in enumerate(entries) if _is_looked_up(entry) or isinstance(entry, int)]


def _divided(entries: Sequence[Any]) -> bool:
    """Whether ``...`` stands between integers or arrays: for numpy it separates them even where it stands for no dim."""
    places = _places(entries)
    return any(entry is Ellipsis for entry in entries[min(places, default=0) : max(places, default=0)])


def _apart(places: Sequence[int]) -> bool:
    """Whether something else stands between the indices that are integers or arrays, which are at these places."""
    return places[-1] - places[0] >= len(places)


class Cut(NamedTuple):
    """What integers and slices take of a tensor: per dim the first place, the one after the last, and the step.

    Dims that are ``turned`` are then turned round. ``whole``: that is all of the tensor. ``looked`` says which part of the
    index is an array, for which the whole dim stays, and ``messages`` which dim of the result that is.
    """

    start: Shape
    stop: Shape
    step: Shape
    turned: Shape
    shape: Shape
    whole: bool
    looked: int | None = None
    place: int = 0


def written_plainly(index: Index) -> tuple[Any, ...] | None:
    """An index of Python's integers, slices of them, ``...`` and None as a value: slices as tuples. None of any other."""
    if type(index) is slice:
        ends: tuple[Any, ...] = (index.start, index.stop, index.step)
        return (ends,) if _ENDS.issuperset(map(type, ends)) else None
    written: list[Any] = []
    for part in index if type(index) is tuple else (index,):
        if type(part) is slice:
            ends = part.start, part.stop, part.step
            if not {*map(type, ends)} <= _ENDS:
                return None
            written.append(ends)
        elif type(part) is int or part is None or part is Ellipsis:
            written.append(part)
        else:
            return None
    return tuple(written)


_ENDS = {int, type(None)}


@lru_cache(maxsize=4096)
def cut_of(shape: Shape, written: tuple[Any, ...]) -> Cut:
    """What such an index takes of a tensor of this shape."""
    parts = [slice(*part) if isinstance(part, tuple) else part for part in written]
    return cut_of_parts(shape, per_dim(parts, len(shape)))


def taken(x: Tensor, cut: Cut) -> Tensor:
    """What was cut out of a tensor, turned, and in its shape."""
    result = x if cut.whole else slice_.op(x, start=cut.start, stop=cut.stop, step=cut.step)
    result = flip(result, cut.turned) if cut.turned else result
    return result if result.meta.shape == cut.shape else reshape(result, cut.shape)


def cut_of_parts(sizes: Shape, parts: Sequence[Any]) -> Cut:
    """What the parts of an index take, one per dim and None where a dim is new."""
    lists: list[list[int]] = [[] for _ in range(5)]
    start, stop, step, turned, shape = lists
    looked, place = None, 0
    for k, part in enumerate(parts):
        if part is None:
            shape.append(1)
            continue
        dim = len(start)
        if _is_looked_up(part):
            looked, place, part = k, len(shape), slice(None)
        a, b, s = _span(part, sizes[dim], dim)
        if s < 0:
            turned.append(dim)
            s = -s
        if not isinstance(part, int):
            shape.append(len(range(a, b, s)))
        start.append(a)
        stop.append(b)
        step.append(s)
    whole = all((a, b, s) == (0, n, 1) for a, b, s, n in zip(start, stop, step, sizes))
    return Cut(tuple(start), tuple(stop), tuple(step), tuple(turned), tuple(shape), whole, looked, place)


def _span(part: int | slice, n: int, dim: int) -> tuple[int, int, int]:
    """First place, place after the last, and step; a negative step says that these are to be turned round."""
    if isinstance(part, int):
        if not -n <= part < n:
            raise OutOfRange(f"index {part} is out of range for dim {dim} of size {n}")
        return part % n, part % n + 1, 1
    if part.step is not None and not part.step:
        raise RuleError(f"slices of tensors need a step that is not zero, but got {part}")
    a, b, s = part.indices(n)
    places = range(a, b, s)
    if s > 0:
        return a, max(a, b), s
    return (places[-1], places[0] + 1, s) if places else (0, 0, 1)


def looked_up(part: Any, n: int, dim: int) -> Any:
    """The array as integers from zero on; what is known here is checked here."""
    if isinstance(part, Tensor):
        if part.dtype.kind == "u":
            return part
        part = cast(part, np.int64) if n > np.iinfo(part.dtype).max else part
        return where(less(part, 0), add(part, n), part)
    if part.dtype.kind == "b":
        if len(part) != n:
            raise OutOfRange(
                f"a mask of {many(len(part), 'entry', 'entries')} does not fit dim {dim} of size {n}"
            )
        return np.flatnonzero(part)
    bad = part[(part < -n) | (part >= n)]
    if bad.size:
        raise OutOfRange(f"index {bad.flat[0]} is out of range for dim {dim} of size {n}")
    return np.where(part < 0, part + n, part) if part.dtype.kind == "i" else part


def getitem(x: Tensor, index: Index) -> Tensor:
    """Indexing as numpy has it: integers, slices, ``...``, None, arrays of integers and masks.

    Arrays are lists, arrays or tensors; truth values in a list or array of one dim have to be the same on all ranks. Dims that
    are cut or turned round are brought together first; a dim that is looked up by an array may stay split, then the result is
    partial over its axes, as with :func:`spmdsim.ops.gather`. How many entries a mask chooses is agreed by one small gathering,
    and they lie in balanced blocks.
    """
    if (written := written_plainly(index)) is not None:
        return taken(x, cut_of(x.meta.shape, written))
    if isinstance(index, Tensor) and not index.ndim and index.dtype.kind == "b":
        return select(x, index)
    entries = list(index) if isinstance(index, tuple) else [index]
    masks = [k for k, entry in enumerate(entries) if is_mask(entry)]
    arrays = [k for k, entry in enumerate(entries) if _is_array(entry)]
    if len(masks) == 1 and len(arrays) == 1:
        return _masked(x, entries, masks[0])
    if masks or len(arrays) > 1:
        return _several(x, without_masks(entries))
    return _with_one_array(x, index)


def _is_array(entry: Any) -> bool:
    """Whether an entry is looked up: an array with dims, or a tensor, whose value no rank needs to look at."""
    if isinstance(entry, Tensor):
        return entry.ndim > 0 or entry.dtype.kind in "iu"
    return isinstance(entry, list) or (isinstance(entry, np.ndarray) and entry.ndim > 0)


def without_masks(entries: Sequence[Any]) -> list[Any]:
    """Return the entries of an index with the places where masks hold in the place of the masks."""
    changed: list[Any] = []
    for entry in entries:
        if not is_mask(entry):
            changed.append(entry)
        else:
            changed += nonzero(entry) if isinstance(entry, Tensor) else np.nonzero(np.asarray(entry))
    return changed


def is_mask(entry: Any) -> bool:
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
    first = next(d for d in range(len(parts)) if _is_first(plain, parts, d, at))
    if x.shape[_operand_dim(parts, first) : _operand_dim(parts, first) + mask.ndim] != mask.shape:
        raise OutOfRange(
            f"a mask of shape {mask.shape} does not fit a tensor of shape {x.shape} at dim {first}"
        )
    y = x if all(part == slice(None) for part in parts) else _with_one_array(x, tuple(parts))
    place = sum(not isinstance(part, int) for part in parts[:first])
    dims = list(range(place, place + mask.ndim))
    others = [d for d in range(y.ndim) if d not in dims]
    chosen = select(y if not place else transpose(y, [*dims, *others]), mask)
    numbers = _places(parts)
    together = sorted({*numbers, *range(first, first + mask.ndim)})
    if not place or _apart(together) or (numbers and _divided([*before, 0, *after])):
        return chosen
    return transpose(chosen, [*range(1, place + 1), 0, *range(place + 1, chosen.ndim)])


def _is_first(plain: list[Any], parts: list[Any], d: int, at: int) -> bool:
    """Whether the mask's first dim is entry ``d`` once ``...`` is written out."""
    if Ellipsis not in [p for p in plain[:at] if p is None or p is Ellipsis or isinstance(p, (int, slice))]:
        return d == at
    return d == len(parts) - (len(plain) - at)


def _operand_dim(parts: Sequence[Any], place: int) -> int:
    return sum(part is not None for part in parts[:place])


class Looked(NamedTuple):
    """Lookup by the arrays of an index: the dims that they index as one, and row-major numbers of the entries in it.

    Attributes:
        order: the dims of the tensor such that those that are looked up stand together, as NumPy's result has them.
        place: where the first of these stands then.
        dims: how many they are.
        ids: the numbers, an array or a tensor.
    """

    order: Shape
    place: int
    dims: int
    ids: Any


def parted(x: Tensor, entries: Sequence[Any]) -> tuple[list[Any], Tensor, Looked]:
    """Take an index with arrays apart.

    Args:
        x: the tensor.
        entries: of the index; at least one is an array or a tensor of integers.

    Returns:
        The parts, one per dim and None where a dim is new; what the integers and slices among them take; and what the arrays
        look up in that.
    """
    entries = [place_of(entry) for entry in entries]
    parts = per_dim(entries, x.ndim)
    apart = _apart(_places(parts)) or _divided(entries)
    basic = tuple(slice(None) if _is_looked_up(part) else part for part in parts)
    y = x if all(part == slice(None) for part in basic) else _with_one_array(x, basic)
    left = [k for k, part in enumerate(parts) if not isinstance(part, int)]
    dims = [d for d, k in enumerate(left) if _is_looked_up(parts[k])]
    numbers: Any = None
    for d in dims:
        ids, n = looked_up(parts[left[d]], y.shape[d], _operand_dim(parts, left[d])), y.shape[d]
        # In 64 bits: the numbers are of one dim, what they make together counts the elements of several.
        numbers = ids if numbers is None else _as_one(numbers, n, ids)
    others = [d for d in range(y.ndim) if d not in dims]
    place = 0 if apart else dims[0]
    return parts, y, Looked((*others[:place], *dims, *others[place:]), place, len(dims), numbers)


def _several(x: Tensor, entries: list[Any]) -> Tensor:
    """Several arrays: their dims as one, which is looked up by the numbers that they make together."""
    _, y, looked = parted(x, entries)
    y = y if looked.order == tuple(range(y.ndim)) else transpose(y, looked.order)
    return gather(
        merged(y, looked.place, looked.place + looked.dims), as_operand(looked.ids, x), looked.place
    )


def _as_one(numbers: Any, size: int, ids: Any) -> Any:
    """The places in two dims, the second of a size, as one number each."""
    if isinstance(numbers, Tensor):
        return add(multiply(cast(numbers, np.int64), size), ids)
    wide = np.asarray(numbers, np.int64) * size
    if isinstance(ids, Tensor):
        return add(wide, ids)
    try:
        return wide + np.asarray(ids)
    except ValueError:
        shapes = f"{np.shape(numbers)} and {np.shape(ids)}"
        raise RuleError(f"index arrays of shapes {shapes} do not broadcast") from None
