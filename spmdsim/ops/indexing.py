"""``x[...]`` in numpy's words, made of slices, flips, a lookup and a reshape."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from spmdsim.errors import OutOfRange, RuleError
from spmdsim.ops.declare import cast
from spmdsim.ops.elementwise import add, less, where
from spmdsim.ops.lookup import gather
from spmdsim.ops.shape import flip, reshape, transpose
from spmdsim.ops.slicing import slice_
from spmdsim.tensor import Tensor
from spmdsim.tensor.operands import as_operand
from spmdsim.tensor.tensor import Index

_MASK = (
    "the shape of x[mask] depends on the mask's values; use where(mask, x, 0), or a mask of one dim as a numpy array "
    "that every rank holds"
)


def getitem(x: Tensor, index: Index) -> Tensor:
    """``x[...]`` with at most one array of integers; see :func:`spmdsim.ops.index_arrays.getitem`."""
    entries = [place_of(p) for p in (index if isinstance(index, tuple) else (index,))]
    parts = per_dim(entries, len(x.meta.shape))
    cut = _cut(x.meta.shape, parts)
    result, looked, place = taken(x, cut), cut.looked, cut.place
    if looked is None:
        return result
    ids = looked_up(parts[looked], result.shape[place], len([p for p in parts[:looked] if p is not None]))
    result = gather(result, as_operand(ids, x), place)
    if place and (_apart(parts) or divided(entries)):
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
    given = len([p for p in parts if p is not None and p is not Ellipsis])
    if given > ndim:
        raise OutOfRange(f"{given} indices are too many for a tensor of {ndim} dims")
    dots = [k for k, p in enumerate(parts) if p is Ellipsis]
    if len(dots) > 1:
        raise RuleError("an index has at most one '...'")
    at = dots[0] if dots else len(parts)
    return [*parts[:at], *[slice(None)] * (ndim - given), *parts[at + 1 :]]


def _is_array(part: Any) -> bool:
    return isinstance(part, (np.ndarray, Tensor))


def divided(entries: Sequence[Any]) -> bool:
    """Whether ``...`` stands between integers or arrays: for numpy it separates them even where it stands for no dim."""
    places = [k for k, entry in enumerate(entries) if _is_array(entry) or isinstance(entry, int)]
    return any(entry is Ellipsis for entry in entries[min(places, default=0) : max(places, default=0)])


def _apart(parts: Sequence[Any]) -> bool:
    """Whether something else stands between the indices that are integers or arrays."""
    places = [k for k, p in enumerate(parts) if _is_array(p) or isinstance(p, int)]
    return places[-1] - places[0] >= len(places)


class Cut(NamedTuple):
    """What integers and slices take of a tensor.

    Attributes:
        start: per dim the first place.
        stop: the place after the last.
        step: from one place to the next.
        turned: the dims whose places are then turned round.
        shape: of the result.
        whole: whether that is all of the tensor.
        looked: which part of the index is an array, for which the whole dim stays; None if none is.
        place: which dim of the result that is.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    step: tuple[int, ...]
    turned: tuple[int, ...]
    shape: tuple[int, ...]
    whole: bool
    looked: int | None = None
    place: int = 0


def written_plainly(index: Index) -> tuple[Any, ...] | None:
    """An index of Python's integers, slices of them, ``...`` and None as a value: slices as tuples. None of any other."""
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
def cut_of(shape: tuple[int, ...], written: tuple[Any, ...]) -> Cut:
    """What such an index takes of a tensor of this shape."""
    parts = [slice(*part) if isinstance(part, tuple) else part for part in written]
    return _cut(shape, per_dim(parts, len(shape)))


def taken(x: Tensor, cut: Cut) -> Tensor:
    """What was cut out of a tensor, turned, and in its shape."""
    result = x if cut.whole else slice_.op(x, start=cut.start, stop=cut.stop, step=cut.step)
    result = flip(result, cut.turned) if cut.turned else result
    return result if result.meta.shape == cut.shape else reshape(result, cut.shape)


def _cut(sizes: tuple[int, ...], parts: Sequence[Any]) -> Cut:
    """What the parts of an index take, one per dim and None where a dim is new."""
    lists: list[list[int]] = [[] for _ in range(5)]
    start, stop, step, turned, shape = lists
    looked, place = None, 0
    for k, part in enumerate(parts):
        if part is None:
            shape.append(1)
            continue
        dim = len(start)
        if _is_array(part):
            looked, place, part = k, len(shape), slice(None)
        a, b, s = span(part, sizes[dim], dim)
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


def span(part: int | slice, n: int, dim: int) -> tuple[int, int, int]:
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
            raise OutOfRange(f"a mask of {len(part)} entries does not fit dim {dim} of size {n}")
        return np.flatnonzero(part)
    bad = part[(part < -n) | (part >= n)]
    if bad.size:
        raise OutOfRange(f"index {bad.flat[0]} is out of range for dim {dim} of size {n}")
    return np.where(part < 0, part + n, part) if part.dtype.kind == "i" else part
