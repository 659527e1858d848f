"""Entries looked up or replaced by index arrays along one dimension."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Context, Op, Tensor
from spmdsim.arrays.operands import Operand, convert_operands
from spmdsim.arrays.ops.declare import Array, Arrays, cast
from spmdsim.arrays.ops.elementwise import add, less, where
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.scans import (
    ALONG,
    find_split_axes,
    from_rows,
    make_along_rule,
    normalise_along_dim,
    to_rows,
)
from spmdsim.arrays.ops.shape import broadcast_to
from spmdsim.arrays.stepped import SteppedOp
from spmdsim.core import BoundRule, Layout, Rule, Strategy
from spmdsim.core.step import Step
from spmdsim.errors import RuleError, many
from spmdsim.redistribution.steps.group_steps import Parts, build_parts_step
from spmdsim.redistribution.steps.row_steps import check_ids
from spmdsim.worlds.convert_operands import as_operand

__all__ = ["take_along_axis"]


def _put_steps(bound: BoundRule, strategy: Strategy, inputs: Sequence[Any], dim: int) -> Any:
    """Return the three exchanges of `_put_forward` as (step, element type); () if the dim is not split.

    All are all-to-all exchanges among the ranks that split the dim: first of the numbers of elements, then of their
    positions, then of their values.
    """
    axes = find_split_axes(strategy)
    if not axes:
        return ()
    mesh, rank_count, int64 = strategy.mesh, strategy.mesh.axis_size(*axes), np.dtype(np.int64)
    count_step = Step("all_to_all", axes, mesh(axes, None), mesh(None, axes), (rank_count, rank_count))
    element_step = build_parts_step(inputs[0].layout, axes, inputs[0].shape)
    return ((count_step, int64), (element_step, int64), (element_step, inputs[0].dtype))


def _put_forward(context: Context, x: Array, ids: Array, dim: int) -> Generator[Any, Any, Array]:
    """Return this rank's block of the result of `put_along`: each element is moved to its id.

    In one dim, for example, the elements [7, 8, 9] with the ids [2, 0, 1] give [8, 9, 7]. If the dim is not split, the
    generator returns at once. Otherwise the ranks that split the dim exchange elements: the generator yields what this
    rank sends to each of them, and the caller sends back what it receives. This happens three times: for the
    numbers of elements, for their positions and for their values.

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        x: this rank's elements.
        ids: the position of each element along ``dim``, in the whole tensor; each position occurs once.
        dim: the dimension.
    """
    mesh, axes = context.strategy.mesh, find_split_axes(context.strategy)
    if not axes:
        result = np.empty_like(x)
        np.put_along_axis(result, ids, x, dim)
        return result
    members, size = mesh.group(context.rank, *axes), context.size(ALONG)
    line = Layout(mesh, [axes])
    bounds = np.array([line.bounds((size,), member)[0] for member in members])
    rows, targets = to_rows(x, dim), to_rows(ids, dim)
    # The owner of each target position, and the position in the flat array of the owner's rows.
    starts, lengths = bounds[:, 0], bounds[:, 1] - bounds[:, 0]
    owner = np.searchsorted(bounds[:, 1], targets, side="right")
    offsets = (np.arange(len(rows))[:, None] * lengths[owner] + targets - starts[owner]).reshape(-1)
    # Send positions and values in the order of their owners.
    order = np.argsort(owner, axis=None, kind="stable")
    counts = np.bincount(owner.reshape(-1), minlength=len(members))
    cuts = np.cumsum(counts)[:-1]
    received_counts = (yield counts[None]).reshape(-1).tolist()
    received_offsets = yield Parts(np.split(offsets[order], cuts), received_counts)
    received_values = yield Parts(np.split(rows.reshape(-1)[order], cuts), received_counts)
    result = np.empty(rows.size, x.dtype)
    result[np.concatenate(received_offsets)] = np.concatenate(received_values)
    return from_rows(result.reshape(rows.shape), x.shape, dim)


_put_op = SteppedOp(
    "put_along",
    lambda shape, ids, dim: make_along_rule(shape, dim, "{}, {} -> {}"),
    _put_forward,
    dtype=lambda x, _ids, dim: x,
    steps=_put_steps,
    contextual=True,
    moves=True,
)


def put_along(x: Tensor, ids: Tensor, dim: int) -> Tensor:
    """Return ``x`` with its elements moved along ``dim`` to the positions in ``ids``.

    ``ids`` has the shape of ``x`` and names every position once.
    """
    return _put_op(x.to(ids.layout), ids, dim=dim)


def format_terms(ndim: int, dim: int, factors: Sequence[str]) -> list[str]:
    """Return one rule term per factor, such as ``"d0 v"`` for dim 1 of 2 and factor "v".

    The factor is the name of dim ``dim``; the name of another dim k is ``d<k>``.
    """
    return [" ".join(factor if d == dim else f"d{d}" for d in range(ndim)) for factor in factors]


def find_owned_entries(
    context: Context, ids: Array, dim: int, factor: str = "v", what: str = ""
) -> tuple[Array, tuple[Array, ...]]:
    """Return a mask of the ids whose entries this rank owns, and the entries' local indices.

    Args:
        context: the operator call as this rank sees it: strategy, rank, sizes.
        ids: positions along ``dim`` in the whole tensor, from 0; in the other dims it has the sizes of this rank's
            block.
        dim: the dimension.
        factor: the name of ``dim`` in the operator's rule.
        what: the entries' description in the error message of an id that is out of range; "": "entries of dim
            ``dim``".

    Returns:
        A boolean array of the shape of ``ids``. One index array per dim; together they select the owned entries from
        this rank's block, in the order of the True elements.

    Raises:
        InputError: If an id is out of range of the whole dimension.
    """
    check_ids(ids, context.size(factor), description=what or f"entries of dim {dim}")
    start, stop = context.bounds(factor)
    is_owned = (ids >= start) & (ids < stop)
    indices = list(np.nonzero(is_owned))
    indices[dim] = ids[is_owned] - start
    return is_owned, tuple(indices)


def _take_forward(context: Context, x: Array, ids: Array, dim: int) -> Array:
    """Return the looked-up entries that this rank owns, and zeros for entries of other ranks.

    The result has the shape of ``ids``. A rank whose block has the whole dimension owns all entries.

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        x: this rank's block.
        ids: positions along ``dim`` in the whole tensor, from 0.
        dim: the dimension.

    Raises:
        InputError: If an id is out of range.
    """
    if x.shape[dim] == context.size("v"):
        return np.take_along_axis(
            x, check_ids(ids, context.size("v"), description=f"entries of dim {dim}"), dim
        )
    is_owned, indices = find_owned_entries(context, ids, dim)
    entries = np.zeros(ids.shape, x.dtype)
    entries[is_owned] = x[indices]
    return entries


def _take_vjp(context: Context, dy: Array, operands: Arrays, _result: Any, dim: int) -> tuple[Array, None]:
    """Return the gradient of this rank's block, and None for the ids.

    An entry that is looked up several times gets the sum of its gradients; one that is never looked up gets 0.

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        dy: the gradient of the result, in the shape of the ids.
        operands: this rank's block and the ids.
        _result: the result; not used.
        dim: the dimension.
    """
    x, ids = operands
    gradient = np.zeros_like(x, order="C")
    is_owned, indices = find_owned_entries(context, ids, dim)
    np.add.at(gradient, indices, dy[is_owned])
    return gradient, None


_take_op = Op(
    "take_along_axis",
    lambda x, ids, dim: Rule.parse(
        "{0}, {1} -> {1}".format(*format_terms(len(x), dim, "vi")), indexed="v", linear=((0,),)
    ),
    _take_forward,
    _take_vjp,
    dtype=lambda x, _ids, dim: x,
    contextual=True,
    moves=True,
)


@operator(_take_op)
def take_along_axis(x: Operand, ids: Operand, dim: int = -1, *, axis: int = -1) -> Tensor:
    """Return the entry of ``x`` at each index along a dimension, as ``numpy.take_along_axis``.

    If the dimension is split, each rank returns the entries it owns and zeros for the others: the result is partial.

    Args:
        x: the tensor.
        ids: integers, a tensor or an array that all ranks have; negative ones count from the end. The other dims
            equal those of ``x``, or broadcast with them.
        dim: the dimension; negative numbers count from the end. It may be split.
        axis: another name of ``dim``.

    Returns:
        The entries in the broadcast shape of ``ids``.

    Raises:
        RuleError: If a dimension is out of range or shapes do not broadcast.
        InputError: If an integer is out of range for the dimension.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.take_along_axis(x, ops.argsort(x)).full().tolist()
    [[1, 2, 3], [4, 5, 6]]
    """
    x, ids = convert_operands("take_along_axis", (x, ids))
    at = normalise_along_dim("take_along_axis", x, dim)
    return _take_op(*_broadcast_operands("take_along_axis", x, ids, at), dim=at)


def _broadcast_operands(name: str, x: Tensor, ids: Tensor, at: int) -> tuple[Tensor, Tensor]:
    """Return tensor and ids, broadcast to equal sizes in all dims but ``at``.

    Negative ids count from the end and are replaced: -1 along a dim of 5 entries becomes 4. Whether ids are in range is
    not checked here.

    Args:
        name: the function that the user called, for error messages.
        x: the tensor.
        ids: integers; negative ones count from the end of dim ``at``.
        at: the dimension, not negative.

    Raises:
        RuleError: If the numbers of dims differ or the sizes do not broadcast.
    """
    if ids.ndim != x.ndim:
        raise RuleError(
            f"{name}: indices of {many(ids.ndim, 'dim')} do not fit a tensor of {many(x.ndim, 'dim')}"
        )
    try:
        common = np.broadcast_shapes(*[(*t.shape[:at], 1, *t.shape[at + 1 :]) for t in (x, ids)])
    except ValueError:
        raise RuleError(f"{name}: shapes {x.shape} and {ids.shape} differ besides dim {at}") from None
    x_shape, ids_shape = ((*common[:at], t.shape[at], *common[at + 1 :]) for t in (x, ids))
    x = x if x.shape == x_shape else broadcast_to(x, x_shape)
    ids = ids if ids.shape == ids_shape else broadcast_to(ids, ids_shape)
    if ids.dtype.kind == "i":
        ids = where(less(ids, 0), add(ids, x.shape[at]), ids)
    return x, ids


def _replace_forward(context: Context, x: Array, ids: Array, values: Array, dim: int) -> Array:
    """Return this rank's block ``x`` with the values whose ids lie in the block.

    ``ids`` are positions in the whole tensor. If several values have one position, the last one counts.
    """
    is_owned, indices = find_owned_entries(context, ids, dim)
    replaced = x.copy()
    replaced[indices] = values[is_owned]
    return replaced


def _replace_vjp(
    context: Context, dy: Array, operands: Arrays, _result: Any, dim: int
) -> tuple[Array, None, Array]:
    """Return one rank's gradients of the tensor, of the ids (always None) and of the values.

    The tensor's gradient is ``dy``, but 0 at replaced elements. A value's gradient is ``dy`` at the element that the
    value replaced. It is 0 if a later value replaced this element again, or if another rank owns the element.

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        dy: the gradient of the result, in the shape of this rank's block.
        operands: the tensor (not read), the ids, and the values (not read). Ids are positions along ``dim`` in the
            whole tensor, from 0.
        _result: the result; not used.
        dim: the dimension.
    """
    is_owned, indices = find_owned_entries(context, operands[1], dim)
    x_gradient, values_gradient = dy.copy(), np.zeros(operands[1].shape, dy.dtype)
    x_gradient[indices] = 0
    # The number of the value that each element keeps: the last one of several.
    numbers, last = np.arange(np.sum(is_owned)), np.zeros(dy.shape, np.intp)
    last[indices] = numbers
    values_gradient[is_owned] = np.where(last[indices] == numbers, dy[indices], 0)
    return x_gradient, None, values_gradient


_replace_op = Op(
    "put_along_axis",
    lambda x, ids, values, dim: Rule.parse(
        "{0}, {1}, {1} -> {0}".format(*format_terms(len(x), dim, "vi")), whole="i"
    ),
    _replace_forward,
    _replace_vjp,
    dtype=lambda x, _ids, _values, dim: x,
    contextual=True,
    unseen=(0, 2),
    moves=True,
)


def put_along_axis(x: Tensor, ids: Operand, values: Operand, dim: int) -> Tensor:
    """Return the tensor with ``values`` at the positions ``ids`` along a dimension.

    Each rank changes its own block; ids and values are gathered along ``dim``. If ``ids`` repeats a position, the last
    value counts.

    Args:
        x: the tensor.
        ids: integers with as many dims as ``x``, which broadcast with it except along ``dim``; negative ones count
            from the end.
        values: broadcast to the shape of ``ids``, and converted to the type of ``x`` whatever their type.
        dim: the dimension; negative numbers count from the end.

    Returns:
        A new tensor in the type of ``x``; ``x`` does not change. It has the shape of ``x``, broadcast with the ids
        except along ``dim``.

    Raises:
        RuleError: If the numbers of dims differ, shapes do not broadcast, or ``dim`` is out of range.
        InputError: If an id is out of range.
    """
    at = normalise_along_dim("put_along_axis", x, dim)
    x, numbers = _broadcast_operands("put_along_axis", x, as_operand(ids, x), at)
    new = as_operand(values, x)
    new = new if new.dtype == x.dtype else cast(new, x.dtype)
    return _replace_op(x, numbers, broadcast_to(new, numbers.shape), dim=at)
