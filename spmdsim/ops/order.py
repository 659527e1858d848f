"""Where the largest and smallest entries are, along a dim or among all: each rank's own, and two small reductions."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from spmdsim.core import BoundRule, Rule, Strategy
from spmdsim.core.elements import identity
from spmdsim.core.step import Step
from spmdsim.errors import RuleError
from spmdsim.layout.element_type import accumulator
from spmdsim.layout.shape_sizes import flag
from spmdsim.ops.operators import operator
from spmdsim.ops.reduce import normal_dims
from spmdsim.ops.shape import reshape
from spmdsim.tensor import Context, Op, Tensor
from spmdsim.tensor.element_types import ordered
from spmdsim.tensor.stepped import SteppedOp

#: The place of a rank that does not have the extreme.
_NOWHERE = np.iinfo(np.int64).max


def _rule(shape: tuple[int, ...], dim: int | None) -> Rule:
    """Of the ranks that have the extreme, the first place counts."""
    dims = normal_dims(dim, len(shape))
    names = [f"d{d}" for d in range(len(shape))]
    kept = " ".join(name for d, name in enumerate(names) if d not in dims)
    return Rule.parse(f"{' '.join(names)} -> {kept}", reduce="min")


def _steps(
    op: str, bound: BoundRule, strategy: Strategy, inputs: Sequence[Any], dim: int | None
) -> Sequence[Any]:
    """The extreme of all ranks, and the first place where it is, if a dim that is gone along is split."""
    (layout,), (x,) = BoundRule.output_layouts(bound, strategy), inputs
    axes = [axis for axis, _ in layout.partial if layout.mesh.axis_size(axis) > 1]
    if not axes:
        return ()
    dims = normal_dims(dim, len(x.shape))
    shape = tuple(n for d, n in enumerate(x.shape) if d not in dims)
    one, first = [
        Step("all_reduce", tuple(axes), layout, layout.reduced, shape, kind) for kind in (op, "min")
    ]
    return (one, accumulator("sum", x.dtype)), (first, np.dtype(np.int64))


def _forward(
    op: str, context: Context, x: np.ndarray, dim: int | None
) -> Generator[np.ndarray, np.ndarray, np.ndarray]:
    dims = normal_dims(dim, x.ndim)
    kept = [n for d, n in enumerate(x.shape) if d not in dims]
    rows = np.moveaxis(x, dims, range(-len(dims), 0)).reshape(*kept, math.prod(x.shape[d] for d in dims))
    place_of = np.argmax if op == "max" else np.argmin
    if all(context.strategy.parts(f"d{d}") == 1 for d in dims):
        return np.asarray(place_of(rows, axis=-1), np.int64)
    if rows.shape[-1]:
        own = place_of(rows, axis=-1)
        value = np.take_along_axis(rows, np.expand_dims(own, -1), -1)[..., 0]
        own = _place(context, own, [x.shape[d] for d in dims], dims)
    else:
        own, value = np.full(kept, _NOWHERE), np.full(kept, identity(op, x.dtype))
    extreme = yield value
    has = (value == extreme) | (value != value)  # a nan is the extreme
    first: np.ndarray = yield np.where(has, own, _NOWHERE)
    return first


def _place(context: Context, own: np.ndarray, sizes: Sequence[int], dims: tuple[int, ...]) -> np.ndarray:
    """A place in a rank's piece as one in the whole, both counted in row-major order."""
    whole: np.ndarray = np.zeros_like(own)
    for d, at in zip(dims, np.unravel_index(own, sizes)):
        whole = whole * context.size(f"d{d}") + context.bounds(f"d{d}")[0] + at
    return whole


def _extreme(name: str, op: str) -> Op:
    return SteppedOp(
        name,
        _rule,
        lambda context, x, dim: _forward(op, context, x, dim),
        dtype=lambda x, dim: np.dtype(np.int64) if ordered(x, name) else x,
        steps=lambda bound, strategy, inputs, dim: _steps(op, bound, strategy, inputs, dim),
        contextual=True,
    )


_argmax_op, _argmin_op = _extreme("argmax", "max"), _extreme("argmin", "min")


def _place_of(op: Op, x: Tensor, dim: int | None, keepdims: bool) -> Tensor:
    dims = normal_dims(dim, x.ndim)
    if 0 in [x.shape[d] for d in dims]:
        raise RuleError(f"{op.name} of no elements is undefined: shape {x.shape}, dims {dims}")
    place = op(x.detach(), dim=None if dim is None else dims[0])
    return (
        reshape(place, [1 if d in dims else n for d, n in enumerate(x.shape)])
        if flag("keepdims", keepdims)
        else place
    )


@operator(_argmax_op)
def argmax(x: Tensor, dim: int | None = None, keepdims: bool = False, *, axis: int | None = None) -> Tensor:
    """Where the largest element is along a dim (None: its place among all elements), the first one of equals.

    Where a dim is split, each rank finds its own; the ranks agree on the largest, and on its first place.

    Args:
        x: real numbers or truth values of any shape.
        dim: which dim, negative from the end; it may be split. None: all, counted in row-major order.
        keepdims: leave the dims that are gone along in the result, with size 1; left out by default.
        axis: the same as ``dim``.

    Returns:
        int64, places in the whole dim and not in a rank's piece.

    Raises:
        RuleError: a dim out of range, no elements, or complex numbers, which have no order.
        UsageTypeError: a ``keepdims`` that is neither True nor False.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.argmax(x, axis=1).full().tolist()
    [0, 0]
    """
    return _place_of(_argmax_op, x, dim, keepdims)


@operator(_argmin_op)
def argmin(x: Tensor, dim: int | None = None, keepdims: bool = False, *, axis: int | None = None) -> Tensor:
    """Where the smallest element is along a dim (None: its place among all elements), the first one of equals.

    Args:
        x: real numbers or truth values of any shape.
        dim: which dim, negative from the end; it may be split. None: all, counted in row-major order.
        keepdims: leave the dims that are gone along in the result, with size 1; left out by default.
        axis: the same as ``dim``.

    Returns:
        int64, places in the whole dim and not in a rank's piece.

    Raises:
        RuleError: a dim out of range, no elements, or complex numbers, which have no order.
        UsageTypeError: a ``keepdims`` that is neither True nor False.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.argmin(x, axis=1).full().tolist()
    [1, 2]
    """
    return _place_of(_argmin_op, x, dim, keepdims)
