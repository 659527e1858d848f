"""Reading and writing a window of a tensor whose cut dims may be split, and ``x[index] = value`` as a function.

:func:`spmdsim.ops.slice_` moves elements to where the blocks of the result have them. Here every rank contributes the
part of the window that it holds: nothing is moved, nothing gathered, and a read is partial over the axes of the cut dims.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Context, Op, Tensor
from spmdsim.arrays.operands import Operand
from spmdsim.arrays.ops.arrange import take
from spmdsim.arrays.ops.declare import Array, Arrays, Shape, alike, cast
from spmdsim.arrays.ops.dim_reductions import as_type
from spmdsim.arrays.ops.dim_reductions import sum as sum_
from spmdsim.arrays.ops.elementwise import add, greater_equal, maximum, minimum, multiply, subtract, where
from spmdsim.arrays.ops.indexing import cut_of_parts, getitem, parted, per_dim, place_of, without_masks
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.scans import cumulative_sum
from spmdsim.arrays.ops.scatter import scattered
from spmdsim.arrays.ops.selecting import flattened
from spmdsim.arrays.ops.shape import broadcast_to, flip, reshape
from spmdsim.arrays.ops.windowed import WindowOp
from spmdsim.arrays.program_tensor import Index
from spmdsim.core import Layout, Rule
from spmdsim.errors import OutOfRange, RuleError, many
from spmdsim.layout.windowed_layout import Window
from spmdsim.worlds.convert_operands import Described, as_operand

__all__ = ["setitem", "slice_update", "window"]

#: What is computed where places are named once.
FUNCTIONS: dict[str, Any] = {
    "add": add,
    "subtract": subtract,
    "multiply": multiply,
    "maximum": maximum,
    "minimum": minimum,
}


def _cut(shape: Shape, start: Shape, stop: Shape, step: Shape = ()) -> list[bool]:
    steps = step or (1,) * len(shape)
    return [(a, b, s) != (0, n, 1) for a, b, s, n in zip(start, stop, steps, shape)]


def _names(shape: Shape, start: Shape, stop: Shape, step: Shape = ()) -> tuple[list[str], list[str]]:
    """The dims of the tensor and of the window; a cut dim of the window is another factor than the tensor's."""
    cut = _cut(shape, start, stop, step)
    tensor = [f"c{d}" if c else f"d{d}" for d, c in enumerate(cut)]
    return tensor, [f"w{d}" if c else f"d{d}" for d, c in enumerate(cut)]


def _read_rule(shape: Shape, start: Shape, stop: Shape) -> tuple[Rule, dict[str, int]]:
    tensor, window = _names(shape, start, stop)
    whole = [name for name in window if name[0] == "w"]
    sizes = {name: b - a for name, a, b in zip(window, start, stop) if name[0] == "w"}
    text = f"{' '.join(tensor)} -> {' '.join(window)}"
    return Rule.parse(text, whole=" ".join(whole), linear="each"), sizes


def _overlap(
    context: Context, start: Shape, stop: Shape, step: Shape = (), cut_name: str = "c"
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Where this rank's part and the window meet: as slices of the part, and of the window."""
    held: list[slice] = []
    seen: list[slice] = []
    cuts, steps = _cut(context.bound.shapes[0], start, stop, step), step or (1,) * len(start)
    for d, (a, b, s, cut) in enumerate(zip(start, stop, steps, cuts)):
        if not cut:
            held.append(slice(None))
            seen.append(slice(None))
            continue
        first, last = context.bounds(f"{cut_name}{d}")
        # The window's entries that lie from the first place on, and from the one after the last.
        low, high = (min(max(-((a - place) // s), 0), len(range(a, b, s))) for place in (first, last))
        there = slice(a + low * s - first, max(a + high * s - first, 0), s) if low < high else slice(0, 0)
        held.append(there)
        seen.append(slice(low, high))
    return tuple(held), tuple(seen)


def _read(context: Context, x: Array, start: Shape, stop: Shape) -> Array:
    """Return this rank's addend of the window from ``start`` to ``stop``: zeros where other ranks own the elements."""
    shape = context.bound.shapes[0]
    held, seen = _overlap(context, start, stop)
    window = [b - a if c else n for a, b, c, n in zip(start, stop, _cut(shape, start, stop), x.shape)]
    filled = np.zeros(window, x.dtype)
    filled[seen] = x[held]
    return filled


def _read_vjp(
    context: Context, dy: Array, operands: Arrays, _y: Any, start: Shape, stop: Shape
) -> tuple[Array]:
    gradient = np.zeros_like(operands[0])
    held, seen = _overlap(context, start, stop)
    gradient[held] = dy[seen]
    return (gradient,)


_read_op = Op("window", _read_rule, _read, _read_vjp, contextual=True, moves=True)


def _check(shape: Shape, start: Sequence[int], stop: Sequence[int]) -> tuple[Shape, Shape]:
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

    Raises:
        RuleError: bounds outside the tensor, or not one pair per dim.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.window(x, (0, 1), (2, 3)).full().tolist()
    [[1, 2], [5, 4]]
    """
    first, last = _check(x.shape, start, stop)
    return _read_op(x, start=first, stop=last)


def _write_rule(shape: Shape, value: Shape, start: Shape, stop: Shape, step: Shape) -> Rule:
    tensor, window = _names(shape, start, stop, step)
    whole = " ".join(name for name in window if name[0] == "w")
    text = f"{' '.join(tensor)}, {' '.join(window)} -> {' '.join(tensor)}"
    return Rule.parse(text, whole=whole, linear="all")


def _write(context: Context, x: Array, value: Array, start: Shape, stop: Shape, step: Shape) -> Array:
    held, seen = _overlap(context, start, stop, step)
    whole = np.array(x, np.result_type(x, value))
    whole[held] = value[seen]
    return whole


def _write_vjp(
    context: Context, dy: Array, operands: Arrays, _y: Any, start: Shape, stop: Shape, step: Shape
) -> tuple[Array, Array]:
    held, seen = _overlap(context, start, stop, step)
    below, value = np.array(dy), np.zeros(operands[1].shape, dy.dtype)
    below[held] = 0
    value[seen] = dy[held]
    return below, value


_write_op = Op("slice_update", _write_rule, _write, _write_vjp, contextual=True, moves=True)


def _put(context: Context, x: Array, value: Array, start: Shape, stop: Shape, step: Shape) -> Array:
    whole = np.array(x, np.result_type(x, value))
    whole[_overlap(context, start, stop, step, "d")[0]] = value
    return whole


def _put_vjp(
    context: Context, dy: Array, _xs: Any, _y: Any, start: Shape, stop: Shape, step: Shape
) -> tuple[Array, Array]:
    held, below = _overlap(context, start, stop, step, "d")[0], np.array(dy)
    below[held] = 0
    return below, dy[held]


#: The same where cut dims of the value are split: as the tensor's, each rank is given what lies in its part.
_put_op = WindowOp(
    "slice_assign",
    lambda shape, _value, **_: Rule.parse(
        "{0}, {0} -> {0}".format(" ".join(f"d{d}" for d in range(len(shape)))), linear="all"
    ),
    _put,
    _put_vjp,
    contextual=True,
    moves=True,
    windows=lambda shape, _value, start, stop, step: {
        1: [
            Window(n, -a, spread=s) if cut else None
            for cut, n, a, s in zip(_cut(shape, start, stop, step), shape, start, step)
        ]
    },
)


@operator(_write_op)
def slice_update(
    x: Tensor, value: Operand, start: Sequence[int], stop: Sequence[int], step: Sequence[int] | None = None
) -> Tensor:
    """Replace the window ``[start:stop:step]`` of ``x`` by ``value``.

    The result has the type to which both are promoted.

    Args:
        x: the tensor.
        value: a tensor or an array of the window's very shape; it does not broadcast.
        start: the first index of each dimension.
        stop: the index after the last one of each dimension, at most its size.
        step: distance of two indices of each dimension, 1 or more; by default 1.

    Raises:
        RuleError: bounds outside the tensor, steps less than 1, not one of each per dim, or a value of another shape
            than the window.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.slice_update(x, [[0, 0], [0, 0]], (0, 1), (2, 3)).full().tolist()
    [[3, 0, 0], [6, 0, 0]]
    """
    x, value = alike("slice_update", x, value)
    first, last = _check(x.shape, start, stop)
    steps = (1,) * x.ndim if step is None else tuple(step)
    if len(steps) != x.ndim or min(steps, default=1) < 1:
        raise RuleError(
            f"a window of shape {x.shape} needs {many(x.ndim, 'step')} from 1 on, but got {steps}"
        )
    wanted = tuple(len(range(a, b, s)) for a, b, s in zip(first, last, steps))
    if value.shape != wanted:
        raise RuleError(f"the window {first}..{last} has shape {wanted}, but the value {value.shape}")
    cut = zip(_cut(x.shape, first, last, steps), value.layout.dims)
    partial = x.layout.partial_axes or value.layout.partial_axes
    op = _put_op if any(c and axes for c, axes in cut) and not partial else _write_op
    return op(x, value, start=first, stop=last, step=steps)


@operator()
def setitem(x: Tensor, index: Index, value: Operand) -> Tensor:
    """Return the tensor with ``value`` at an index; shape and type stay.

    Cut dimensions may be split.

    Args:
        x: the tensor.
        index: integers, slices, ``...``, None, arrays or tensors of integers, and masks, as in numpy. Arrays are those
            that all ranks have.
        value: broadcasts to what is at the index, and takes the tensor's element type. Where a place is named several
            times the last value stays, counted row by row through the arrays or tensors.

    Raises:
        RuleError: a value that does not fit, an index out of range.
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
    if _holds_tensor(index):
        return changed_at(x, index, new, "set", "an assignment")
    if any(isinstance(entry, (list, np.ndarray)) for entry in entries):
        return _scattered(x, entries, new)
    return _assigned(x, per_dim([place_of(p) for p in entries], x.ndim), new)


def changed_at(x: Tensor, index: Any, value: Operand, kind: str, name: str) -> Tensor:
    """The tensor with values set or added at an index, once for each time that a place is named.

    Args:
        x: the tensor.
        index: as in :func:`setitem`.
        value: broadcasts to what is at the index.
        kind: "set", or a function of two elements, one of :data:`spmdsim.arrays.ops.scatter.KINDS`.
        name: the call, for errors.
    """
    entries = without_masks(index if isinstance(index, tuple) else (index,))
    entries = [np.asarray(entry)[()] if isinstance(entry, (list, np.ndarray)) else entry for entry in entries]
    if not any(isinstance(entry, (np.ndarray, Tensor)) for entry in entries):
        return setitem(x, tuple(entries), FUNCTIONS[kind](getitem(x, tuple(entries)), value))
    parts, y, looked = parted(x, entries)
    if None in [part for part in parts if not isinstance(part, (np.ndarray, Tensor))]:
        raise RuleError(f"{name}: an index of tensors takes no new dims; use np.expand_dims on the values")
    changed = scattered(y, looked, value, kind, name)
    if y is x:
        return changed
    basic = [slice(None) if isinstance(part, (np.ndarray, Tensor)) else part for part in parts]
    return _assigned(x, basic, changed)


def _holds_tensor(index: Any) -> bool:
    return any(isinstance(entry, Tensor) for entry in (index if isinstance(index, tuple) else (index,)))


def _numbers_of(mask: Tensor, x: Tensor, value: Tensor) -> Tensor:
    """For each element the number of its value, row by row, and -1 where the mask does not hold."""
    places = cast(broadcast_to(mask, x.shape), np.int64)
    count = int(sum_(places))
    if value.shape != (count,):
        raise RuleError(
            f"the mask holds for {many(count, 'element')}, but the values have shape {value.shape}"
        )
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

    def numbers(box: tuple[slice, ...]) -> Array:
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
    cut = cut_of_parts(x.shape, parts)
    window = [len(range(*one)) for one in zip(cut.start, cut.stop, cut.step)]
    extra = value.ndim - len(cut.shape)
    if extra > 0 and math.prod(value.shape[:extra]) == 1:  # numpy drops leading dims of size one
        value = reshape(value, value.shape[extra:])
    whole = value if value.shape == cut.shape else broadcast_to(value, cut.shape)
    shaped = whole if whole.shape == tuple(window) else reshape(whole, window)
    placed = flip(shaped, cut.turned) if cut.turned else shaped
    return slice_update(x, _beside(placed, x, cut=any(placed.layout.dims)), cut.start, cut.stop, cut.step)


def _beside(value: Tensor, x: Tensor, cut: bool = False) -> Tensor:
    """What has as many dims as the tensor, split where its whole dims are: the tensor itself then stays as it is.

    With ``cut`` dims of other sizes are split, too.
    """
    if x.layout.partial_axes:
        return value
    kept = [axes if cut or n == m else () for axes, n, m in zip(x.layout.dims, value.shape, x.shape)]
    return value.to(Layout(x.layout.mesh, kept))
