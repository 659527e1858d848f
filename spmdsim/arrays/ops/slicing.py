"""Operators that take tensors apart and put them together: slice, split, pad, roll, concat.

Dims stay split as they are: those that are cut, padded, turned or put together are read in windows. Any pending reduction
passes through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Context, Tensor
from spmdsim.arrays.operands import counted_dim
from spmdsim.arrays.ops.declare import Array, Arrays, Shape, alike
from spmdsim.arrays.ops.dim_reductions import Dims
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.shape import broadcast_to, flatten, flip, reshape, same_dims
from spmdsim.arrays.ops.windowed import WindowOp, Windows, margins, surrounded
from spmdsim.core import Rule
from spmdsim.core.notation.layouts import as_integers
from spmdsim.errors import RuleError, many
from spmdsim.layout.element_type import as_array
from spmdsim.layout.windowed_layout import Window

__all__ = ["concat", "pad", "roll", "slice_", "split"]

#: As numpy has it: how many elements are added everywhere, or before and after every dim, or each dim.
PadWidth = int | Sequence[int] | Sequence[Sequence[int]] | dict[int, int] | dict[int, tuple[int, int]]


def _slice_windows(shape: Shape, start: Shape, stop: Shape, step: Shape) -> Windows:
    bounds = zip(start, stop, step, shape)
    return {
        0: [None if (a, b, s) == (0, n, 1) else Window(len(range(a, b, s)), a, 1, s) for a, b, s, n in bounds]
    }


def _brought(x: Array, **_: Any) -> Array:
    return x


_slice_op = WindowOp(
    "slice",
    same_dims,
    _brought,
    lambda dy, _operands, _y, **_: (dy,),
    moves=True,
    windows=_slice_windows,
)


@operator(_slice_op)
def slice_(x: Tensor, start: Sequence[int], stop: Sequence[int], step: Sequence[int] | None = None) -> Tensor:
    """Return ``x[start:stop:step]`` per dimension, with bounds >= 0 and steps >= 1.

    A dim that is split stays so: its elements go where the balanced blocks of the new size have them, from neighbour to
    neighbour where the slice is a shift by less than a block, and nothing else is sent.

    Args:
        x: the tensor.
        start: the first index of each dimension.
        stop: the index after the last one of each dimension, at most its size.
        step: distance of two indices of each dimension, 1 or more; by default 1.

    Raises:
        RuleError: bounds outside the tensor, a start behind the stop, or a step less than 1.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.slice_(x, (0, 1), (2, 3)).full().tolist()
    [[1, 2], [5, 4]]
    """
    steps = tuple(step) if step is not None else (1,) * x.ndim
    for d, (a, b, s, n) in enumerate(zip(start, stop, steps, x.shape)):
        if not 0 <= a <= b <= n or s < 1:
            raise RuleError(f"slice {a}:{b}:{s} of dim {d} does not fit its size {n}")
    return _slice_op(x, start=tuple(start), stop=tuple(stop), step=steps)


def part_along(x: Tensor, dim: int, start: int, stop: int) -> Tensor:
    """What lies between two places of a dim."""
    starts, stops = [0] * x.ndim, list(x.shape)
    starts[dim], stops[dim] = start, stop
    return slice_(x, starts, stops)


@operator()
def split(x: Tensor, parts: int, dim: int = 0, *, axis: int = 0) -> list[Tensor]:
    """Split a dimension into equal blocks.

    Args:
        x: the tensor.
        parts: how many; divides the size of the dim.
        dim: the dimension; negative numbers count from the end. It may be split.
        axis: another name of ``dim``.

    Raises:
        RuleError: a dimension out of range, the size does not divide, or no pieces.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> [y.full().tolist() for y in ops.split(x, 3, dim=1)]
    [[[3], [6]], [[1], [5]], [[2], [4]]]
    """
    dim = counted_dim(dim, x.ndim)
    n = x.shape[dim]
    if parts < 1 or n % parts:
        raise RuleError(f"dim {dim} of size {n} does not split into {parts} equal parts")
    return [part_along(x, dim, k * n // parts, (k + 1) * n // parts) for k in range(parts)]


def _pad_windows(shape: Shape, before: Shape, after: Shape, value: float) -> Windows:
    sides = zip(before, after, shape)
    return {0: [Window(n + a + b, -a) if a or b else None for a, b, n in sides]}


def _pad_vjp(context: Context, dy: Array, operands: Arrays, _y: Any, **_: Any) -> tuple[Array]:
    sides = zip(margins(context), operands[0].shape)
    return (dy[tuple(slice(a, a + n) for (a, _), n in sides)],)


_pad_op = WindowOp(
    "pad",
    lambda shape, before, after, value: same_dims(shape) if value == 0 else Rule.parse(same_dims(shape).text),
    lambda context, x, before, after, value: surrounded(x, margins(context), [value] * x.ndim),
    _pad_vjp,
    contextual=True,
    unseen=(0,),
    moves=True,
    windows=_pad_windows,
)


@operator(_pad_op)
def pad(
    x: Tensor,
    before: PadWidth,
    after: Sequence[int] | str | None = None,
    value: float = 0.0,
    *,
    pad_width: PadWidth = 0,
    mode: str = "constant",
    constant_values: float = 0.0,
) -> Tensor:
    """Add ``before`` and ``after`` elements per dimension; split dimensions stay split.

    Args:
        x: the tensor.
        before: one count per dim; or, without ``after``, numpy's ``pad_width``: one count, a pair for all dims, or a
            pair per dim.
        after: one count per dim.
        value: what is added.
        pad_width: another name of ``before``.
        mode: as numpy's; it may stand in the place of ``after``. ``"constant"``; ``"edge"``, the outermost element;
            ``"wrap"``, what is at the other end; ``"reflect"`` and ``"symmetric"``, what lies behind the edge, without
            and with it.
        constant_values: another name of ``value``.

    Raises:
        RuleError: a negative count, or not one per dim; another mode.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.pad(v, ((1, 2),)).full().tolist()
    [0, 3, 1, 3, 2, 0, 0]
    """
    if isinstance(after, str):
        mode, after = after, None
    if mode not in ("constant", *_REPEATING):
        modes = ", ".join(map(repr, ("constant", *_REPEATING)))
        raise RuleError(f"pad has the modes {modes}, but got {mode!r}")
    first: Any
    last: Any
    first, last = _both_sides(before, x.ndim) if after is None else (before, after)
    if np.shape(first) != (x.ndim,) or np.shape(last) != (x.ndim,) or min((*first, *last), default=0) < 0:
        raise RuleError(
            f"pad needs {many(x.ndim, 'count')} >= 0 on each side, but got {before if after is None else (before, after)}"
        )
    if mode != "constant" and any((*first, *last)):
        for d, width in enumerate(zip(first, last)):
            x = _repeated(x, d, width, mode) if any(width) else x
        return x
    _check_fits(value, x.dtype)
    return _pad_op(x, before=as_integers(first), after=as_integers(last), value=value)


def _check_fits(value: Any, dtype: np.dtype) -> None:
    """Refuse a number that elements of a type cannot be, by a RuleError."""
    number = isinstance(value, (int, float, complex, np.generic))
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    far = number and limits is not None and np.isreal(value) and not limits.min <= value <= limits.max
    if far or (number and not np.isreal(value) and dtype.kind != "c"):
        raise RuleError(
            f"pad puts {value} beside elements of {dtype.name}, which cannot be that; use .astype first"
        )


#: Modes in which elements of the tensor are repeated beyond its ends.
_REPEATING = ("edge", "wrap", "reflect", "symmetric")


def _repeated(x: Tensor, dim: int, width: tuple[int, int], mode: str) -> Tensor:
    """A dim with elements of its own before and after it: slices, some of them reversed, and copies of the ends."""
    n = x.shape[dim]
    if not n:
        raise RuleError(
            f"pad in the mode {mode!r} repeats elements, but dim {dim} of shape {x.shape} has none"
        )
    places = np.pad(np.arange(n), width, mode)  # type: ignore[call-overload]
    ends = _runs(places[: width[0]]), _runs(places[width[0] + n :])
    before, after = ([_run(x, dim, run) for run in runs] for runs in ends)
    return concat([*before, x, *after], dim)


def _runs(places: Array) -> list[Array]:
    """Places in pieces that ascend or descend by one, or stay the same."""
    steps = np.diff(places)
    jumps = np.flatnonzero((np.diff(steps, prepend=steps[:1]) != 0) | (abs(steps) > 1)) + 1
    return [run for run in np.split(places, jumps) if run.size]


def _run(x: Tensor, dim: int, places: Array) -> Tensor:
    first, last = int(places.min()), int(places.max()) + 1
    piece = part_along(x, dim, first, last)
    if places[0] > places[-1]:
        return flip(piece, dim)
    shape = [len(places) if d == dim else n for d, n in enumerate(x.shape)]
    return piece if last - first == len(places) else broadcast_to(piece, shape)


def _both_sides(width: PadWidth, ndim: int) -> tuple[Any, Any]:
    """What numpy's pad_width says: the counts before and those after."""
    if isinstance(width, dict):
        sides = {counted_dim(d, ndim): np.broadcast_to(as_array(one), 2).tolist() for d, one in width.items()}
        width = [sides.get(d, (0, 0)) for d in range(ndim)]
    try:
        pairs = np.broadcast_to(as_array(width), (ndim, 2))
    except ValueError:
        raise RuleError(
            f"pad takes a count, a pair of them or {many(ndim, 'pair')} for a tensor of {many(ndim, 'dim')}, but got {width}"
        ) from None
    return tuple(pairs[:, 0].tolist()), tuple(pairs[:, 1].tolist())


_roll_op = WindowOp(
    "roll",
    same_dims,
    lambda x, **_: x,
    lambda dy, _operands, _y, **_: (dy,),
    moves=True,
    windows=lambda shape, shift: {
        0: [Window(n, -(s % n), wrap=True) if n and s % n else None for s, n in zip(shift, shape)]
    },
)


@operator(_roll_op)
def roll(x: Tensor, shift: int | Sequence[int], dim: Dims = None, *, axis: Dims = None) -> Tensor:
    """Move elements ``shift`` positions along one dimension or several, cyclically.

    Split dims stay split, and only what changes ranks is sent. Without a dim the tensor is rolled as if it had one.

    Args:
        x: the tensor.
        shift: how many places, or one number per dim; negative ones to the beginning.
        dim: along which dim or dims; None: among all elements, in row-major order.
        axis: another name of ``dim``.

    Raises:
        RuleError: a dimension out of range, neither one shift per dim nor a single one of either.
        UsageTypeError: dims or shifts that are no integers.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.roll(v, 2).full().tolist()
    [3, 2, 3, 1]
    """
    if dim is None:
        if x.ndim < 2:
            return roll(x, shift, 0) if x.ndim else _roll_op(x, shift=())
        return reshape(roll(flatten(x), shift, 0), x.shape, x.layout.reduced)
    dims = as_integers([dim] if isinstance(dim, (int, np.integer, str)) else dim, "dims")
    shifts = as_integers([shift] if isinstance(shift, (int, np.integer, str)) else shift, "shifts")
    if len(shifts) != len(dims) and min(len(shifts), len(dims)) != 1:
        raise RuleError(f"roll needs one shift per dim, but got shifts {shifts} for dims {dims}")
    total, most = [0] * x.ndim, max(len(shifts), len(dims))
    for d, s in zip(dims * (most // len(dims)), shifts * (most // len(shifts))):
        total[counted_dim(d, x.ndim)] += s
    return _roll_op(x, shift=tuple(total))


def _concat_windows(*shapes: Shape, dim: int) -> Windows:
    total, start, windows = sum(shape[dim] for shape in shapes), 0, {}
    for k, shape in enumerate(shapes):
        window = None if shape[dim] == total else Window(total, -start)
        windows[k] = [window if d == dim else None for d in range(len(shape))]
        start += shape[dim]
    return windows


_concat_op = WindowOp(
    "concat",
    lambda *shapes, dim: same_dims(shapes[0], *shapes[1:], linear="all"),
    lambda *xs, dim: np.concatenate(xs, axis=dim),
    lambda dy, xs, _y, dim: np.split(dy, np.cumsum([x.shape[dim] for x in xs])[:-1], axis=dim),
    moves=True,
    windows=_concat_windows,
)


@operator(_concat_op)
def concat(tensors: Sequence[Tensor], dim: int | None = 0, *, axis: int | None = 0) -> Tensor:
    """Join tensors along a dimension, which may be split.

    The result has the type to which all are promoted.

    Args:
        tensors: one at least, of sizes that differ along ``dim`` only.
        dim: along which dim; None: among all elements of each, in row-major order.
        axis: another name of ``dim``.

    Raises:
        RuleError: a dimension out of range, no tensors, a single number among them, or other dims that differ.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.concat([x, x], dim=1).full().tolist()
    [[3, 1, 2, 3, 1, 2], [6, 5, 4, 6, 5, 4]]
    """
    tensors = [*tensors]  # a tensor stands for those along its first dim
    if not tensors:
        raise RuleError("concat needs at least one tensor")
    if dim is None:
        tensors, dim = [flatten(x) for x in tensors], 0
    tensors = alike("concat", *tensors)
    if not all(x.ndim for x in tensors):
        raise RuleError("concat puts tensors with dims together, but one of them is a single number")
    return _concat_op(*tensors, dim=counted_dim(dim, tensors[0].ndim))
