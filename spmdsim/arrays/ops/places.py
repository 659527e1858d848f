"""Indices of extreme entries, largest entries and positions in sorted tensors, along split dims, too."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Context, Op, Tensor
from spmdsim.arrays.operands import Operand, parse_flag
from spmdsim.arrays.ops.along import find_owned_entries, format_terms, take_along_axis
from spmdsim.arrays.ops.declare import Array, Shape, convert_to_one_type
from spmdsim.arrays.ops.dim_reductions import normalise_dims
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.scans import (
    ALONG,
    Tensors,
    find_split_axes,
    from_rows,
    list_other_dims,
    normalise_along_dim,
    to_rows,
)
from spmdsim.arrays.ops.shape import reshape
from spmdsim.arrays.ops.sorting import to_comparable
from spmdsim.arrays.stepped import SteppedOp
from spmdsim.core import BoundRule, Rule, Strategy
from spmdsim.core.elements import identity
from spmdsim.core.step import Step
from spmdsim.errors import RuleError, UsageTypeError, many
from spmdsim.layout.element_type import accumulator, check_ordered
from spmdsim.worlds.convert_operands import as_operand

__all__ = ["argmax", "argmin", "searchsorted", "topk"]

#: Index proposed by a rank that does not own the extreme.
_NO_INDEX = np.iinfo(np.int64).max


def _extreme_rule(shape: Shape, dim: int | None) -> Rule:
    """Return the rule of ``argmax`` and ``argmin``, whose result is a minimum over ranks.

    Each rank that owns the extreme gives its index; the lowest one counts. For shape (2, 3) and dim 1 the rule is "d0
    d1 -> d0"; for ``dim`` None it is "d0 d1 ->".
    """
    dims = normalise_dims(dim, len(shape))
    names = [f"d{d}" for d in range(len(shape))]
    remaining = " ".join(name for d, name in enumerate(names) if d not in dims)
    return Rule.parse(f"{' '.join(names)} -> {remaining}", reduce="min")


def _extreme_steps(
    op: str, bound: BoundRule, strategy: Strategy, inputs: Sequence[Any], dim: int | None
) -> Sequence[Any]:
    """Return the two all-reduces of ``argmax`` or ``argmin``, or () if no reduced dim is split.

    Each is a pair of a step and its element type. The first one finds the extreme over all ranks, the second one its
    lowest index. Axes of size 1 do not count as a split.

    Args:
        op: "max" or "min".
        bound: the rule with its sizes.
        strategy: the axes that split the dimensions.
        inputs: the `Meta` (layout, shape, dtype) of the operand, in a list of one.
        dim: the dimension, or None for all.
    """
    (layout,), (x,) = BoundRule.output_layouts(bound, strategy), inputs
    axes = [axis for axis, _ in layout.partial if layout.mesh.axis_size(axis) > 1]
    if not axes:
        return ()
    dims = normalise_dims(dim, len(x.shape))
    shape = tuple(n for d, n in enumerate(x.shape) if d not in dims)
    extreme_step, index_step = [
        Step("all_reduce", tuple(axes), layout, layout.reduced, shape, kind) for kind in (op, "min")
    ]
    return (extreme_step, accumulator("sum", x.dtype)), (index_step, np.dtype(np.int64))


def _extreme_forward(op: str, context: Context, x: Array, dim: int | None) -> Generator[Array, Array, Array]:
    """Return the index of the first extreme element along the reduced dims; a nan is an extreme.

    The index is int64, in an array without the reduced dims. It counts in row-major order over the global sizes of the
    reduced dims. For example, "max" over both dims of [[3, 1], [2, 9]] gives 3.

    If no reduced dim is split, the generator returns at once. Otherwise it yields twice:

    1. the extremes of this rank's block; the caller sends back the extremes over all ranks;
    2. the index where this rank owns the extreme, and the largest integer ``_NO_INDEX`` elsewhere; the caller sends
       back the lowest index over all ranks, which is the result.

    Args:
        op: "max" or "min".
        context: the operator call on this rank: strategy, rank, sizes.
        x: this rank's block; it may be empty if a reduced dim is split.
        dim: the reduced dimension, or None for all.
    """
    dims = normalise_dims(dim, x.ndim)
    remaining_sizes = [n for d, n in enumerate(x.shape) if d not in dims]
    rows = np.moveaxis(x, dims, range(-len(dims), 0)).reshape(
        *remaining_sizes, math.prod(x.shape[d] for d in dims)
    )
    find_index = np.argmax if op == "max" else np.argmin
    if all(context.strategy.parts(f"d{d}") == 1 for d in dims):
        return np.asarray(find_index(rows, axis=-1), np.int64)
    if rows.shape[-1]:
        index = find_index(rows, axis=-1)
        value = np.take_along_axis(rows, np.expand_dims(index, -1), -1)[..., 0]
        local_indices, index = np.unravel_index(index, [x.shape[d] for d in dims]), np.zeros_like(index)
        # Convert the index in this rank's block to the index in the global dims, both in row-major order.
        for d, at in zip(dims, local_indices):
            index = index * context.size(f"d{d}") + context.bounds(f"d{d}")[0] + at
    else:
        index, value = np.full(remaining_sizes, _NO_INDEX), np.full(remaining_sizes, identity(op, x.dtype))
    extreme = yield value
    owns_extreme = (value == extreme) | (value != value)  # a nan is the extreme
    first: Array = yield np.where(owns_extreme, index, _NO_INDEX)
    return first


def _declare_extreme(name: str, op: str) -> Op:
    """Return the operator ``argmax`` or ``argmin``, which has no gradient.

    Its parameter ``dim`` is a dimension, or None for all. It refuses complex elements with a RuleError.
    """
    return SteppedOp(
        name,
        _extreme_rule,
        lambda context, x, dim: _extreme_forward(op, context, x, dim),
        dtype=lambda x, dim: np.dtype(np.int64) if check_ordered(x, name) else x,
        steps=lambda bound, strategy, inputs, dim: _extreme_steps(op, bound, strategy, inputs, dim),
        contextual=True,
    )


_argmax_op, _argmin_op = _declare_extreme("argmax", "max"), _declare_extreme("argmin", "min")


def _find_extreme_index(op: Op, x: Tensor, dim: int | None, keepdims: bool) -> Tensor:
    """Return the int64 index of the first extreme element along a dimension, or of all elements.

    For argmax, [[3, 1], [2, 9]] gives [0, 1] along dim 0. Without a dim it gives 3, the row-major index of 9.

    Args:
        op: the operator ``argmax`` or ``argmin``.
        x: the tensor.
        dim: the dimension; negative ones count from the end; None: all dimensions together.
        keepdims: keep reduced dimensions with size 1.

    Raises:
        RuleError: If there are no elements, the dimension is out of range, or ``x`` is complex.
        UsageTypeError: If ``dim`` is no integer.
    """
    if not (dim is None or isinstance(dim, (int, np.integer))):
        raise UsageTypeError(
            f"{op.name}: dim must be an integer or None, got {dim!r}; merge several dims first"
        )
    dims = normalise_dims(dim, x.ndim)
    if 0 in [x.shape[d] for d in dims]:
        raise RuleError(f"{op.name} of no elements is undefined: shape {x.shape}, dims {dims}")
    index = op(x.detach(), dim=None if dim is None else dims[0])
    if not parse_flag("keepdims", keepdims):
        return index
    return reshape(index, [1 if d in dims else n for d, n in enumerate(x.shape)])


@operator(_argmax_op)
def argmax(x: Tensor, dim: int | None = None, keepdims: bool = False, *, axis: int | None = None) -> Tensor:
    """Return the index of the largest element along a dimension, the first one of equals.

    Indices are int64 and count in the global dimension. If it is split, ranks agree on the largest element and its
    first index.

    Args:
        x: the tensor.
        dim: the dimension; negative numbers count from the end. It may be split. None: all, counted in row-major
            order.
        keepdims: keep reduced dimensions in the result, with size 1.
        axis: another name of ``dim``.

    Returns:
        int64 indices without the reduced dimension, or with size 1 for it.

    Raises:
        RuleError: If a dimension is out of range, there are no elements, or ``x`` is complex.
        UsageTypeError: If ``keepdims`` is no bool.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.argmax(x, axis=1).full().tolist()
    [0, 0]
    """
    return _find_extreme_index(_argmax_op, x, dim, keepdims)


@operator(_argmin_op)
def argmin(x: Tensor, dim: int | None = None, keepdims: bool = False, *, axis: int | None = None) -> Tensor:
    """Return the index of the smallest element along a dimension; see :func:`argmax`.

    Of equal elements the first one counts. Indices are int64 and count in the global dimension.

    Args:
        x: the tensor.
        dim: the dimension; negative numbers count from the end. It may be split. None: all, counted in row-major
            order.
        keepdims: keep reduced dimensions in the result, with size 1.
        axis: another name of ``dim``.

    Returns:
        int64 indices without the reduced dimension, or with size 1 for it.

    Raises:
        RuleError: If a dimension is out of range, there are no elements, or ``x`` is complex.
        UsageTypeError: If ``keepdims`` is no bool.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.argmin(x, axis=1).full().tolist()
    [1, 2]
    """
    return _find_extreme_index(_argmin_op, x, dim, keepdims)


def _topk_rule(shape: Shape, dim: int, k: int, largest: bool) -> tuple[Rule, dict[str, int]]:
    """Return the rule of ``topk`` with two results, and the size ``k`` of their dimension."""
    operand_term, result_term = format_terms(len(shape), dim, (ALONG, "k"))
    return Rule.parse(f"{operand_term} -> {result_term}, {result_term}", whole="k"), {"k": k}


def _topk_steps(
    bound: BoundRule, strategy: Strategy, inputs: Sequence[Any], dim: int, k: int, largest: bool
) -> Any:
    """Return all-gathers of ``k`` values and indices per rank; () if the dim is not split."""
    axes = find_split_axes(strategy)
    if not axes:
        return ()
    (meta,), ranks = inputs, strategy.mesh.axis_size(*axes)
    sizes, entries = list_other_dims(meta, dim)
    src, dst = (strategy.mesh(dim_entry, None, *entries) for dim_entry in (axes, None))
    step = Step("all_gather", axes, src, dst, (ranks, k, *sizes))
    return (step, meta.dtype), (step, np.dtype(np.int64))


def _topk_forward(
    context: Context, x: Array, dim: int, k: int, largest: bool
) -> Generator[Array, Array, tuple[Array, Array]]:
    """Return the ``k`` largest or smallest entries along a dimension, and their global indices.

    Of equal entries the first comes first: the 3 largest of [3, 9, 9, 1] are (9, 9, 3), with indices (1, 2, 0).

    If the dim is not split, the generator returns at once. Otherwise each rank offers its own best ``k`` entries, and
    every rank chooses among all of them. The generator yields twice, first the values, then the indices, each as
    ``[1, k, *other dims]``; the caller sends back those of all ranks as ``[ranks, k, *other dims]``. A rank with fewer
    than ``k`` entries adds values of 0 with the index -1, which are left out of the choice.

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        x: this rank's block.
        dim: the dimension.
        k: the number of entries, at most the size of the whole dimension.
        largest: True for the largest entries in descending order, False for the smallest in ascending order.
    """
    rows, start = to_rows(x, dim), context.bounds(ALONG)[0]
    order = _sort_positions(rows, min(k, rows.shape[1]), largest)
    values, places = np.take_along_axis(rows, order, -1), order + start
    others = [n for d, n in enumerate(x.shape) if d != dim]
    if find_split_axes(context.strategy):
        missing = [(0, 0), (0, k - order.shape[1])]
        values = np.pad(values, missing) if values.size else np.zeros((len(rows), k), x.dtype)
        places = np.pad(places, missing, constant_values=-1)
        gathered = []
        for array in (values, places):
            candidates = yield array.T.reshape(1, k, *others)
            gathered.append(candidates.reshape(-1 if candidates.size else 0, len(rows)).T)
        values, places = gathered
        # Move the padding of all ranks, which has the index -1, behind the entries.
        order_of_entries = np.argsort(places < 0, axis=-1, kind="stable")
        values, places = (np.take_along_axis(array, order_of_entries, -1) for array in (values, places))
        # All rows have equally many entries, so count those of the first row.
        entry_count = (places >= 0).sum(-1)[0] if len(places) else 0
        order = _sort_positions(values[:, :entry_count], k if len(places) else 0, largest)
        values, places = (np.take_along_axis(array, order, -1) for array in (values, places))
    shape = [k if d == dim else n for d, n in enumerate(x.shape)]
    values, places = (from_rows(array.reshape(len(rows), k), shape, dim) for array in (values, places))
    return values, places


def _sort_positions(rows: Array, k: int, largest: bool) -> Array:
    """Return the positions of the first ``k`` entries of each row in sorted order.

    For example, the row [3, 1, 3] gives [0, 2] for the two largest entries. Equal entries keep their order, also if
    descending. nan counts as larger than all other values. Rows with fewer entries give as many positions as they have.
    """
    keys = to_comparable(rows)
    if not largest:
        return np.argsort(keys, axis=-1, kind="stable")[:, :k]
    # Sort the reversed rows, and reverse the order: then equal entries keep their order.
    reversed_positions = np.argsort(keys[:, ::-1], axis=-1, kind="stable")[:, ::-1]
    positions: Array = rows.shape[1] - 1 - reversed_positions[:, :k]
    return positions


def _place_forward(context: Context, x: Array, ids: Array, dim: int, size: int) -> Array:
    """Return this rank's block of zeros, with entries written at their positions along ``dim``.

    For example, the entries [7, 8] at the positions [3, 0] of 4 give the blocks [8, 0] and [0, 7] of two ranks. If
    several entries have one position, the last one counts.
    """
    start, stop = context.bounds(ALONG)
    result = np.zeros([stop - start if d == dim else n for d, n in enumerate(x.shape)], x.dtype)
    is_owned, indices = find_owned_entries(context, ids, dim, ALONG)
    result[indices] = x[is_owned]
    return result


def _place_rule(x: Shape, ids: Shape, dim: int, size: int) -> tuple[Rule, dict[str, int]]:
    """Return the rule of an operator that puts entries into a dim of zeros, and this dim's size.

    For shapes (2, 3) and dim 1 it is "d0 k, d0 k -> d0 w", with the size of "w".
    """
    operand_term, result_term = format_terms(len(x), dim, ("k", ALONG))
    return Rule.parse(f"{operand_term}, {operand_term} -> {result_term}", whole="k"), {ALONG: size}


#: Puts entries at positions of a dim of zeros; each rank computes its own block.
_place_op = Op(
    "place", _place_rule, _place_forward, dtype=lambda x, _ids, dim, size: x, contextual=True, moves=True
)


def _topk_adjoint(
    dys: Sequence[Tensor | None], operands: Tensors, results: Tensors, dim: int, k: int, largest: bool
) -> tuple[Tensor | None]:
    """Return the gradient of ``topk``: each value's gradient at its position, 0 elsewhere.

    It is split as the operand. The result is ``(None,)`` if the values have no gradient.

    Args:
        dys: the gradients of values (or None) and indices.
        operands: the operand.
        results: values and indices.
        dim: the dimension.
        k: the number of entries; not used.
        largest: not used.
    """
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
    """Return the ``k`` largest entries along a dimension in descending order, and their indices.

    If the dim is split, each rank finds its own ``k`` entries, and one all-gather per result collects them: the dim of
    the results is not split. Of equal entries the first comes first; nan counts as larger than all other values.
    Values have a gradient.

    Args:
        x: the tensor; a partial one is reduced first.
        k: the number of entries, from 0 to the size of the dimension.
        dim: the dimension; negative numbers count from the end. It may be split.
        largest: False for the smallest entries, in ascending order.
        axis: another name of ``dim``.

    Returns:
        The values and their int64 indices in the global dimension, both with size ``k`` along ``dim``.

    Raises:
        RuleError: If a dimension is out of range or has fewer than ``k`` entries.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> [part.full().tolist() for part in ops.topk(v, 2)]
    [[3, 3], [0, 2]]
    """
    at = normalise_along_dim("topk", x, dim)
    if not 0 <= k <= x.shape[at]:
        raise RuleError(f"topk: {many(k, 'entry', 'entries')} of dim {at}, which has {x.shape[at]}")
    values, places = _topk_op.results(x.to(x.layout.reduced), dim=at, k=int(k), largest=bool(largest))
    return values, places


_search_op = Op(
    "searchsorted",
    Rule.parse("v, ... -> ..."),
    # Count this rank's entries before each value: the sum of the counts over all ranks is the position.
    lambda x, values, side: np.asarray(
        np.searchsorted(to_comparable(x), to_comparable(values), side=side), np.int64
    ),
    dtype=lambda _x, _values, side: np.dtype(np.int64),
    moves=True,
)


@operator(_search_op)
def searchsorted(x: Tensor, values: Operand, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """Return the indices where values can be inserted into a sorted tensor.

    If the sorted dimension is split, each rank counts the entries of its block before each value: the result is
    partial over the axes of the dimension.

    Args:
        x: values ``[v]`` in ascending order, which is not checked.
        values: ``[...]``; compared in the common type of both.
        side: ``"left"``: insert before equal values; ``"right"``: insert after them.
        sorter: the order in which ``x`` is sorted, as :func:`argsort` returns it; None: ``x`` is sorted.

    Returns:
        int64 indices in the shape of ``values``, partial over the axes that split ``x``.

    Raises:
        RuleError: If ``side`` is unknown, or if ``x`` has several dimensions.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.searchsorted(ops.sort(v), [2, 4]).full().tolist()
    [1, 4]
    """
    if x.ndim != 1:
        raise RuleError(f"searchsorted: x must have one dim, got {x.ndim}")
    if side not in ("left", "right"):
        raise RuleError(f"searchsorted: side must be 'left' or 'right', got {side!r}")
    if sorter is not None:
        x = take_along_axis(x, sorter, 0)
    sorted_values, wanted = convert_to_one_type("searchsorted", x, as_operand(values, x))
    return _search_op(sorted_values, wanted, side=side)
