"""Running sums and products along a dim, split or not: each rank's own, and one exclusive scan of what they come to."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.core import BoundRule, Layout, Rule, Strategy
from spmdsim.core.elements import identity
from spmdsim.errors import OutOfRange, RuleError
from spmdsim.layout.element_type import accumulator
from spmdsim.ops.array_functions import conjugate
from spmdsim.ops.declare import cast
from spmdsim.ops.elementwise import divide, equal, multiply, subtract, where
from spmdsim.ops.functions import logical_and, logical_not
from spmdsim.ops.operators import operator
from spmdsim.ops.slicing import concat, slice_
from spmdsim.redistribution.exclusive_scan import scan_step
from spmdsim.tensor import Context, Tensor
from spmdsim.tensor.operands import Operand, as_operand
from spmdsim.tensor.stepped import SteppedOp

#: The factor along which an operator of this kind goes.
ALONG = "w"


def along_rule(shape: Sequence[int], dim: int, text: str = "{} -> {}", **rule: Any) -> Rule:
    """A rule of which one dim is called :data:`ALONG`.

    >>> along_rule((2, 3, 4), 1).text
    'd0 w d2 -> d0 w d2'
    """
    names = " ".join(ALONG if d == dim else f"d{d}" for d in range(len(shape)))
    return Rule.parse(text.replace("{}", names), **rule)


def along_dim(name: str, x: Tensor, dim: int | None, otherwise: int | None = None) -> int:
    """The dim that a function goes along, counted from the front; ``otherwise`` if none is given, or the only one.

    Raises:
        RuleError: a dim out of range; none given, and there are several.
    """
    if dim is None:
        if otherwise is None and x.ndim != 1:
            raise RuleError(f"{name} of a tensor of {x.ndim} dims needs the dim to go along, dim=...")
        dim = 0 if otherwise is None else otherwise
    if not -x.ndim <= dim < x.ndim:
        raise OutOfRange(f"{name}: dim {dim} is out of range for a tensor of {x.ndim} dims")
    return dim % x.ndim


_UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _steps(bound: BoundRule, strategy: Strategy, inputs: Sequence[Any], **params: Any) -> Any:
    axes = tuple(a for a in strategy.axes_of(ALONG) if strategy.mesh.axis_size(a) > 1)
    if not axes:
        return ()
    (meta,), dim, op = inputs, params["dim"], params["op"]
    others = [d for d in range(len(meta.shape)) if d != dim]
    layout = Layout(strategy.mesh, [axes, *[meta.layout.dims[d] for d in others]])
    step = scan_step(layout, axes, [meta.shape[d] for d in others], op, params["backward"])
    return ((step, accumulator(op, meta.dtype)),)


def _forward(
    context: Context, x: np.ndarray, dim: int, op: str, backward: bool
) -> Generator[np.ndarray, np.ndarray, np.ndarray]:
    function = _UFUNCS[op]
    turned = np.flip(x, dim) if backward else x
    scanned = function.accumulate(turned, axis=dim, dtype=x.dtype)
    if context.strategy.parts(ALONG) > 1:
        last = np.moveaxis(scanned, dim, 0)[-1:]
        if not len(last):
            last = np.full((1, *x.shape[:dim], *x.shape[dim + 1 :]), identity(op, x.dtype))
        before = yield last
        scanned = function(scanned, np.moveaxis(before, 0, dim))
    return np.asarray(np.flip(scanned, dim) if backward else scanned, order="C")


def _adjoint(
    dys: Sequence[Tensor],
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
    dim: int,
    op: str,
    backward: bool,
) -> tuple[Tensor]:
    back = {"dim": dim, "op": "sum", "backward": not backward}
    if op == "sum":
        return (_scan_op(dys[0], **back),)
    # Before the first zero, sums of dy * y over x; at it, those with 1 in its place; behind it nothing.
    (dy,), (x,), (y,) = dys, operands, results
    zero = equal(x, as_operand(0, x))
    count = _scan_op(cast(zero, np.int64), dim=dim, op="sum", backward=backward)
    first = logical_and(zero, equal(count, as_operand(1, count)))
    one, none = as_operand(1, x), as_operand(0, x)
    without = _scan_op(where(first, one, x), dim=dim, op="prod", backward=backward)
    before = divide(_scan_op(multiply(dy, conjugated(y)), **back), conjugated(where(zero, one, x)))
    at = _scan_op(multiply(dy, conjugated(without)), **back)
    return (where(first, at, where(equal(count, as_operand(0, count)), before, none)),)


def conjugated(x: Tensor) -> Tensor:
    """The complex conjugate of a tensor; what is real stays as it is."""
    return conjugate(x) if x.dtype.kind == "c" else x


def _linear_in_sums(shape: tuple[int, ...], dim: int, op: str, backward: bool) -> Rule:
    return along_rule(shape, dim, linear="each" if op == "sum" else "none")


_scan_op = SteppedOp(
    "scan", _linear_in_sums, _forward, steps=_steps, adjoint=_adjoint, contextual=True, saves_result=True
)

#: Running extremes, which have no gradient.
_extreme_op = SteppedOp("running_extreme", _linear_in_sums, _forward, steps=_steps, contextual=True)


def running_extreme(op: str, x: Tensor, axis: int = 0) -> Tensor:
    """The largest (``max``) or least (``min``) element up to each place of a dim."""
    at = along_dim(f"running {op}", x, axis)
    return _extreme_op(x, dim=at, op=op, backward=False)


def _scan(
    name: str, op: str, x: Tensor, dim: int | None, dtype: DTypeLike | None, include_initial: bool
) -> Tensor:
    at = along_dim(name, x, dim)
    kind = x.dtype
    if dtype is not None:
        kind = np.dtype(dtype)
    elif kind.kind in "bi":
        kind = np.promote_types(kind, np.int64)
    elif kind.kind == "u":
        kind = np.dtype(np.uint64)
    y = _scan_op(x if kind == x.dtype else cast(x, kind), dim=at, op=op, backward=False)
    if not include_initial:
        return y
    shape = tuple(1 if d == at else n for d, n in enumerate(y.shape))
    dims = [None if d == at else entry for d, entry in enumerate(y.layout.dims)]
    layout = Layout(y.layout.mesh, dims)
    first = np.broadcast_to(np.full((), identity(op, kind)), shape)
    return concat([Tensor.from_global(first, layout, y.world), y], at)


@operator(_scan_op)
def cumulative_sum(
    x: Tensor,
    dim: int | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
    *,
    axis: int | None = None,
) -> Tensor:
    """Running sums along a dim, which may be split: one exclusive scan carries each rank's total on.

    Args:
        x: the tensor; whole numbers are added up in 64 bits, as numpy does.
        dim: which dim; may be left out where there is one only.
        dtype: element type of the result.
        include_initial: begin with 0, so that the result is one entry longer.
        axis: the same as ``dim``.

    Raises:
        RuleError: a dim out of range, or none of several.

    >>> import numpy as np
    >>> from spmdsim import LockStep, Mesh, Tensor
    >>> x = Tensor.from_global(np.arange(5), Mesh((2,), ("x",))("x"), LockStep(2))
    >>> cumulative_sum(x).full()
    array([ 0,  1,  3,  6, 10])
    """
    return _scan("cumulative_sum", "sum", x, dim, dtype, include_initial)


@operator(_scan_op)
def cumulative_prod(
    x: Tensor,
    dim: int | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
    *,
    axis: int | None = None,
) -> Tensor:
    """Running products along a dim; as :func:`cumulative_sum`. Gradients are right where factors are 0, too.

    Args:
        x: the tensor.
        dim: which dim; may be left out where there is one only.
        dtype: element type of the result. None: 64-bit whole numbers for whole numbers and truth values, else that of
            ``x``.
        include_initial: begin with 1, so that the result is one entry longer.
        axis: the same as ``dim``.

    Raises:
        RuleError: a dim out of range, or none of several.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.cumulative_prod(x, dim=0).full().tolist()
    [[3, 1, 2], [18, 5, 8]]
    """
    return _scan("cumulative_prod", "prod", x, dim, dtype, include_initial)


@operator()
def diff(
    x: Tensor,
    dim: int = -1,
    n: int = 1,
    prepend: Operand | None = None,
    append: Operand | None = None,
    *,
    axis: int = -1,
) -> Tensor:
    """Differences of neighbours along a dim, ``n`` times over, as ``numpy.diff``.

    Args:
        x: the tensor; differences of truth values say where they change.
        dim: which dim.
        n: how many times.
        prepend: what stands before it: a tensor or array, or a number.
        append: what stands behind it.
        axis: the same as ``dim``.

    Raises:
        RuleError: a dim out of range, or a negative number of times.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.diff(x, dim=0).full().tolist()
    [[3, 4, 2]]
    """
    at = along_dim("diff", x, dim)
    if n < 0:
        raise RuleError(f"differences are taken any number of times from 0 on, but got {n}")
    if n == 0:
        return x
    ends = [None if end is None else _end(end, x, at) for end in (prepend, append)]
    parts = [part for part in (ends[0], x, ends[1]) if part is not None]
    x = concat(parts, at) if len(parts) > 1 else x
    for _ in range(min(n, x.shape[at])):
        size = x.shape[at]
        if size == 0:
            break
        after, before = _from(x, at, 1, size), _from(x, at, 0, size - 1)
        x = _xor(after, before) if x.dtype.kind == "b" else subtract(after, before)
    return x


def _xor(a: Tensor, b: Tensor) -> Tensor:
    return logical_not(equal(a, b))


def _from(x: Tensor, dim: int, start: int, stop: int) -> Tensor:
    starts, stops = [0] * x.ndim, list(x.shape)
    starts[dim], stops[dim] = start, stop
    return slice_(x, starts, stops, [1] * x.ndim)


def _end(given: Operand, x: Tensor, dim: int) -> Tensor:
    """What stands before or behind a tensor, as one: a number is repeated over the other dims."""
    if isinstance(given, Tensor) and given.ndim:
        return given
    shape = tuple(1 if d == dim else size for d, size in enumerate(x.shape))
    if not isinstance(given, Tensor):
        array = np.asarray(given)
        layout = Layout.replicated(x.layout.mesh, x.ndim)
        return Tensor.from_global(
            np.broadcast_to(array, shape if not array.ndim else array.shape), layout, x.world
        )
    from spmdsim.ops.shape import broadcast_to

    return broadcast_to(given, shape)
