"""Indexing by NumPy's rules, from slices, flips, lookups and reshapes; several arrays become one lookup.

An index has entries, as the user writes them. `expand_dots` turns them into parts: one int, slice or array per dim,
and None for an inserted dim. Read `getitem` first. It serves ints and slices by a `Cut`, one array by
`_index_by_one_array`, several by `_index_by_arrays`, and masks by `_index_by_mask`.
"""

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
from spmdsim.arrays.ops.shape import flip, merge_dims, reshape, transpose
from spmdsim.arrays.ops.slicing import slice_
from spmdsim.arrays.program_tensor import Index
from spmdsim.errors import OutOfRange, RuleError, many
from spmdsim.worlds.convert_operands import as_operand

__all__ = ["getitem"]

_MASK = (
    "the shape of x[mask] depends on the mask's values; use where(mask, x, 0), or a mask of one dim as a numpy array "
    "that every rank holds"
)


def _index_by_one_array(x: Tensor, index: Any) -> Tensor:
    """Return ``x[index]`` for an index of ints, slices, None and at most one array of integers.

    The dims of the array replace the dim that it looks up. But they come first if a slice, None or "..." stands
    between the array and an int, as in NumPy. For ``x`` of shape [4, 5, 6]:

    - ``x[1:3, [0, 2, 2]]`` has the shape [2, 3, 6];
    - ``x[0, :, [1, 2]]`` has the shape [2, 5], because a slice stands between 0 and the array.

    The looked-up dim may be split; then the result is partial over its axes.

    Args:
        x: the tensor.
        index: an entry, or a tuple of entries; "..." and a list, array or tensor of integers are allowed, too. A list
            or array of bools of one dim is a mask.

    Raises:
        RuleError: If an entry is of another kind, or several are "...".
        OutOfRange: If an index is out of range, a mask has another length, or there are too many entries.
        InputError: If an index in a tensor is out of range.
    """
    entries = [check_entry(p) for p in (index if isinstance(index, tuple) else (index,))]
    parts = expand_dots(entries, len(x.meta.shape))
    cut = find_cut_of_parts(x.meta.shape, parts)
    result, array_number, position = apply_cut(x, cut), cut.array_number, cut.array_dim
    if array_number is None:
        return result
    ids = normalise_ids(
        parts[array_number], result.shape[position], len([p for p in parts[:array_number] if p is not None])
    )
    result = gather(result, as_operand(ids, x), position)
    if position and (_is_separated(_positions_of_indices(parts)) or _has_dots_between(entries)):
        # As numpy has it: indices that do not stand side by side leave their dims in front.
        looked_up_dims = range(position, position + np.ndim(ids))
        result = transpose(
            result, [*looked_up_dims, *[d for d in range(result.ndim) if d not in looked_up_dims]]
        )
    return result


def check_entry(entry: Any) -> Any:
    """Return one entry of an index, checked: an int, slice, None, ``...``, array or tensor.

    A list becomes an array; an array without dims becomes an int. Other entries are returned as they are. An array
    must have integers or be a mask of one dim; a tensor must have integers. Indices out of range are not noticed here.

    Args:
        entry: an entry as the user writes it.

    Raises:
        RuleError: If the entry has another type, or is a bool, a mask of several dims or a tensor of bools.

    >>> check_entry([2, 0]), check_entry(np.array(3)), check_entry(slice(1, 2))
    (array([2, 0]), 3, slice(1, 2, None))
    """
    if entry is None or entry is Ellipsis or isinstance(entry, slice):
        return entry
    if isinstance(entry, Tensor) and entry.dtype.kind in "iu":
        return entry
    if isinstance(entry, (bool, np.bool_)) or (isinstance(entry, Tensor) and entry.dtype.kind == "b"):
        raise RuleError(_MASK)
    if isinstance(entry, (int, np.integer)):
        return int(entry)
    array = np.asarray(entry) if isinstance(entry, (list, np.ndarray)) else None
    if array is not None and isinstance(entry, list) and not array.size:
        array = array.astype(np.intp)
    if array is None or array.dtype.kind not in "iub":
        what = type(entry).__name__ if array is None else f"{type(entry).__name__} of {array.dtype}"
        raise RuleError(f"a tensor is indexed by integers, slices and arrays of integers, not {what}")
    if array.dtype.kind == "b" and array.ndim != 1:
        raise RuleError(_MASK)
    return array if array.ndim else int(array)


def expand_dots(parts: list[Any], ndim: int) -> list[Any]:
    """Replace ``...`` by full slices, so that there is one entry per dim; None inserts a dim.

    Without ``...``, full slices are added at the end. For example, ``[..., 0]`` becomes ``[:, :, 0]`` for three dims.

    Args:
        parts: the entries of an index; the list is not changed.
        ndim: the number of dims of the tensor.

    Raises:
        OutOfRange: If there are more entries than dims.
        RuleError: If there are several ``...``.
    """
    count = len([entry for entry in parts if entry is not None and entry is not Ellipsis])
    if count > ndim:
        raise OutOfRange(
            f"{many(count, 'index is', 'indices are')} too many for a tensor of {many(ndim, 'dim')}"
        )
    dots = [k for k, entry in enumerate(parts) if entry is Ellipsis]
    if len(dots) > 1:
        raise RuleError("an index has at most one '...'")
    dots_position = dots[0] if dots else len(parts)
    return [*parts[:dots_position], *[slice(None)] * (ndim - count), *parts[dots_position + 1 :]]


def _is_looked_up(entry: Any) -> bool:
    """Return True if an entry of an index is an array or a tensor."""
    return isinstance(entry, (np.ndarray, Tensor))


def _positions_of_indices(entries: Sequence[Any]) -> list[int]:
    """Return the positions of integers and arrays among the entries of an index."""
    return [k for k, entry in enumerate(entries) if _is_looked_up(entry) or isinstance(entry, int)]


def _has_dots_between(entries: Sequence[Any]) -> bool:
    """Return True if ``...`` is between integers or arrays: NumPy then separates them."""
    places = _positions_of_indices(entries)
    return any(entry is Ellipsis for entry in entries[min(places, default=0) : max(places, default=0)])


def _is_separated(places: Sequence[int]) -> bool:
    """Return True if the positions of integers and arrays are not consecutive."""
    return places[-1] - places[0] >= len(places)


class Cut(NamedTuple):
    """The selection by integers and slices of an index.

    Attributes:
        start: first index per dim.
        stop: index after the last one per dim.
        step: positive distance of indices per dim.
        reversed_dims: dims to reverse after the slice.
        shape: shape of the result.
        is_whole: True if the slices select the whole tensor.
        array_number: the number of the index part that is an array, or None. Its dim is selected completely.
        array_dim: the dim of the result that this array looks up.
    """

    start: Shape
    stop: Shape
    step: Shape
    reversed_dims: Shape
    shape: Shape
    is_whole: bool
    array_number: int | None = None
    array_dim: int = 0


def to_hashable_index(index: Index) -> tuple[Any, ...] | None:
    """Return an index as a hashable tuple, with ``(start, stop, step)`` for each slice, or None.

    The result is None if an entry is no int, slice of ints, ``...`` or None; bools and NumPy's integers do not count
    as ints. An index that is no tuple gives a tuple of one entry.

    >>> to_hashable_index((slice(1, 2), None, 3)), to_hashable_index(3), to_hashable_index([3])
    (((1, 2, None), None, 3), (3,), None)
    """
    if type(index) is slice:
        ends: tuple[Any, ...] = (index.start, index.stop, index.step)
        return (ends,) if _ENDS.issuperset(map(type, ends)) else None
    result: list[Any] = []
    for entry in index if type(index) is tuple else (index,):
        if type(entry) is slice:
            ends = entry.start, entry.stop, entry.step
            if not {*map(type, ends)} <= _ENDS:
                return None
            result.append(ends)
        elif type(entry) is int or entry is None or entry is Ellipsis:
            result.append(entry)
        else:
            return None
    return tuple(result)


_ENDS = {int, type(None)}


@lru_cache(maxsize=4096)
def find_cut(shape: Shape, written: tuple[Any, ...]) -> Cut:
    """Return the `Cut` of an index, as :func:`to_hashable_index` wrote it, for a shape; cached."""
    parts = [slice(*entry) if isinstance(entry, tuple) else entry for entry in written]
    return find_cut_of_parts(shape, expand_dots(parts, len(shape)))


def apply_cut(x: Tensor, cut: Cut) -> Tensor:
    """Apply a `Cut`: slice, reverse and reshape the tensor."""
    result = x if cut.is_whole else slice_.op(x, start=cut.start, stop=cut.stop, step=cut.step)
    result = flip(result, cut.reversed_dims) if cut.reversed_dims else result
    return result if result.meta.shape == cut.shape else reshape(result, cut.shape)


def find_cut_of_parts(sizes: Shape, parts: Sequence[Any]) -> Cut:
    """Return the `Cut` of an index: bounds, steps and the shape of the result.

    The Cut also says if the whole tensor is selected, which of ``parts`` is the array (None without one), and the dim
    of the result that the array looks up.

    Args:
        sizes: the shape of the tensor.
        parts: one int, slice or index array per dim; None inserts a dim of length 1. At most one is an array; its dim
            is selected completely.

    Raises:
        OutOfRange: If an int is out of range.
        RuleError: If a step is 0.

    >>> cut = find_cut_of_parts((4, 5, 6), (slice(1, 3), None, slice(None, None, -2), 2))
    >>> cut.start, cut.stop, cut.step, cut.reversed_dims, cut.shape
    ((1, 0, 2), (3, 5, 3), (1, 2, 1), (1,), (2, 1, 3))
    """
    bounds: list[tuple[int, int, int]] = []
    reversed_dims: list[int] = []
    shape: list[int] = []
    array_number, position = None, 0
    for k, entry in enumerate(parts):
        if entry is None:
            shape.append(1)
            continue
        dim = len(bounds)
        if _is_looked_up(entry):
            array_number, position, entry = k, len(shape), slice(None)
        first, stop, step = _find_range(entry, sizes[dim], dim)
        if step < 0:
            reversed_dims.append(dim)
        bounds.append((first, stop, abs(step)))
        if not isinstance(entry, int):
            shape.append(len(range(*bounds[-1])))
    starts, stops, steps = tuple(zip(*bounds)) or ((), (), ())
    selects_all = all(bound == (0, n, 1) for bound, n in zip(bounds, sizes))
    return Cut(starts, stops, steps, tuple(reversed_dims), tuple(shape), selects_all, array_number, position)


def _find_range(entry: int | slice, n: int, dim: int) -> tuple[int, int, int]:
    """Return ``(first, stop, step)`` of the ascending indices that an int or slice selects.

    - An int counts as a range of one index. Negative ints count from the end.
    - A slice with negative step keeps this step, but its bounds are those of the ascending indices; the caller
      reverses the range. ``[::-2]`` of 5 entries selects 4, 2, 0 and gives (0, 5, -2).
    - An empty slice with negative step gives (0, 0, 1).

    Args:
        entry: an int or slice of an index.
        n: the size of the dim.
        dim: the number of the dim, for error messages.

    Raises:
        OutOfRange: If an int is out of range.
        RuleError: If the step is 0.

    >>> _find_range(-1, 5, 0), _find_range(slice(1, 4, 2), 5, 0), _find_range(slice(None, None, -2), 5, 0)
    ((4, 5, 1), (1, 4, 2), (0, 5, -2))
    """
    if isinstance(entry, int):
        if not -n <= entry < n:
            raise OutOfRange(f"index {entry} is out of range for dim {dim} of size {n}")
        return entry % n, entry % n + 1, 1
    if entry.step is not None and not entry.step:
        raise RuleError(f"slices of tensors need a step that is not zero, but got {entry}")
    start, stop, step = entry.indices(n)
    if step > 0:
        return start, max(start, stop), step
    positions = range(start, stop, step)
    return (positions[-1], positions[0] + 1, step) if positions else (0, 0, 1)


def normalise_ids(entry: Any, n: int, dim: int) -> Any:
    """Return an index array as non-negative integers; a mask becomes the positions of True.

    Negative ids count from the end. Ids of an array are checked here. Ids of a tensor are checked later, by the
    operator that looks them up.

    Args:
        entry: an array of integers or a mask of one dim, or a tensor of integers.
        n: the size of the dim.
        dim: the number of the dim, for error messages.

    Returns:
        A tensor if ``entry`` is one, else an array.

    Raises:
        OutOfRange: If an id of an array is out of range, or if a mask has another length.

    >>> normalise_ids(np.array([0, -1]), 5, 0), normalise_ids(np.array([True, False, True]), 3, 0)
    (array([0, 4]), array([0, 2]))
    """
    if isinstance(entry, Tensor):
        if entry.dtype.kind == "u":
            return entry
        entry = cast(entry, np.int64) if n > np.iinfo(entry.dtype).max else entry
        return where(less(entry, 0), add(entry, n), entry)
    if entry.dtype.kind == "b":
        if len(entry) != n:
            raise OutOfRange(
                f"a mask of {many(len(entry), 'entry', 'entries')} does not fit dim {dim} of size {n}"
            )
        return np.flatnonzero(entry)
    bad = entry[(entry < -n) | (entry >= n)]
    if bad.size:
        raise OutOfRange(f"index {bad.flat[0]} is out of range for dim {dim} of size {n}")
    return np.where(entry < 0, entry + n, entry) if entry.dtype.kind == "i" else entry


def getitem(x: Tensor, index: Index) -> Tensor:
    """Return ``x[index]`` by NumPy's rules; ``x`` itself if slices select all of it.

    Sliced dims stay split. A dim that an array looks up may stay split; then the result is partial over its axes, as
    with :func:`spmdsim.ops.gather`. If a mask is used, one small gather finds the number of selected entries, and the
    entries form balanced blocks.

    Args:
        x: the tensor.
        index: integers, slices, ``...``, None, and lists, arrays or tensors of integers or bools. Bools in a list or
            array of one dim must be equal on all ranks.

    Raises:
        RuleError: If an entry is of another kind, several are ``...``, or index arrays do not broadcast.
        OutOfRange: If an index is out of range, a mask has other sizes, or there are more entries than dims.
        InputError: If an index in a tensor is out of range.
        WorldError: If a mask is a tensor, or has several dims, and the world has no data.

    >>> from spmdsim import Mesh, Tensor
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> getitem(x, (slice(None), [2, 0])).full().tolist(), getitem(x, x > 3).full().tolist()
    ([[2, 3], [4, 6]], [6, 5, 4])
    """
    if (written := to_hashable_index(index)) is not None:
        return apply_cut(x, find_cut(x.meta.shape, written))
    if isinstance(index, Tensor) and not index.ndim and index.dtype.kind == "b":
        return select(x, index)
    entries = list(index) if isinstance(index, tuple) else [index]
    masks = [k for k, entry in enumerate(entries) if is_mask(entry)]
    arrays = [k for k, entry in enumerate(entries) if _is_array(entry)]
    if len(masks) == 1 and len(arrays) == 1:
        return _index_by_mask(x, entries, masks[0])
    if masks or len(arrays) > 1:
        return _index_by_arrays(x, without_masks(entries))
    return _index_by_one_array(x, index)


def _is_array(entry: Any) -> bool:
    """Return True if an entry looks up entries: an array with dims, a list, or a tensor."""
    if isinstance(entry, Tensor):
        return entry.ndim > 0 or entry.dtype.kind in "iu"
    return isinstance(entry, list) or (isinstance(entry, np.ndarray) and entry.ndim > 0)


def without_masks(entries: Sequence[Any]) -> list[Any]:
    """Replace the masks of an index by the positions of True; return the entries as a new list.

    A mask becomes one array or tensor per dim of it: the mask ``[[True, False], [False, True]]`` becomes ``[0, 1]`` and
    ``[0, 1]``. :func:`is_mask` decides which entries are masks; others stay. If a mask is a tensor, all ranks must call
    it.

    Args:
        entries: the entries of an index, as the user writes them.

    Raises:
        WorldError: If a mask is a tensor and the world has no data.
    """
    changed: list[Any] = []
    for entry in entries:
        if not is_mask(entry):
            changed.append(entry)
        else:
            changed += nonzero(entry) if isinstance(entry, Tensor) else np.nonzero(np.asarray(entry))
    return changed


def is_mask(entry: Any) -> bool:
    """Return True if an entry is a bool tensor with dims, or a bool array of several dims.

    A list of lists counts as an array. Bool arrays of one dim are looked up by :func:`normalise_ids` instead.

    Args:
        entry: an entry of an index.
    """
    if isinstance(entry, Tensor):
        return entry.dtype.kind == "b" and entry.ndim > 0
    if not isinstance(entry, (list, np.ndarray)):
        return False
    array = np.asarray(entry)
    return array.dtype.kind == "b" and array.ndim > 1


def _index_by_mask(x: Tensor, entries: list[Any], at: int) -> Tensor:
    """Return ``x[index]`` for an index with one mask and no other array.

    The slices and integers apply first, then the mask. Its dims become one dim of the selected entries, at the
    position of the mask. But this dim comes first if a slice, None or "..." stands between the mask and an int, as in
    NumPy. For ``x`` of shape [2, 3, 4, 5] and a mask with 7 True:

    - ``x[:, mask]`` with a mask [3, 4] has the shape [2, 7, 5];
    - ``x[0, :, mask]`` with a mask [4, 5] has the shape [7, 3].

    Args:
        x: the tensor.
        entries: the entries of the index.
        at: the position of the mask among them.

    Raises:
        OutOfRange: If the mask does not have the sizes of its dims, or an index is out of range.
        WorldError: If the world has no data.
    """
    mask = entries[at] if isinstance(entries[at], Tensor) else as_operand(np.asarray(entries[at]), x)
    # Full slices stand for the dims of the mask while slices and integers apply.
    before, after = entries[:at], entries[at + 1 :]
    plain = [*before, *[slice(None)] * mask.ndim, *after]
    parts = expand_dots([check_entry(entry) for entry in plain], x.ndim)
    first_dim = next(d for d in range(len(parts)) if _is_first_mask_dim(plain, parts, d, at))
    first_operand_dim = _count_operand_dims(parts, first_dim)
    if x.shape[first_operand_dim : first_operand_dim + mask.ndim] != mask.shape:
        raise OutOfRange(
            f"a mask of shape {mask.shape} does not fit a tensor of shape {x.shape} at dim {first_dim}"
        )
    y = x if all(entry == slice(None) for entry in parts) else _index_by_one_array(x, tuple(parts))
    position = sum(not isinstance(entry, int) for entry in parts[:first_dim])
    dims = list(range(position, position + mask.ndim))
    others = [d for d in range(y.ndim) if d not in dims]
    selected = select(y if not position else transpose(y, [*dims, *others]), mask)
    numbers = _positions_of_indices(parts)
    indexed_dims = sorted({*numbers, *range(first_dim, first_dim + mask.ndim)})
    if not position or _is_separated(indexed_dims) or (numbers and _has_dots_between([*before, 0, *after])):
        return selected
    return transpose(selected, [*range(1, position + 1), 0, *range(position + 1, selected.ndim)])


def _is_first_mask_dim(plain: list[Any], parts: list[Any], d: int, at: int) -> bool:
    """Return True if part ``d`` of an index stands for the first dim of its mask.

    Args:
        plain: the entries of the index, with full slices in place of the mask.
        parts: the entries without ``...``, one per dim.
        d: the number of the part.
        at: the position of the mask among the entries.
    """
    if Ellipsis not in [p for p in plain[:at] if p is None or p is Ellipsis or isinstance(p, (int, slice))]:
        return d == at
    # The "..." before the mask stands for any number of dims, so count from the end.
    return d == len(parts) - (len(plain) - at)


def _count_operand_dims(parts: Sequence[Any], position: int) -> int:
    """Return the dim of the operand for a position in the index; None counts as no dim."""
    return sum(entry is not None for entry in parts[:position])


class IndexLookup(NamedTuple):
    """The lookup by the arrays of an index: the indexed dims merged into one, and row-major numbers in it.

    Attributes:
        order: a permutation of dims that puts the indexed dims side by side, at the position where NumPy puts the
            result.
        first_dim: the position of the first indexed dim in this order.
        dim_count: the number of indexed dims.
        ids: the row-major numbers, an array or a tensor.
    """

    order: Shape
    first_dim: int
    dim_count: int
    ids: Any


def split_index(x: Tensor, entries: Sequence[Any]) -> tuple[list[Any], Tensor, IndexLookup]:
    """Split an index into a selection by ints and slices, and a lookup by arrays.

    For example, ``x[1:3, [0, 2], [1, 1]]`` for ``x`` of shape [4, 5, 6] selects ``y = x[1:3]`` and then looks up the
    entries 0 * 6 + 1 = 1 and 2 * 6 + 1 = 13 of the last two dims of ``y``, merged to one dim of 30.

    Args:
        x: the tensor.
        entries: the entries of the index; at least one is an array or a tensor of integers.

    Returns:
        Three values:

        - the parts of the index: a list with one entry per dim, and None for a new dim;
        - the tensor that integers and slices select; ``x`` itself if they select all;
        - the lookup in this tensor.

    Raises:
        RuleError: If an entry is of another kind, several are ``...``, or index arrays do not broadcast.
        OutOfRange: If an index is out of range, or there are more entries than dims.
    """
    entries = [check_entry(entry) for entry in entries]
    parts = expand_dots(entries, x.ndim)
    is_separated = _is_separated(_positions_of_indices(parts)) or _has_dots_between(entries)
    basic = tuple(slice(None) if _is_looked_up(entry) else entry for entry in parts)
    y = x if all(entry == slice(None) for entry in basic) else _index_by_one_array(x, basic)
    remaining = [k for k, entry in enumerate(parts) if not isinstance(entry, int)]
    dims = [d for d, k in enumerate(remaining) if _is_looked_up(parts[k])]
    numbers: Any = None
    for d in dims:
        n = y.shape[d]
        ids = normalise_ids(parts[remaining[d]], n, _count_operand_dims(parts, remaining[d]))
        # One array is looked up by its own indices, several by row-major numbers in their dims.
        numbers = ids if numbers is None else _combine_indices(numbers, n, ids)
    others = [d for d in range(y.ndim) if d not in dims]
    position = 0 if is_separated else dims[0]
    order = (*others[:position], *dims, *others[position:])
    return parts, y, IndexLookup(order, position, len(dims), numbers)


def _index_by_arrays(x: Tensor, entries: list[Any]) -> Tensor:
    """Return ``x[index]`` for an index with several arrays, by NumPy's rules.

    Ints and slices are applied first. Then the dims that are indexed by arrays are moved to the position where NumPy
    puts the arrays' dims in the result: the front if the arrays are apart. They are merged into one dim, which is
    looked up by the row-major numbers of its entries. The result is partial over the mesh axes that split an indexed
    dim.
    """
    _, y, lookup = split_index(x, entries)
    if lookup.order != tuple(range(y.ndim)):
        y = transpose(y, lookup.order)
    return gather(
        merge_dims(y, lookup.first_dim, lookup.first_dim + lookup.dim_count),
        as_operand(lookup.ids, x),
        lookup.first_dim,
    )


def _combine_indices(numbers: Any, size: int, ids: Any) -> Any:
    """Combine indices of two dims to row-major numbers, ``numbers * size + ids``.

    The numbers have 64 bits, because they count elements of both dims.

    Args:
        numbers: indices of the first dim, an array or a tensor.
        size: the size of the second dim.
        ids: indices of the second dim, an array or a tensor.

    Returns:
        A tensor if one of both is a tensor, else an array.

    Raises:
        RuleError: If the indices do not broadcast.
    """
    if isinstance(numbers, Tensor):
        return add(multiply(cast(numbers, np.int64), size), ids)
    offsets = np.asarray(numbers, np.int64) * size
    if isinstance(ids, Tensor):
        return add(offsets, ids)
    try:
        return offsets + np.asarray(ids)
    except ValueError:
        shapes = f"{np.shape(numbers)} and {np.shape(ids)}"
        raise RuleError(f"index arrays of shapes {shapes} do not broadcast") from None
