"""Where the largest and smallest entries are, the largest ones of a dim, and places in a sorted one: of split dims, too."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Context, Op, Tensor
from spmdsim.arrays.operands import Operand, flag
from spmdsim.arrays.ops.along import held_entries, take_along_axis, terms_of
from spmdsim.arrays.ops.declare import Array, Shape, alike
from spmdsim.arrays.ops.dim_reductions import normal_dims
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.scans import ALONG, Tensors, along_dim, beside, rows_back, rows_last, split_axes
from spmdsim.arrays.ops.shape import reshape
from spmdsim.arrays.ops.sorting import comparable
from spmdsim.arrays.stepped import SteppedOp
from spmdsim.core import BoundRule, Rule, Strategy
from spmdsim.core.elements import identity
from spmdsim.core.step import Step
from spmdsim.errors import RuleError, many
from spmdsim.layout.element_type import accumulator, check_ordered
from spmdsim.worlds.convert_operands import as_operand

__all__ = ["argmax", "argmin", "searchsorted", "topk"]

#: The place of a rank that does not have the extreme.
_NOWHERE = np.iinfo(np.int64).max


def _extreme_rule(shape: Shape, dim: int | None) -> Rule:
    """Of the ranks that have the extreme, the first place counts."""
    dims = normal_dims(dim, len(shape))
    names = [f"d{d}" for d in range(len(shape))]
    kept = " ".join(name for d, name in enumerate(names) if d not in dims)
    return Rule.parse(f"{' '.join(names)} -> {kept}", reduce="min")


def _extreme_steps(
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


def _extreme_forward(op: str, context: Context, x: Array, dim: int | None) -> Generator[Array, Array, Array]:
    dims = normal_dims(dim, x.ndim)
    kept = [n for d, n in enumerate(x.shape) if d not in dims]
    rows = np.moveaxis(x, dims, range(-len(dims), 0)).reshape(*kept, math.prod(x.shape[d] for d in dims))
    place_of = np.argmax if op == "max" else np.argmin
    if all(context.strategy.parts(f"d{d}") == 1 for d in dims):
        return np.asarray(place_of(rows, axis=-1), np.int64)
    if rows.shape[-1]:
        own = place_of(rows, axis=-1)
        value = np.take_along_axis(rows, np.expand_dims(own, -1), -1)[..., 0]
        within, own = np.unravel_index(own, [x.shape[d] for d in dims]), np.zeros_like(own)
        for d, at in zip(
            dims, within
        ):  # a place in a rank's piece as one in the whole, both in row-major order
            own = own * context.size(f"d{d}") + context.bounds(f"d{d}")[0] + at
    else:
        own, value = np.full(kept, _NOWHERE), np.full(kept, identity(op, x.dtype))
    extreme = yield value
    has = (value == extreme) | (value != value)  # a nan is the extreme
    first: Array = yield np.where(has, own, _NOWHERE)
    return first


def _extreme_op_of(name: str, op: str) -> Op:
    return SteppedOp(
        name,
        _extreme_rule,
        lambda context, x, dim: _extreme_forward(op, context, x, dim),
        dtype=lambda x, dim: np.dtype(np.int64) if check_ordered(x, name) else x,
        steps=lambda bound, strategy, inputs, dim: _extreme_steps(op, bound, strategy, inputs, dim),
        contextual=True,
    )


_argmax_op, _argmin_op = _extreme_op_of("argmax", "max"), _extreme_op_of("argmin", "min")


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
    """Return the index of the largest element along a dimension, the first one of equals.

    int64, places in the whole dim and not in a rank's piece. Where a dim is split, each rank finds its own; the ranks agree
    on the largest, and on its first place.

    Args:
        x: the tensor.
        dim: which dim, negative from the end; it may be split. None: all, counted in row-major order.
        keepdims: keep reduced dimensions in the result, with size 1.
        axis: another name of ``dim``.

    Raises:
        RuleError: a dimension out of range, no elements, or complex numbers, which have no order.
        UsageTypeError: a ``keepdims`` that is no truth value.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.argmax(x, axis=1).full().tolist()
    [0, 0]
    """
    return _place_of(_argmax_op, x, dim, keepdims)


@operator(_argmin_op)
def argmin(x: Tensor, dim: int | None = None, keepdims: bool = False, *, axis: int | None = None) -> Tensor:
    """Return the index of the smallest element along a dimension; see :func:`argmax`.

    Args:
        x: the tensor.
        dim: which dim, negative from the end; it may be split. None: all, counted in row-major order.
        keepdims: keep reduced dimensions in the result, with size 1.
        axis: another name of ``dim``.

    Raises:
        RuleError: a dimension out of range, no elements, or complex numbers, which have no order.
        UsageTypeError: a ``keepdims`` that is no truth value.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.argmin(x, axis=1).full().tolist()
    [1, 2]
    """
    return _place_of(_argmin_op, x, dim, keepdims)


def _topk_rule(shape: Shape, dim: int, k: int, largest: bool) -> tuple[Rule, dict[str, int]]:
    whole, kept = terms_of(len(shape), dim, (ALONG, "k"))
    return Rule.parse(f"{whole} -> {kept}, {kept}", whole="k"), {"k": k}


def _topk_steps(
    bound: BoundRule, strategy: Strategy, inputs: Sequence[Any], dim: int, k: int, largest: bool
) -> Any:
    axes = split_axes(strategy)
    if not axes:
        return ()
    (meta,), ranks = inputs, strategy.mesh.axis_size(*axes)
    rest, entries = beside(meta, dim)
    src, dst = (strategy.mesh(first, None, *entries) for first in (axes, None))
    step = Step("all_gather", axes, src, dst, (ranks, k, *rest))
    return (step, meta.dtype), (step, np.dtype(np.int64))


def _topk_forward(
    context: Context, x: Array, dim: int, k: int, largest: bool
) -> Generator[Array, Array, tuple[Array, Array]]:
    rows, start = rows_last(x, dim), context.bounds(ALONG)[0]
    order = _first(rows, min(k, rows.shape[1]), largest)
    values, places = np.take_along_axis(rows, order, -1), order + start
    others = [n for d, n in enumerate(x.shape) if d != dim]
    if split_axes(context.strategy):
        missing = [(0, 0), (0, k - order.shape[1])]
        values = np.pad(values, missing) if values.size else np.zeros((len(rows), k), x.dtype)
        places = np.pad(places, missing, constant_values=-1)
        coordinates = []
        for part in (values, places):
            all_of = yield part.T.reshape(1, k, *others)
            coordinates.append(all_of.reshape(-1 if all_of.size else 0, len(rows)).T)
        values, places = coordinates
        there = np.argsort(places < 0, axis=-1, kind="stable")
        values, places = (np.take_along_axis(part, there, -1) for part in (values, places))
        held = (places >= 0).sum(-1)[0] if len(places) else 0
        order = _first(values[:, :held], k if len(places) else 0, largest)
        values, places = (np.take_along_axis(part, order, -1) for part in (values, places))
    shape = [k if d == dim else n for d, n in enumerate(x.shape)]
    return rows_back(values.reshape(len(rows), k), shape, dim), rows_back(
        places.reshape(len(rows), k), shape, dim
    )


def _first(rows: Array, k: int, largest: bool) -> Array:
    """The places of the first entries in order, the first of equal ones first."""
    keys = comparable(rows)
    if not largest:
        return np.argsort(keys, axis=-1, kind="stable")[:, :k]
    turned = np.argsort(keys[:, ::-1], axis=-1, kind="stable")[:, ::-1]
    order: Array = rows.shape[1] - 1 - turned[:, :k]
    return order


def _place_forward(context: Context, x: Array, ids: Array, dim: int, size: int) -> Array:
    start, stop = context.bounds(ALONG)
    whole = np.zeros([stop - start if d == dim else n for d, n in enumerate(x.shape)], x.dtype)
    mine, where = held_entries(context, ids, dim, ALONG)
    whole[where] = x[mine]
    return whole


def _place_rule(x: Shape, ids: Shape, dim: int, size: int) -> tuple[Rule, dict[str, int]]:
    kept, whole = terms_of(len(x), dim, ("k", ALONG))
    return Rule.parse(f"{kept}, {kept} -> {whole}", whole="k"), {ALONG: size}


#: Entries at their places in a dim of zeros, of which each rank makes its piece.
_place_op = Op(
    "place", _place_rule, _place_forward, dtype=lambda x, _ids, dim, size: x, contextual=True, moves=True
)


def _topk_adjoint(
    dys: Sequence[Tensor | None], operands: Tensors, results: Tensors, dim: int, k: int, largest: bool
) -> tuple[Tensor | None]:
    (dy, _), (x,) = dys, operands
    if dy is None:
        return (None,)
    axes = {ALONG if d == dim else f"d{d}": entry for d, entry in enumerate(x.layout.dims) if entry}
    return (_place_op.shard(axes)(dy, results[1], dim=dim, size=x.shape[dim]),)


_topk_op = SteppedOp(
    "topk",
    _topk_rule,
    _topk_forward,
    dtype=lambda x, **_: (x, np.dtype(np.int64)),
    steps=_topk_steps,
    adjoint=_topk_adjoint,
    contextual=True,
    saves_result=True,
    unseen=(0,),
    moves=True,
)


@operator(_topk_op)
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, *, axis: int = -1) -> tuple[Tensor, Tensor]:
    """Return the ``k`` largest entries along a dimension, in order, and their indices.

    Where the dim is split each rank finds its own ``k`` and all are gathered in one call per result: the dim of the
    results is whole. Of equal entries the first come first; nan count as larger than all other values.

    Args:
        x: the tensor.
        k: how many.
        dim: the dimension; negative numbers count from the end. It may be split.
        largest: False for the smallest ones.
        axis: another name of ``dim``.

    Raises:
        RuleError: a dimension out of range, fewer entries than ``k``.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> [part.full().tolist() for part in ops.topk(v, 2)]
    [[3, 3], [0, 2]]
    """
    at = along_dim("topk", x, dim)
    if not 0 <= k <= x.shape[at]:
        raise RuleError(f"topk: {many(k, 'entry', 'entries')} of dim {at}, which has {x.shape[at]}")
    values, places = _topk_op.results(x.to(x.layout.reduced), dim=at, k=int(k), largest=bool(largest))
    return values, places


_search_op = Op(
    "searchsorted",
    Rule.parse("v, ... -> ..."),
    # How many entries of a rank's piece lie before each value: what all pieces say together is the place.
    lambda x, values, side: np.asarray(
        np.searchsorted(comparable(x), comparable(values), side=side), np.int64
    ),
    dtype=lambda _x, _values, side: np.dtype(np.int64),
    moves=True,
)


@operator(_search_op)
def searchsorted(x: Tensor, values: Operand, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """Return the indices where values can be inserted into a sorted tensor.

    Where the sorted dim is split each rank counts the entries of its piece before each value: the result is
    partial over its axes.

    Args:
        x: sorted values ``[v]``.
        values: ``[...]``; in the type of ``x``, or both in the type in which they meet.
        side: ``"left"`` of equal ones, or ``"right"``.
        sorter: the order in which ``x`` is sorted, as ``argsort`` gives it.

    Raises:
        RuleError: another side, or sorted values of several dims.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.searchsorted(ops.sort(v), [2, 4]).full().tolist()
    [1, 4]
    """
    if x.ndim != 1:
        raise RuleError(f"searchsorted looks in a tensor of one dim, but got {x.ndim}")
    if side not in ("left", "right"):
        raise RuleError(f"the side of searchsorted is 'left' or 'right', but got {side!r}")
    if sorter is not None:
        x = take_along_axis(x, sorter, 0)
    sorted_values, wanted = alike("searchsorted", x, as_operand(values, x))
    return _search_op(sorted_values, wanted, side=side)
