"""Windows of tensors: read and write them, and ``x[index] = value`` as a function.

:func:`spmdsim.ops.slice_` moves elements to the owners of the result's blocks. Here each rank contributes the
elements of the window that it owns. No element moves, and the result of a read is partial over the axes of cut dims.
A dim is cut if the window does not cover all of it. In rules the names of cut dims begin with "c" in the tensor and
with "w" in the window.

Read `window` and `slice_update` first, then `setitem`, which turns an index into windows or into one number of a
value per element.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from spmdsim.arrays import Context, Op, Tensor
from spmdsim.arrays.operands import Operand
from spmdsim.arrays.ops.arrange import take
from spmdsim.arrays.ops.declare import Array, Arrays, Shape, cast, convert_to_one_type
from spmdsim.arrays.ops.dim_reductions import sum as sum_
from spmdsim.arrays.ops.dim_reductions import to_type
from spmdsim.arrays.ops.elementwise import add, greater_equal, maximum, minimum, multiply, subtract, where
from spmdsim.arrays.ops.indexing import (
    check_entry,
    expand_dots,
    find_cut_of_parts,
    getitem,
    split_index,
    without_masks,
)
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.scans import cumulative_sum
from spmdsim.arrays.ops.scatter import scatter_values
from spmdsim.arrays.ops.selecting import flatten_in_blocks
from spmdsim.arrays.ops.shape import broadcast_to, drop_leading_ones, flip, reshape
from spmdsim.arrays.ops.windowed import WindowOp
from spmdsim.arrays.program_tensor import Index
from spmdsim.core import Layout, Rule
from spmdsim.errors import OutOfRange, RuleError, many
from spmdsim.layout.windowed_layout import Window
from spmdsim.worlds.convert_operands import Described, as_operand

__all__ = ["setitem", "slice_update", "window"]

#: Functions of the old elements and the values, for an index that names each element at most once.
FUNCTIONS: dict[str, Any] = {
    "add": add,
    "subtract": subtract,
    "multiply": multiply,
    "maximum": maximum,
    "minimum": minimum,
}


def _is_cut(shape: Shape, start: Shape, stop: Shape, step: Shape = ()) -> list[bool]:
    """Return for each dim True if the window does not cover all of it with step 1."""
    steps = step or (1,) * len(shape)
    full_ranges = [(0, size, 1) for size in shape]
    window_ranges = zip(start, stop, steps)
    return [window_range != full_range for window_range, full_range in zip(window_ranges, full_ranges)]


def _name_factors(shape: Shape, start: Shape, stop: Shape, step: Shape = ()) -> tuple[list[str], list[str]]:
    """Return the names of the dims of the tensor and of the window in rules, as two lists.

    Dim k is "c<k>" in the tensor and "w<k>" in the window if it is cut, and "d<k>" in both if not.
    """
    cut = _is_cut(shape, start, stop, step)
    tensor = [f"c{d}" if c else f"d{d}" for d, c in enumerate(cut)]
    return tensor, [f"w{d}" if c else f"d{d}" for d, c in enumerate(cut)]


def _read_rule(shape: Shape, start: Shape, stop: Shape) -> tuple[Rule, dict[str, int]]:
    """Return the rule of a window read, and the sizes of the window's cut dims by name.

    A dim is cut if the window does not cover all of it. For shape (6, 4), start (1, 0) and stop (3, 4) the rule is "c0
    d1 -> w0 d1", and the sizes are {"w0": 2}. Cut dims of the window must not be split.

    Args:
        shape: the shape of the tensor.
        start: first index of the window per dim.
        stop: the index after the last index of the window, per dim.
    """
    tensor, window = _name_factors(shape, start, stop)
    window_dims = [name for name in window if name[0] == "w"]
    sizes = {name: b - a for name, a, b in zip(window, start, stop) if name[0] == "w"}
    text = f"{' '.join(tensor)} -> {' '.join(window)}"
    return Rule.parse(text, whole=" ".join(window_dims), linear="each"), sizes


def _find_overlap(
    context: Context, start: Shape, stop: Shape, step: Shape = (), cut_name: str = "c"
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return slices for the elements that this rank's block and a window of the tensor share.

    For example, a block with the indices 4 to 8 (excluded) and a window 3, 5, 7 (start 3, stop 8, step 2) share the
    indices 5 and 7: the slice 1:5:2 of the block, and 1:3 of the window. A dim that the window covers has full slices
    in both. A dim without shared elements has empty slices.

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        start: first index of the window per dim.
        stop: the index after the last index of the window, per dim.
        step: distance of two indices per dim; () for 1.
        cut_name: first letter of the names of cut dims in the rule; the number of the dim follows.

    Returns:
        ``(slices of the block, slices of the window)``, one per dim each. Both select the same elements.
    """
    block_slices: list[slice] = []
    window_slices: list[slice] = []
    cuts, steps = _is_cut(context.bound.shapes[0], start, stop, step), step or (1,) * len(start)
    for d, (window_start, window_stop, stride, is_cut) in enumerate(zip(start, stop, steps, cuts)):
        if not is_cut:
            block_slices.append(slice(None))
            window_slices.append(slice(None))
            continue
        block_start, block_stop = context.bounds(f"{cut_name}{d}")
        window_size = len(range(window_start, window_stop, stride))
        # The number of the first window entry at or after the block's start, and at or after the block's end.
        first_entry, stop_entry = (
            min(max(-((window_start - bound) // stride), 0), window_size)
            for bound in (block_start, block_stop)
        )
        block_slice = slice(0, 0)
        if first_entry < stop_entry:
            offset = window_start - block_start
            block_slice = slice(offset + first_entry * stride, max(offset + stop_entry * stride, 0), stride)
        block_slices.append(block_slice)
        window_slices.append(slice(first_entry, stop_entry))
    return tuple(block_slices), tuple(window_slices)


def _read_window(context: Context, x: Array, start: Shape, stop: Shape) -> Array:
    """Return this rank's addend of the window: its own elements, zeros for those of other ranks.

    Dims that the window cuts have the size of the window; the others, which may be split, have that of the block.
    """
    shape = context.bound.shapes[0]
    block_slices, window_slices = _find_overlap(context, start, stop)
    is_cut = _is_cut(shape, start, stop)
    sizes = [stop[d] - start[d] if is_cut[d] else size for d, size in enumerate(x.shape)]
    result = np.zeros(sizes, x.dtype)
    result[window_slices] = x[block_slices]
    return result


def _read_vjp(
    context: Context, dy: Array, operands: Arrays, _y: Any, start: Shape, stop: Shape
) -> tuple[Array]:
    """Return the gradient of this rank's block: ``dy`` inside the window, zeros elsewhere."""
    gradient = np.zeros_like(operands[0])
    block_slices, window_slices = _find_overlap(context, start, stop)
    gradient[block_slices] = dy[window_slices]
    return (gradient,)


_read_op = Op("window", _read_rule, _read_window, _read_vjp, contextual=True, moves=True)


def _check_window(shape: Shape, start: Sequence[int], stop: Sequence[int]) -> tuple[Shape, Shape]:
    """Check the bounds of a window; return ``(start, stop)``, both converted to tuples.

    Args:
        shape: the shape of the tensor.
        start: first index of the window per dim.
        stop: the index after the last index of the window, per dim.

    Raises:
        RuleError: If there is not one bound per dim, or not ``0 <= start <= stop <= size``.
    """
    if len(start) != len(shape) or len(stop) != len(shape):
        raise RuleError(
            f"a window of shape {shape} needs {many(len(shape), 'bound')}, but got {start} and {stop}"
        )
    for d, (a, b, n) in enumerate(zip(start, stop, shape)):
        if not 0 <= a <= b <= n:
            raise RuleError(f"window {a}:{b} of dim {d} does not fit its size {n}")
    return tuple(start), tuple(stop)


@operator(_read_op)
def window(x: Tensor, start: Sequence[int], stop: Sequence[int]) -> Tensor:
    """Return ``x[start:stop]`` per dimension, partial over the axes that split a cut dimension.

    Args:
        x: the tensor.
        start: the first index of each dimension.
        stop: the index after the last one of each dimension, at most its size.

    Returns:
        A tensor of shape ``stop - start``.

    Raises:
        RuleError: If bounds are out of range, or there is not one pair per dimension.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.window(x, (0, 1), (2, 3)).full().tolist()
    [[1, 2], [5, 4]]
    """
    first, last = _check_window(x.shape, start, stop)
    return _read_op(x, start=first, stop=last)


def _write_rule(shape: Shape, value: Shape, start: Shape, stop: Shape, step: Shape) -> Rule:
    """Return the rule of a window write, in which the window's cut dims must not be split.

    For shape (6, 4), start (1, 0), stop (3, 4) and step (1, 1) it is "c0 d1, w0 d1 -> c0 d1". The shape of the value is
    not used.
    """
    tensor, window = _name_factors(shape, start, stop, step)
    window_dims = " ".join(name for name in window if name[0] == "w")
    text = f"{' '.join(tensor)}, {' '.join(window)} -> {' '.join(tensor)}"
    return Rule.parse(text, whole=window_dims, linear="all")


def _write_window(context: Context, x: Array, value: Array, start: Shape, stop: Shape, step: Shape) -> Array:
    """Return this rank's block with the elements of the window inside it, in the promoted type."""
    block_slices, window_slices = _find_overlap(context, start, stop, step)
    result = np.array(x, np.result_type(x, value))
    result[block_slices] = value[window_slices]
    return result


def _write_vjp(
    context: Context, dy: Array, operands: Arrays, _y: Any, start: Shape, stop: Shape, step: Shape
) -> tuple[Array, Array]:
    """Return the gradients of the tensor and of the written value.

    The gradient of the tensor is ``dy`` with 0 inside the window. The gradient of the value has the value's shape. It
    is this rank's addend: ``dy`` for the elements that lie in this rank's block, and 0 elsewhere.

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        dy: the gradient of this rank's block of the result.
        operands: this rank's block, and the value, whole in cut dims.
        _y: the result; not used.
        start: first index of the window per dim.
        stop: the index after the last index of the window, per dim.
        step: distance of two indices per dim.
    """
    block_slices, window_slices = _find_overlap(context, start, stop, step)
    x_gradient, value_gradient = np.array(dy), np.zeros(operands[1].shape, dy.dtype)
    x_gradient[block_slices] = 0
    value_gradient[window_slices] = dy[block_slices]
    return x_gradient, value_gradient


_write_op = Op("slice_update", _write_rule, _write_window, _write_vjp, contextual=True, moves=True)


def _write_own_window(
    context: Context, x: Array, value: Array, start: Shape, stop: Shape, step: Shape
) -> Array:
    """Return this rank's block with its window of the value, in the promoted type."""
    result = np.array(x, np.result_type(x, value))
    result[_find_overlap(context, start, stop, step, "d")[0]] = value
    return result


def _put_vjp(
    context: Context, dy: Array, _xs: Any, _y: Any, start: Shape, stop: Shape, step: Shape
) -> tuple[Array, Array]:
    """Return the gradients of this rank's block, 0 inside the window, and of its window of the value."""
    block_slices, x_gradient = _find_overlap(context, start, stop, step, "d")[0], np.array(dy)
    x_gradient[block_slices] = 0
    return x_gradient, dy[block_slices]


#: Like ``_write_op``, but for a value with split cut dims: each rank receives the elements of its own block.
_put_op = WindowOp(
    "slice_assign",
    lambda shape, _value, **_: Rule.parse(
        "{0}, {0} -> {0}".format(" ".join(f"d{d}" for d in range(len(shape)))), linear="all"
    ),
    _write_own_window,
    _put_vjp,
    contextual=True,
    moves=True,
    windows=lambda shape, _value, start, stop, step: {
        1: [
            Window(n, -a, spread=s) if cut else None
            for cut, n, a, s in zip(_is_cut(shape, start, stop, step), shape, start, step)
        ]
    },
)


@operator(_write_op)
def slice_update(
    x: Tensor, value: Operand, start: Sequence[int], stop: Sequence[int], step: Sequence[int] | None = None
) -> Tensor:
    """Return ``x`` with ``value`` in place of a window, in the promoted type of both.

    Each rank writes the elements of its own block. If the value is split along dims that the window does not fully
    cover, it stays split, and only the elements that a rank lacks are sent.

    Args:
        x: the tensor; it does not change.
        value: a tensor or array in exactly the shape of the window; it does not broadcast.
        start: the first index of each dimension, not negative.
        stop: the index after the last one of each dimension, at most its size.
        step: distance of two indices of each dimension, at least 1; None: 1.

    Returns:
        A tensor in the shape of ``x``.

    Raises:
        RuleError: If bounds are out of range, a step is less than 1, the numbers of bounds or steps differ from the
            number of dims, or the value has another shape.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.slice_update(x, [[0, 0], [0, 0]], (0, 1), (2, 3)).full().tolist()
    [[3, 0, 0], [6, 0, 0]]
    """
    x, value = convert_to_one_type("slice_update", x, value)
    first, last = _check_window(x.shape, start, stop)
    steps = (1,) * x.ndim if step is None else tuple(step)
    if len(steps) != x.ndim or min(steps, default=1) < 1:
        raise RuleError(
            f"a window of shape {x.shape} needs {many(x.ndim, 'step')} from 1 on, but got {steps}"
        )
    wanted = tuple(len(range(*bounds)) for bounds in zip(first, last, steps))
    if value.shape != wanted:
        raise RuleError(f"the window {first}..{last} has shape {wanted}, but the value {value.shape}")
    cut_and_axes = zip(_is_cut(x.shape, first, last, steps), value.layout.dims)
    is_split_where_cut = any(is_cut and axes for is_cut, axes in cut_and_axes)
    is_partial = x.layout.partial_axes or value.layout.partial_axes
    op = _put_op if is_split_where_cut and not is_partial else _write_op
    return op(x, value, start=first, stop=last, step=steps)


@operator()
def setitem(x: Tensor, index: Index, value: Operand) -> Tensor:
    """Return a tensor with ``value`` at an index.

    For ``x`` [1, 2, 3, 4], the index ``slice(1, 3)`` and the value 9, for example, the result is [1, 9, 9, 4]. It has
    shape, element type and split dimensions of ``x``, which does not change.

    Args:
        x: the tensor.
        index: integers, slices, ``...``, None, masks, and arrays or tensors of integers, as in NumPy. All ranks must
            have equal arrays.
        value: broadcasts to the shape of ``x[index]`` and is converted to the tensor's type; leading dims of size 1
            are dropped. If an array names an element several times, the last value counts.

    Raises:
        RuleError: If a value does not broadcast, its type cannot be cast to that of ``x`` (float to integer, complex
            to float), or the index has an entry of another kind.
        OutOfRange: If an index is out of range, or a mask has other sizes.
        InputError: If an index in a tensor is out of range.
    """
    new = as_operand(value, x)
    if new.dtype != x.dtype:
        if not np.can_cast(new.dtype, x.dtype, "same_kind"):
            raise RuleError(f"elements of {new.dtype} are not assigned to {x.dtype}; convert them first")
        new = to_type(new, x.dtype)
    mask = _get_mask(index, x)
    if mask is not None:
        if new.size == 1:
            return where(_split_like(mask, x), reshape(new, ()), x)
        if _has_tensor(index):
            return _assign_by_number(x, _number_values(mask, x, new), new)
    entries = index if isinstance(index, tuple) else (index,)
    if _has_tensor(index):
        return change_at(x, index, new, "set", "an assignment")
    if any(isinstance(entry, (list, np.ndarray)) for entry in entries):
        return _assign_by_arrays(x, entries, new)
    return _assign_slices(x, expand_dots([check_entry(p) for p in entries], x.ndim), new)


def change_at(x: Tensor, index: Any, value: Operand, kind: str, name: str) -> Tensor:
    """Return the tensor with values set or combined at an index.

    If arrays of the index name an element several times, all its values apply, one after the other. So [1, 1] with the
    index [0, 0], the values [5, 7] and the kind "add" gives [13, 1].

    Args:
        x: the tensor; it does not change.
        index: as in :func:`setitem`.
        value: broadcasts to the shape of ``x[index]``.
        kind: "add", "subtract", "multiply", "maximum" or "minimum"; for an index with arrays also "set".
        name: the call, for error messages.

    Raises:
        RuleError: If an index of arrays also inserts dims by None, or the value does not fit.
        OutOfRange: If an index of integers or slices is out of range.
        InputError: If an index of a tensor is out of range.
        UsageTypeError: If ``kind`` has no gradient and an operand requires one.
    """
    entries = without_masks(index if isinstance(index, tuple) else (index,))
    entries = [np.asarray(entry)[()] if isinstance(entry, (list, np.ndarray)) else entry for entry in entries]
    if not any(isinstance(entry, (np.ndarray, Tensor)) for entry in entries):
        return setitem(x, tuple(entries), FUNCTIONS[kind](getitem(x, tuple(entries)), value))
    index_parts, y, looked = split_index(x, entries)
    if None in [entry for entry in index_parts if not isinstance(entry, (np.ndarray, Tensor))]:
        raise RuleError(f"{name}: an index of tensors takes no new dims; use np.expand_dims on the values")
    changed = scatter_values(y, looked, value, kind, name)
    if y is x:
        return changed
    basic = [slice(None) if isinstance(entry, (np.ndarray, Tensor)) else entry for entry in index_parts]
    return _assign_slices(x, basic, changed)


def _has_tensor(index: Any) -> bool:
    """Return True if an entry of the index is a tensor."""
    return any(isinstance(entry, Tensor) for entry in (index if isinstance(index, tuple) else (index,)))


def _number_values(mask: Tensor, x: Tensor, value: Tensor) -> Tensor:
    """Return the row-major number of each element's value; -1 where the mask is False.

    All ranks must call it: it reads the number of True elements. For a mask [True, False, True] it is [0, -1, 1].
    """
    places = cast(broadcast_to(mask, x.shape), np.int64)
    count = int(sum_(places))
    if value.shape != (count,):
        raise RuleError(
            f"the mask holds for {many(count, 'element')}, but the values have shape {value.shape}"
        )
    running = reshape(cumulative_sum(flatten_in_blocks(places), 0), x.shape, x.layout.reduced)
    return where(places, subtract(running, 1), -1)


def _assign_by_arrays(x: Tensor, entries: tuple[Any, ...], value: Tensor) -> Tensor:
    """Return ``x`` with a value at each element that arrays of an index name.

    If the arrays name an element several times, its last value counts. Every process computes the coordinates of all
    indexed elements. Each rank then computes a number for each element of its own block: the number of the value that
    the element gets, or -1. It looks the values up by these numbers.

    Args:
        x: the tensor.
        entries: the entries of the index: arrays, lists, integers and slices, equal on all ranks.
        value: one value for all elements, or a tensor that broadcasts to the shape of ``x[entries]``. Leading dims of
            size 1 may be more than those of ``x[entries]``.

    Raises:
        OutOfRange: If an index is out of range, or there are more entries than dims.
        RuleError: If the value does not broadcast.
    """
    if not x.ndim:
        raise OutOfRange("an index of a tensor of shape (): it has no dim that an array can index; use x[()]")
    lines = np.ix_(*[np.arange(n) for n in x.shape])
    try:  # NumPy computes the coordinates of all indexed elements, dim by dim
        places = [np.broadcast_to(line, x.shape)[entries] for line in lines]
    except IndexError as error:
        raise OutOfRange(f"an index of a tensor of shape {x.shape}: {error}") from None
    indexed_shape = places[0].shape
    if value.size != 1:
        value = broadcast_to(drop_leading_ones(value, len(indexed_shape)), indexed_shape)
    source = Described(
        partial(_number_values_in_box, places), f"places {zlib.crc32(np.stack(places).tobytes())}"
    )
    numbers = Tensor.from_global(source, x.layout.reduced, x.world, shape=x.shape, dtype=np.int64)
    return _assign_by_number(x, numbers, value)


def _number_values_in_box(places: list[Array], box: tuple[slice, ...]) -> Array:
    """Return, for each element of a box, the number of the value that it gets; -1 if it gets none.

    Args:
        places: for each dim the coordinates of all indexed elements; value ``k`` is for the ``k``-th one.
        box: the slice of each dim.
    """
    is_inside = np.logical_and.reduce(
        [(coordinates >= span.start) & (coordinates < span.stop) for coordinates, span in zip(places, box)]
    )
    numbers = np.full([span.stop - span.start for span in box], -1)
    local_places = [coordinates[is_inside] - span.start for coordinates, span in zip(places, box)]
    numbers[tuple(local_places)] = np.flatnonzero(is_inside)
    return numbers


def _assign_by_number(x: Tensor, numbers: Tensor, value: Tensor) -> Tensor:
    """Return ``x`` with new values at the elements whose number is at least 0.

    For example, the numbers [1, -1, 0] and the values [8, 9] turn [5, 6, 7] into [9, 6, 8].

    Args:
        x: the tensor; returned itself if there are no values.
        numbers: per element the row-major number of its new value; negative: the element stays.
        value: the values, of any shape; a single one counts for all numbers.
    """
    is_set = greater_equal(numbers, 0)
    if value.size == 1:
        return where(is_set, reshape(value, ()), x)
    if not value.size:
        return x
    return where(is_set, take(reshape(value, -1), maximum(numbers, 0), 0), x)


def _get_mask(index: Any, x: Tensor) -> Tensor | None:
    """Return the mask if an index is one boolean array over the first dims of ``x``, else None.

    Args:
        index: the index of an assignment. A bool, a list of bools and a bool tensor count as boolean arrays. A tuple of
            one entry counts as this entry; a longer tuple gives None.
        x: the tensor.

    Returns:
        A bool tensor that broadcasts with ``x``: its other dims have size 1.

    Raises:
        OutOfRange: If the mask does not have the sizes of the first dims.
    """
    entry = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if not (isinstance(entry, (list, bool, np.bool_, np.ndarray, Tensor))):
        return None
    mask = entry if isinstance(entry, Tensor) else np.asarray(entry)
    if mask.dtype.kind != "b":
        return None
    if tuple(mask.shape) != x.shape[: mask.ndim]:
        raise OutOfRange(f"a mask of shape {tuple(mask.shape)} does not fit a tensor of shape {x.shape}")
    return reshape(as_operand(mask, x), (*mask.shape, *[1] * (x.ndim - mask.ndim)))


def _assign_slices(x: Tensor, parts: list[Any], value: Tensor) -> Tensor:
    """Return ``x`` with ``value`` at an index of slices and integers.

    Args:
        x: the tensor; it does not change.
        parts: one int or slice per dim; None inserts a dim of length 1.
        value: broadcasts to the shape of the selection. Surplus leading dims of size 1 are dropped.

    Raises:
        RuleError: If the value does not broadcast, or a step is 0.
        OutOfRange: If an int is out of range.
    """
    cut = find_cut_of_parts(x.shape, parts)
    window = [len(range(*bounds)) for bounds in zip(cut.start, cut.stop, cut.step)]
    value = drop_leading_ones(value, len(cut.shape))
    if value.shape != cut.shape:
        value = broadcast_to(value, cut.shape)
    if value.shape != tuple(window):
        value = reshape(value, window)
    if cut.reversed_dims:
        value = flip(value, cut.reversed_dims)
    return slice_update(x, _split_like(value, x, cut=any(value.layout.dims)), cut.start, cut.stop, cut.step)


def _split_like(value: Tensor, x: Tensor, cut: bool = False) -> Tensor:
    """Return a value with its dims split as the dims of ``x``.

    Then ``x`` itself does not have to move. If ``x`` is partial, the value is returned unchanged.

    Args:
        value: a tensor with as many dims as ``x``.
        x: the tensor.
        cut: True to split all dims. False to split only dims of equal size; the others are gathered.
    """
    if x.layout.partial_axes:
        return value
    split_dims = [axes if cut or n == m else () for axes, n, m in zip(x.layout.dims, value.shape, x.shape)]
    return value.to(Layout(x.layout.mesh, split_dims))
