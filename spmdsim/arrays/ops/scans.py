"""Running sums and products along a dim; if it is split, an exclusive scan adds other ranks' totals.

The helpers at the top serve all operators that go along one dim: its name in rules is :data:`ALONG`, and local
functions see its entries as rows of a matrix. Read `_scan_block` for the scan itself.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.arrays import Context, Tensor
from spmdsim.arrays.operands import Operand, normalise_dim
from spmdsim.arrays.ops.declare import Array, Shape, cast
from spmdsim.arrays.ops.dim_reductions import to_type
from spmdsim.arrays.ops.elementwise import (
    conjugate,
    divide,
    equal,
    logical_and,
    multiply,
    not_equal,
    subtract,
    where,
)
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.shape import broadcast_to
from spmdsim.arrays.ops.slicing import concat, slice_along
from spmdsim.arrays.stepped import Phase, SteppedOp
from spmdsim.core import BoundRule, Layout, Rule, Strategy
from spmdsim.core.elements import identity
from spmdsim.core.tensor import Meta
from spmdsim.errors import RuleError, many
from spmdsim.layout.element_type import accumulator
from spmdsim.redistribution.steps.group_steps import build_scan_step
from spmdsim.worlds.convert_operands import as_operand

__all__ = ["cumulative_prod", "cumulative_sum", "diff"]

#: A dim, which may be left out where there is one only.
Dim = int | None
Tensors = Sequence[Tensor]
#: Entries before the first or after the last one of a tensor, or None.
End: TypeAlias = "Operand | None"
#: The factor along which an operator of this kind goes.
ALONG = "w"


def make_along_rule(shape: Sequence[int], dim: int, text: str = "{} -> {}", **rule: Any) -> Rule:
    """Return a rule in which dim ``dim`` has the name :data:`ALONG`.

    Args:
        shape: the shape of the operand.
        dim: the dimension along which the operator goes.
        text: the form of the rule; ``{}`` stands for all dims.
        rule: further arguments of :meth:`Rule.parse`.

    >>> make_along_rule((2, 3, 4), 1).text
    'd0 w d2 -> d0 w d2'
    """
    names = " ".join(ALONG if d == dim else f"d{d}" for d in range(len(shape)))
    return Rule.parse(text.replace("{}", names), **rule)


def normalise_along_dim(name: str, x: Tensor, dim: Dim) -> int:
    """Return a dimension as a non-negative number.

    Args:
        name: the function that the user called, for error messages.
        x: the tensor.
        dim: the dimension; negative ones count from the end; None: the only one.

    Raises:
        RuleError: If ``dim`` is None and ``x`` has not exactly one dimension.
        OutOfRange: If ``dim`` is out of range, as every one of a tensor without dims is.
        UsageTypeError: If ``dim`` is no integer.
    """
    if dim is None and x.ndim != 1:
        raise RuleError(f"{name} of a tensor of {many(x.ndim, 'dim')} needs the dim to go along, dim=...")
    return normalise_dim(0 if dim is None else dim, x.ndim, f"{name}: ")


def find_split_axes(strategy: Strategy, factor: str = ALONG) -> tuple[str, ...]:
    """Return the mesh axes of size > 1 that split a dim of a rule.

    Args:
        strategy: the axes that split the dimensions of an operator call.
        factor: the name of the dim in the rule; by default the dim along which the operator goes.
    """
    return tuple(a for a in strategy.axes_of(factor) if strategy.mesh.axis_size(a) > 1)


def list_other_dims(meta: Any, dim: int) -> tuple[list[int], list[Any]]:
    """Return the sizes of all dims except ``dim``, and their entries in the layout."""
    others = [d for d in range(len(meta.shape)) if d != dim]
    return [meta.shape[d] for d in others], [meta.layout.dims[d] for d in others]


def to_rows(x: Array, dim: int) -> Array:
    """Return an array as a matrix ``[b, n]`` whose rows go along ``dim``."""
    count = math.prod(n for d, n in enumerate(x.shape) if d != dim)
    return np.moveaxis(x, dim, -1).reshape(count, x.shape[dim])


def from_rows(rows: Array, shape: Sequence[int], dim: int) -> Array:
    """Return the array of a given shape, in C order, from its rows along ``dim``: undo :func:`to_rows`."""
    others = [n for d, n in enumerate(shape) if d != dim]
    return np.asarray(np.moveaxis(rows.reshape(*others, rows.shape[-1]), -1, dim), order="C")


_UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _list_exchanges(
    bound: BoundRule, strategy: Strategy, inputs: Sequence[Meta], **params: Any
) -> tuple[Phase, ...]:
    """List the steps of a scan with their element types; () if the dimension is not split.

    The only step is an exclusive scan: each rank receives the total of the preceding ranks. It is computed in the type
    in which sums (or products) of the operand's type are computed, float32 for 16-bit floats.

    Args:
        bound: the rule with its sizes; not used, but part of the interface of `SteppedOp.steps`.
        strategy: the axes that split the dimensions.
        inputs: the `Meta` (layout, shape, dtype) of the only operand.
        **params: the parameters ``dim``, ``op`` and ``backward`` of `_scan_block`.
    """
    axes = find_split_axes(strategy)
    if not axes:
        return ()
    (meta,) = inputs
    op = params["op"]
    sizes, entries = list_other_dims(meta, params["dim"])
    step = build_scan_step(Layout(strategy.mesh, [axes, *entries]), axes, sizes, op, params["backward"])
    return ((step, accumulator(op, meta.dtype)),)


def _scan_block(
    context: Context, x: Array, dim: int, op: str, backward: bool
) -> Generator[Array, Array, Array]:
    """Return this rank's block of running results along ``dim``, in the shape and type of ``x``.

    For example, the running sums of [1, 2, 3] are [1, 3, 6], and [6, 5, 3] with ``backward``.

    If the dim is split, the generator yields this rank's total, with size 1 as first dim; the identity of ``op`` if
    the block is empty. The caller sends back the total of all preceding ranks.

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        x: this rank's block.
        dim: the dimension.
        op: "sum", "prod", "max" or "min".
        backward: True to start at the last element; "preceding" ranks are then those behind.
    """
    function = _UFUNCS[op]
    in_scan_order = np.flip(x, dim) if backward else x
    scanned = function.accumulate(in_scan_order, axis=dim, dtype=x.dtype)
    if context.strategy.parts(ALONG) > 1:
        last = np.moveaxis(scanned, dim, 0)[-1:]
        if not len(last):
            last = np.full((1, *x.shape[:dim], *x.shape[dim + 1 :]), identity(op, x.dtype))
        before = yield last
        scanned = function(scanned, np.moveaxis(before, 0, dim))
    return np.asarray(np.flip(scanned, dim) if backward else scanned, order="C")


def _adjoint(
    dys: Tensors, operands: Tensors, results: Tensors, dim: int, op: str, backward: bool
) -> tuple[Tensor]:
    """Return the gradient of a running sum or product by its operand, in a tuple.

    For a running sum, the gradient is the running sum of ``dy`` in the opposite direction. For a running product
    ``y`` of ``x``, each line of elements along ``dim`` has three parts:

    - elements before its first zero, in the direction of the scan: the opposite running sum of ``dy * y``, divided by
      ``x``;
    - the first zero: the opposite running sum of ``dy * p``, where ``p`` is the running product with 1 in place of
      this zero;
    - elements after it: 0, because all products there contain the zero.

    All ranks must call it, since it communicates. Complex factors are conjugated.

    Args:
        dys: the gradient of the result, in a list of one.
        operands: the operand, in a list of one.
        results: the result, in a list of one.
        dim: the dimension.
        op: "sum" or "prod".
        backward: True if the running function starts at the last element.
    """
    back = {"dim": dim, "op": "sum", "backward": not backward}
    if op == "sum":
        return (_scan_op(dys[0], **back),)
    (dy,), (x,), (y,) = dys, operands, results
    one, zero = as_operand(1, x), as_operand(0, x)
    is_zero = equal(x, zero)
    zeros_so_far = _scan_op(cast(is_zero, np.int64), dim=dim, op="sum", backward=backward)
    is_before_first_zero = equal(zeros_so_far, as_operand(0, zeros_so_far))
    is_first_zero = logical_and(is_zero, equal(zeros_so_far, as_operand(1, zeros_so_far)))
    product_without_zero = _scan_op(where(is_first_zero, one, x), dim=dim, op="prod", backward=backward)
    gradient_before_zero = divide(
        _scan_op(multiply(dy, conjugate_if_complex(y)), **back), conjugate_if_complex(where(is_zero, one, x))
    )
    gradient_at_zero = _scan_op(multiply(dy, conjugate_if_complex(product_without_zero)), **back)
    gradient_outside = where(is_before_first_zero, gradient_before_zero, zero)
    return (where(is_first_zero, gradient_at_zero, gradient_outside),)


def conjugate_if_complex(x: Tensor) -> Tensor:
    """Return the complex conjugate of a tensor; a real tensor is returned itself."""
    return conjugate(x) if x.dtype.kind == "c" else x


def _make_scan_rule(shape: Shape, dim: int, op: str, backward: bool) -> Rule:
    """Return the rule of a running function, which is linear for "sum"."""
    return make_along_rule(shape, dim, linear="each" if op == "sum" else "none")


_scan_op = SteppedOp(
    "scan",
    _make_scan_rule,
    _scan_block,
    steps=_list_exchanges,
    adjoint=_adjoint,
    contextual=True,
    saves_result=True,
)

#: Running extremes, which have no gradient.
_extreme_op = SteppedOp(
    "running_extreme", _make_scan_rule, _scan_block, steps=_list_exchanges, contextual=True
)


def running_extreme(op: str, x: Tensor, axis: int = 0) -> Tensor:
    """Return the running maximum or minimum along a dimension.

    Args:
        op: "max" or "min".
        x: the tensor.
        axis: the dimension; negative numbers count from the end.
    """
    at = normalise_along_dim(f"running {op}", x, axis)
    return _extreme_op(x, dim=at, op=op, backward=False)


def _scan_along(
    name: str, op: str, x: Tensor, dim: Dim, dtype: DTypeLike | None, include_initial: bool
) -> Tensor:
    """Compute running sums or products along a dimension.

    The running sums of [3, 1, 2] are [3, 4, 6]; with ``include_initial`` they are [0, 3, 4, 6].

    Args:
        name: the function that the user called, for error messages.
        op: "sum" or "prod".
        x: the tensor; it is converted to the result type first.
        dim: the dimension, or None if the tensor has only one.
        dtype: the result type. None: int64 for signed integers and bools, uint64 for unsigned ones, else the type of
            ``x``.
        include_initial: insert the identity element first (0 for sums, 1 for products); the dimension is then longer
            by 1.

    Raises:
        RuleError: If ``dim`` is out of range, or None and ``x`` has not exactly one dimension.
        InputError: If tensors do not support ``dtype``.
    """
    at = normalise_along_dim(name, x, dim)
    wide = {"b": np.int64, "i": np.int64, "u": np.uint64}
    kind = np.dtype(wide.get(x.dtype.kind, x.dtype) if dtype is None else dtype)
    y = _scan_op(to_type(x, kind), dim=at, op=op, backward=False)
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
    dim: Dim = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
    *,
    axis: Dim = None,
) -> Tensor:
    """Compute running sums along a dimension.

    If the dimension is split, one exclusive scan adds the totals of preceding ranks.

    Args:
        x: the tensor.
        dim: the dimension; None if ``x`` has only one.
        dtype: element type of the result; by default 64-bit integers for integers and truth values, else that of
            ``x``.
        include_initial: begin with 0, so that the result is one entry longer.
        axis: another name of ``dim``.

    Returns:
        The sums in the layout of ``x``: entry k is the sum of the entries up to k.

    Raises:
        RuleError: If the dimension is out of range, or is None and ``x`` has not exactly one.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.cumulative_sum(v).full().tolist()
    [3, 4, 7, 9]
    """
    return _scan_along("cumulative_sum", "sum", x, dim, dtype, include_initial)


@operator(_scan_op)
def cumulative_prod(
    x: Tensor,
    dim: Dim = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
    *,
    axis: Dim = None,
) -> Tensor:
    """Compute running products along a dimension, like :func:`cumulative_sum`.

    Gradients are right where factors are 0, too.

    Args:
        x: the tensor.
        dim: the dimension; None if ``x`` has only one.
        dtype: element type of the result; by default 64-bit integers for integers and truth values, else that of
            ``x``.
        include_initial: begin with 1, so that the result is one entry longer.
        axis: another name of ``dim``.

    Returns:
        The products in the layout of ``x``: entry k is the product of the entries up to k.

    Raises:
        RuleError: If the dimension is out of range, or is None and ``x`` has not exactly one.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.cumulative_prod(x, dim=0).full().tolist()
    [[3, 1, 2], [18, 5, 8]]
    """
    return _scan_along("cumulative_prod", "prod", x, dim, dtype, include_initial)


@operator()
def diff(
    x: Tensor, dim: int = -1, n: int = 1, prepend: End = None, append: End = None, *, axis: int = -1
) -> Tensor:
    """Compute differences of neighbours along a dimension, ``n`` times, as ``numpy.diff``.

    A difference is an entry minus the entry before it: [1, 4, 9] gives [3, 5], and with ``n=2`` it gives [2]. It has
    the type of ``x``, so unsigned integers wrap around.

    Args:
        x: the tensor; the difference of two bools is True if they differ.
        dim: the dimension; negative numbers count from the end. It may be split.
        n: the number of repetitions; 0 returns ``x`` itself.
        prepend: a tensor, array or number that is inserted before ``x`` along the dimension; None: nothing. A number
            stands for one entry in each row.
        append: a tensor, array or number that is added after ``x`` along the dimension; None: nothing.
        axis: another name of ``dim``.

    Returns:
        A tensor whose dimension is ``n`` entries shorter than ``x`` with ``prepend`` and ``append``; at least 0.
        Split dimensions stay split.

    Raises:
        RuleError: If a dimension is out of range, ``n`` is negative, or sizes of ``prepend`` or ``append`` differ from
            ``x`` in other dimensions.
        LayoutError: If ``prepend`` or ``append`` is an array with another number of dimensions.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.diff(x, dim=0).full().tolist()
    [[3, 4, 2]]
    """
    at = normalise_along_dim("diff", x, dim)
    if not isinstance(n, (int, np.integer)) or n < 0:
        raise RuleError(f"diff: n must be an integer from 0 on, got {n!r}")
    if n == 0:
        return x
    ends = [None if end is None else _as_end_tensor(end, x, at) for end in (prepend, append)]
    parts = [tensor for tensor in (ends[0], x, ends[1]) if tensor is not None]
    x = concat(parts, at) if len(parts) > 1 else x
    for _ in range(min(n, x.shape[at])):
        size = x.shape[at]
        if size == 0:
            break
        after, before = slice_along(x, at, 1, size), slice_along(x, at, 0, size - 1)
        x = (not_equal if x.dtype.kind == "b" else subtract)(after, before)
    return x


def _as_end_tensor(value: Operand, x: Tensor, dim: int) -> Tensor:
    """Return a value of ``prepend`` or ``append`` as a tensor with as many dims as ``x``.

    Args:
        value: a tensor, array or number. A number, or a tensor without dims, is repeated over all dims but ``dim``,
            where it has one entry. An array becomes a replicated tensor; a tensor with dims is returned itself.
        x: the tensor to which it is added.
        dim: the dimension of the differences.

    Raises:
        LayoutError: If an array has dims, but not as many as ``x``.
    """
    if isinstance(value, Tensor) and value.ndim:
        return value
    shape_of_number = tuple(1 if d == dim else size for d, size in enumerate(x.shape))
    if isinstance(value, Tensor):
        return broadcast_to(value, shape_of_number)
    array = np.asarray(value)
    repeated = array if array.ndim else np.broadcast_to(array, shape_of_number)
    return Tensor.from_global(repeated, Layout.replicated(x.layout.mesh, x.ndim), x.world)
