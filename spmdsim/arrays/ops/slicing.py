"""Operators that cut and join tensors: slice, split, pad, roll, concat.

Split dims stay split: cut, padded, rolled or joined dims are read in windows. Pending reductions pass through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Context, Tensor
from spmdsim.arrays.operands import normalise_dim
from spmdsim.arrays.ops.declare import Array, Arrays, Shape, convert_to_one_type
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.shape import broadcast_to, flatten, flip, make_same_dims_rule, reshape
from spmdsim.arrays.ops.windowed import WindowOp, Windows, count_margins, pad_block
from spmdsim.arrays.reduction_methods import Dims
from spmdsim.core import Rule
from spmdsim.core.notation.layouts import as_integers
from spmdsim.errors import RuleError, many
from spmdsim.layout.element_type import as_array
from spmdsim.layout.windowed_layout import Window

__all__ = ["concat", "pad", "roll", "slice_", "split"]

#: As in NumPy: one count for all ends, one pair for all dims, or one pair per dim.
PadWidth = int | Sequence[int] | Sequence[Sequence[int]] | dict[int, int] | dict[int, tuple[int, int]]


def _slice_windows(shape: Shape, start: Shape, stop: Shape, step: Shape) -> Windows:
    """Return for operand 0 the `Window` of each dim that a slice cuts, and None for the other dims.

    >>> [str(window) for window in _slice_windows((6, 4), (1, 0), (5, 4), (2, 1))[0]]
    ['2 windows of 1 from 1 by 2', 'None']
    """
    windows: list[Window | None] = []
    for first, last, stride, size in zip(start, stop, step, shape):
        selects_all = (first, last, stride) == (0, size, 1)
        windows.append(None if selects_all else Window(len(range(first, last, stride)), first, 1, stride))
    return {0: windows}


_slice_op = WindowOp(
    "slice",
    make_same_dims_rule,
    # The communication before the local function has done all the work.
    lambda x, **_: x,
    lambda dy, _operands, _y, **_: (dy,),
    moves=True,
    windows=_slice_windows,
)


@operator(_slice_op)
def slice_(x: Tensor, start: Sequence[int], stop: Sequence[int], step: Sequence[int] | None = None) -> Tensor:
    """Return ``x[start:stop:step]`` per dimension, with bounds >= 0 and steps >= 1.

    A split dimension stays split: its selected elements form balanced blocks of the new size. If the slice moves
    elements by less than a block, ranks exchange them with their neighbours only.

    Args:
        x: the tensor.
        start: the first index of each dimension.
        stop: the index after the last one of each dimension, at most its size.
        step: distance of two indices of each dimension, at least 1; None: 1.

    Returns:
        The entries, with as many dimensions as ``x``.

    Raises:
        RuleError: If bounds are out of range, a start is greater than its stop, a step is less than 1, or there is not
            one number per dimension.
        UsageTypeError: If a number is no integer.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.slice_(x, (0, 1), (2, 3)).full().tolist()
    [[1, 2], [5, 4]]
    """
    starts, stops = as_integers(start, "starts"), as_integers(stop, "stops")
    steps = (1,) * x.ndim if step is None else as_integers(step, "steps")
    if not len(starts) == len(stops) == len(steps) == x.ndim:
        raise RuleError(
            f"slice_ needs one start, stop and step for each of {many(x.ndim, 'dim')}, but got starts {starts}, stops "
            f"{stops} and steps {steps}"
        )
    for d, (first, last, stride, size) in enumerate(zip(starts, stops, steps, x.shape)):
        if not 0 <= first <= last <= size or stride < 1:
            raise RuleError(f"slice {first}:{last}:{stride} of dim {d} does not fit its size {size}")
    return _slice_op(x, start=starts, stop=stops, step=steps)


def slice_along(x: Tensor, dim: int, start: int, stop: int) -> Tensor:
    """Return the entries ``start`` to ``stop - 1`` along a dimension."""
    starts, stops = [0] * x.ndim, list(x.shape)
    starts[dim], stops[dim] = start, stop
    return slice_(x, starts, stops)


@operator()
def split(x: Tensor, parts: int, dim: int = 0, *, axis: int = 0) -> list[Tensor]:
    """Split a dimension into equal blocks.

    Args:
        x: the tensor.
        parts: the number of blocks; divides the size of the dimension.
        dim: the dimension; negative numbers count from the end. It may be split.
        axis: another name of ``dim``.

    Returns:
        ``parts`` tensors of equal shape, in order. Split dimensions stay split, also ``dim``: each tensor has balanced
        blocks.

    Raises:
        RuleError: If a dimension is out of range, or ``parts`` does not divide its size or is less than 1.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> [y.full().tolist() for y in ops.split(x, 3, dim=1)]
    [[[3], [6]], [[1], [5]], [[2], [4]]]
    """
    # The decorator passes a given ``axis`` as ``dim``, so ``axis`` is not read here.
    dim = normalise_dim(dim, x.ndim)
    n = x.shape[dim]
    if parts < 1 or n % parts:
        raise RuleError(f"dim {dim} of size {n} does not split into {parts} equal parts")
    return [slice_along(x, dim, k * n // parts, (k + 1) * n // parts) for k in range(parts)]


def _pad_windows(shape: Shape, before: Shape, after: Shape, value: float) -> Windows:
    """Return the window of each padded dim, which reaches beyond both ends; None for other dims."""
    sides = zip(before, after, shape)
    return {0: [Window(n + a + b, -a) if a or b else None for a, b, n in sides]}


def _pad_vjp(context: Context, dy: Array, operands: Arrays, _y: Any, **_: Any) -> tuple[Array]:
    """Return the gradient of the elements without the padding."""
    sides = zip(count_margins(context), operands[0].shape)
    return (dy[tuple(slice(a, a + n) for (a, _), n in sides)],)


_pad_op = WindowOp(
    "pad",
    lambda shape, before, after, value: (
        make_same_dims_rule(shape) if value == 0 else Rule.parse(make_same_dims_rule(shape).text)
    ),
    lambda context, x, before, after, value: pad_block(x, count_margins(context), [value] * x.ndim),
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
    """Add elements before and after each dimension; split dimensions stay split.

    A pending reduction stays pending if ``value`` is 0. With other modes than "constant", dims are padded one after
    the other.

    Args:
        x: the tensor.
        before: one count per dim; or, without ``after``, NumPy's ``pad_width``: one count, a pair for all dims, a pair
            per dim, or a dict from dims to counts or pairs (other dims: 0).
        after: one count per dim; or the mode.
        value: the added elements, cast to the type of ``x``; a fraction is cut off for integers.
        pad_width: another name of ``before``.
        mode: the added elements, as in NumPy. For two elements before and after [1, 2, 3]:

            - ``"constant"``: ``value``, as in 0 0 1 2 3 0 0;
            - ``"edge"``: the outermost element, as in 1 1 1 2 3 3 3;
            - ``"wrap"``: elements of the opposite end, as in 2 3 1 2 3 1 2;
            - ``"reflect"``: mirrored at the outermost element, as in 3 2 1 2 3 2 1;
            - ``"symmetric"``: mirrored behind it, as in 2 1 1 2 3 3 2.

        constant_values: another name of ``value``.

    Returns:
        A tensor whose size per dimension is that of ``x`` plus both counts.

    Raises:
        RuleError: If a count is negative, there is not one per dim, the mode is unknown, ``x`` cannot represent
            ``value``, or another mode than "constant" pads a dim without elements.

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
    first, last = _counts_per_side(before, x.ndim) if after is None else (before, after)
    has_shape = np.shape(first) == np.shape(last) == (x.ndim,)
    if not has_shape or not all(
        isinstance(count, (int, np.integer)) and count >= 0 for count in (*first, *last)
    ):
        raise RuleError(
            f"pad needs {many(x.ndim, 'count')} >= 0 on each side, but got {before if after is None else (before, after)}"
        )
    if mode != "constant" and any((*first, *last)):
        for d, width in enumerate(zip(first, last)):
            x = _pad_by_repetition(x, d, width, mode) if any(width) else x
        return x
    _check_fits(value, x.dtype)
    return _pad_op(x, before=as_integers(first), after=as_integers(last), value=value)


def _check_fits(value: Any, dtype: np.dtype) -> None:
    """Raise RuleError if an element type cannot represent a number.

    Integer types refuse a number that is out of range; types that are not complex refuse a complex number with an
    imaginary part. Values that are no numbers pass, and so does a fraction for an integer type.

    Args:
        value: the number with which ``pad`` fills.
        dtype: the element type of the tensor.
    """
    is_number = isinstance(value, (int, float, complex, np.generic))
    if not is_number:
        return
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    is_real = np.isreal(value)
    is_out_of_range = limits is not None and is_real and not limits.min <= value <= limits.max
    if is_out_of_range or (not is_real and dtype.kind != "c"):
        raise RuleError(
            f"pad: {value} cannot be an element of {dtype.name}; convert the tensor first, x.astype(...)"
        )


#: Modes in which elements of the tensor are repeated beyond its ends.
_REPEATING = ("edge", "wrap", "reflect", "symmetric")


def _pad_by_repetition(x: Tensor, dim: int, width: tuple[int, int], mode: str) -> Tensor:
    """Pad a dim with elements of the tensor itself, as ``numpy.pad`` in one of four modes.

    The tensor is joined with slices, reversed slices or copies of its ends. Counts may be larger than the dim; elements
    are then repeated as in NumPy.

    Args:
        x: the tensor.
        dim: the dimension.
        width: the counts before and after.
        mode: "edge", "wrap", "reflect" or "symmetric", as in ``numpy.pad``.

    Raises:
        RuleError: If the dim has no elements.
    """
    n = x.shape[dim]
    if not n:
        raise RuleError(
            f"pad in the mode {mode!r} repeats elements, but dim {dim} of shape {x.shape} has none"
        )
    positions = np.pad(np.arange(n), width, mode)  # type: ignore[call-overload]
    before = [_take_run(x, dim, run) for run in _split_runs(positions[: width[0]])]
    after = [_take_run(x, dim, run) for run in _split_runs(positions[width[0] + n :])]
    return concat([*before, x, *after], dim)


def _split_runs(positions: Array) -> list[Array]:
    """Split positions into runs that ascend by one, descend by one, or stay constant.

    >>> [run.tolist() for run in _split_runs(np.array([2, 1, 0, 1, 1]))]
    [[2, 1, 0], [1], [1]]
    """
    steps = np.diff(positions)
    jumps = np.flatnonzero((np.diff(steps, prepend=steps[:1]) != 0) | (abs(steps) > 1)) + 1
    return [run for run in np.split(positions, jumps) if run.size]


def _take_run(x: Tensor, dim: int, positions: Array) -> Tensor:
    """Return the entries of a dim at one run of positions, as `_split_runs` returns it.

    The result is a slice for ascending positions such as [1, 2, 3], a reversed slice for descending ones, and copies of
    one entry for positions such as [2, 2].
    """
    start, stop = int(positions.min()), int(positions.max()) + 1
    entries = slice_along(x, dim, start, stop)
    if positions[0] > positions[-1]:
        return flip(entries, dim)
    if stop - start == len(positions):
        return entries
    return broadcast_to(entries, [len(positions) if d == dim else n for d, n in enumerate(x.shape)])


def _counts_per_side(width: PadWidth, ndim: int) -> tuple[Any, Any]:
    """Return two tuples: the counts before each dim and those after it.

    For 2 dims, the pair (1, 2) gives ((1, 1), (2, 2)), and the dict {1: 2} gives ((0, 2), (0, 2)). Signs are not
    checked.

    Args:
        width: NumPy's ``pad_width``: a count, a pair, a pair per dim, or a dict from dims to counts or pairs.
        ndim: the number of dims.

    Raises:
        RuleError: If the numbers do not fit the number of dims.
    """
    if isinstance(width, dict):
        sides = {
            normalise_dim(d, ndim): np.broadcast_to(as_array(counts), 2).tolist()
            for d, counts in width.items()
        }
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
    make_same_dims_rule,
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

    Split dims stay split, and only elements that change their rank are sent.

    Args:
        x: the tensor.
        shift: the number of positions, negative towards the start. Several dims and a single shift: it applies to
            each. Several shifts and a single dim: they are added. Otherwise one shift per dim; shifts of a dim that
            occurs twice are added.
        dim: the dimension or dimensions; None: all elements in row-major order.
        axis: another name of ``dim``.

    Returns:
        A tensor in the shape and layout of ``x``. Pending reductions stay pending, unless ``dim`` is None and ``x``
        has several dims.

    Raises:
        RuleError: If a dimension is out of range, or there is neither one shift per dim nor a single one of either.
        UsageTypeError: If dims or shifts are no integers.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.roll(v, 1).full().tolist(), ops.roll(v, -1).full().tolist()
    ([2, 3, 1, 3], [1, 3, 2, 3])
    """
    if dim is None:
        if x.ndim < 2:
            return roll(x, shift, 0) if x.ndim else _roll_op(x, shift=())
        return reshape(roll(flatten(x), shift, 0), x.shape, x.layout.reduced)
    dims = as_integers([dim] if isinstance(dim, (int, np.integer, str)) else dim, "dims")
    shifts = as_integers([shift] if isinstance(shift, (int, np.integer, str)) else shift, "shifts")
    if len(shifts) != len(dims) and min(len(shifts), len(dims)) != 1:
        raise RuleError(f"roll needs one shift per dim, but got shifts {shifts} for dims {dims}")
    total, count = [0] * x.ndim, max(len(shifts), len(dims))
    if not count:
        return _roll_op(x, shift=tuple(total))
    for d, s in zip(dims * (count // len(dims)), shifts * (count // len(shifts))):
        total[normalise_dim(d, x.ndim)] += s
    return _roll_op(x, shift=tuple(total))


def _concat_windows(*shapes: Shape, dim: int) -> Windows:
    """Return the windows of each operand of ``concat`` by its number.

    An operand has a list with one window or None per dim. The window of the joined dim covers the whole result; its
    first element is minus the number of entries before the operand. For vectors of 2 and 3 elements, the windows of
    size 5 start at 0 and at -2. An operand that fills the joined dim alone has None, and so have other dims.
    """
    total, start, windows = sum(shape[dim] for shape in shapes), 0, {}
    for k, shape in enumerate(shapes):
        window = None if shape[dim] == total else Window(total, -start)
        windows[k] = [window if d == dim else None for d in range(len(shape))]
        start += shape[dim]
    return windows


_concat_op = WindowOp(
    "concat",
    lambda *shapes, dim: make_same_dims_rule(shapes[0], *shapes[1:], linear="all"),
    lambda *xs, dim: np.concatenate(xs, axis=dim),
    lambda dy, xs, _y, dim: np.split(dy, np.cumsum([x.shape[dim] for x in xs])[:-1], axis=dim),
    moves=True,
    windows=_concat_windows,
)


@operator(_concat_op)
def concat(tensors: Sequence[Tensor], dim: int | None = 0, *, axis: int | None = 0) -> Tensor:
    """Join tensors along a dimension, which may be split; the result has their promoted type.

    Args:
        tensors: at least one tensor; sizes may differ along ``dim`` only. A tensor stands for the list of its entries
            along the first dim; arrays must be equal on all ranks.
        dim: the dimension; negative ones count from the end; None: join all elements of each tensor, in row-major
            order.
        axis: another name of ``dim``.

    Returns:
        A tensor with the entries of all tensors, in their order. Dims that are split in the tensors stay split; pending
        sums of all tensors stay pending.

    Raises:
        RuleError: If a dimension is out of range, there are no tensors, one has no dims, or other sizes differ.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.concat([x, x], dim=1).full().tolist()
    [[3, 1, 2, 3, 1, 2], [6, 5, 4, 6, 5, 4]]
    """
    tensors = [*tensors]  # a tensor means the list of its entries along the first dim
    if not tensors:
        raise RuleError("concat needs at least one tensor")
    if dim is None:
        tensors, dim = [flatten(x) for x in tensors], 0
    tensors = convert_to_one_type("concat", *tensors)
    if not all(x.ndim for x in tensors):
        raise RuleError("concat puts tensors with dims together, but one of them is a single number")
    return _concat_op(*tensors, dim=normalise_dim(dim, tensors[0].ndim))
