"""Entries selected by masks, and unique values; a small gather of counts gives balanced blocks."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from spmdsim.arrays import Context, Op, Tensor
from spmdsim.arrays.joined import join_rows, require_values
from spmdsim.arrays.operands import Operand
from spmdsim.arrays.ops.along import put_along
from spmdsim.arrays.ops.declare import Array, bool_type, cast, convert_to_one_type
from spmdsim.arrays.ops.elementwise import logical_not, subtract
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.scans import ALONG, cumulative_sum, find_split_axes
from spmdsim.arrays.ops.shape import merge_dims, reshape
from spmdsim.arrays.ops.sorting import sort, sort_with_indices
from spmdsim.arrays.stepped import SteppedOp
from spmdsim.core import BoundRule, Layout, Rule, Strategy
from spmdsim.core.step import Step
from spmdsim.errors import OutOfRange, RuleError
from spmdsim.worlds.convert_operands import as_operand

__all__ = ["isin", "nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"]


def move_axes_to_first_dim(x: Tensor, dims: int) -> Tensor:
    """Return the tensor with all axes that split one of the first ``dims`` dims at the first dim.

    Entries of these dims are then ordered rank by rank, in row-major order. Pending reductions are finished.

    Args:
        x: the tensor.
        dims: the number of first dims.
    """
    layout = x.layout.reduced.canonical
    axes = [axis for entry in layout.dims[:dims] for axis in entry]
    return x.to(Layout(layout.mesh, [axes, *[None] * (dims - 1), *layout.dims[dims:]]))


def select(x: Tensor, mask: Tensor) -> Tensor:
    """Return ``x[mask]``: the entries, or rows, where the mask is True, in row-major order.

    For ``x`` of shape [4, 6, 5], a mask [4] selects rows [count, 6, 5], and a mask [4, 6] selects rows [count, 5].

    Each rank selects from its own block. One small gather exchanges the counts, and one exchange forms balanced
    blocks: the first dim of the result is split by all axes that split a masked dim. Gradients go back to the
    positions of the entries. All ranks must call it.

    Args:
        x: the tensor; a partial one is reduced first.
        mask: a bool tensor in the shape of the first dims of ``x``. A mask without dims selects all of ``x`` or
            nothing: the result has one more dim, of size 1 or 0.

    Raises:
        OutOfRange: If the mask does not have the sizes of the first dims.
        WorldError: If the world has no values.
    """
    if mask.shape != x.shape[: mask.ndim]:
        raise OutOfRange(f"a mask of shape {mask.shape} does not fit a tensor of shape {x.shape}")
    require_values(x.world, "x[mask]")
    if not mask.ndim:
        return select(reshape(x, (1, *x.shape)), reshape(mask, (1,)))
    x = move_axes_to_first_dim(x, mask.ndim)
    split_mask = mask.detach().to(Layout(x.layout.mesh, x.layout.dims[: mask.ndim]))
    masks = split_mask.read_shards()
    pieces = [block[block_mask] for block, block_mask in zip(x.stored_shards, masks)]
    shapes, dims = [block.shape for block in x.stored_shards], x.layout.dims[mask.ndim :]

    def put(k: int, piece: Array) -> Array:
        """Return the entries of block ``k`` at their positions, and zeros elsewhere."""
        block = np.zeros(shapes[k], piece.dtype)
        block[masks[k]] = piece
        return block

    pieces = [p if p.ndim == 1 + len(dims) else p.reshape(0, *[0] * len(dims)) for p in pieces]
    layout = Layout(x.layout.mesh, [x.layout.dims[0], *dims])
    return join_rows("select", (x, mask), layout, pieces, x.shape[mask.ndim :], put)


def flatten_in_blocks(x: Tensor) -> Tensor:
    """Return all entries as one dim, split by the axes that split any dim; no element is gathered."""
    x = x.to(x.layout.reduced.canonical)
    return x if x.ndim == 1 else merge_dims(x, 0, x.ndim)


@operator()
def nonzero(x: Tensor) -> tuple[Tensor, ...]:
    """Return the indices of entries that are not 0, in row-major order; all ranks must call it.

    The indices have no gradient. The number of entries takes one small gather.

    Args:
        x: the tensor; a partial one is reduced first.

    Returns:
        One int64 tensor ``[count]`` per dimension. Their entries form balanced blocks over the axes that split ``x``.

    Raises:
        RuleError: If ``x`` has no dimensions.
        WorldError: If the world has no data.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> [places.full().tolist() for places in ops.nonzero(x > 3)]
    [[1, 1, 1], [0, 1, 2]]
    """
    if not x.ndim:
        raise RuleError("nonzero takes a tensor with dims")
    require_values(x.world, "nonzero(x)")
    x = move_axes_to_first_dim(x.detach(), x.ndim)
    pieces = []
    for rank, shard in zip(x.world.ranks, x.read_shards()):
        local_positions = np.stack(np.nonzero(shard), -1)
        local_positions[:, 0] += x.layout.bounds(x.shape, rank)[0][0]
        pieces.append(local_positions.astype(np.int64))
    layout = Layout(x.layout.mesh, [x.layout.dims[0], None])
    positions = join_rows("nonzero", (x,), layout, pieces, (x.ndim,))
    return tuple(_column_op(positions, column=d) for d in range(x.ndim))


_column_op = Op(
    "column",
    Rule.parse("m n -> m", whole="n"),
    lambda x, column: np.ascontiguousarray(x[:, column]),
    moves=True,
)


_isin_op = Op(
    "isin",
    lambda x, values: Rule.parse(
        f"..., {' '.join(f'v{d}' for d in range(len(values)))} -> ...", reduce="any"
    ),
    lambda x, values: np.asarray(np.isin(x, values.reshape(-1))),
    dtype=bool_type,
)


@operator(_isin_op)
def isin(x: Operand, values: Operand, invert: bool = False) -> Tensor:
    """Return True for each entry that equals one of some values.

    If the values are split, each rank compares with its own values, and the result is partial.

    Args:
        x: the tensor.
        values: a tensor or array of any shape.
        invert: return True for entries that equal none of the values instead.

    Returns:
        A bool tensor in the shape of ``x``; with split values and without ``invert`` it is partial: the pending
        reduction is a logical or.

    Raises:
        UsageTypeError: If neither is a tensor.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.isin(x, [1, 6]).full().tolist()
    [[False, True, False], [True, False, False]]
    """
    like: Any = x if isinstance(x, Tensor) else values
    entries, others = convert_to_one_type("isin", as_operand(x, like), as_operand(values, like))
    is_in = _isin_op(entries, others)
    return logical_not(is_in) if invert else is_in


class UniqueCounts(NamedTuple):
    """The result of :func:`unique_counts`: unique values and their counts."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The result of :func:`unique_inverse`: unique values, and for each entry the number of its value."""

    values: Tensor
    inverse_indices: Tensor


class UniqueAll(NamedTuple):
    """The result of :func:`unique_all`: values, first indices, inverse indices and counts."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


def _neighbour_steps(bound: BoundRule, strategy: Strategy, inputs: Sequence[Any], **params: Any) -> Any:
    """Return the all-gather of one entry per rank, as (step, element type); () if the dim is not split.

    It is the only step of `_find_neighbour_entry`.
    """
    axes = find_split_axes(strategy)
    if not axes:
        return ()
    mesh = strategy.mesh
    step = Step("all_gather", axes, mesh(axes), mesh(None), (mesh.axis_size(*axes),))
    return ((step, inputs[0].dtype),)


def _find_neighbour_entry(
    context: Context, x: Array, ahead: bool
) -> Generator[Array, Array, tuple[Array, bool]]:
    """Return the nearest entry after or before this rank's block, and True if it exists.

    With the blocks [1, 2], [] and [5] of three ranks, rank 0 gets ([5], True) with ``ahead``; empty blocks are
    skipped. If there is no such entry, or the dim is not split, the result is ([0], False).

    If the dim is split, the generator yields the entry at the border of this rank's block (0 if the block is empty);
    the caller sends back the entries of all ranks.

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        x: this rank's block of the only dim.
        ahead: True for the first entry after this block, False for the last one before it.
    """
    axes, mesh, size = find_split_axes(context.strategy), context.strategy.mesh, context.size(ALONG)
    if not axes:
        return np.zeros(1, x.dtype), False
    entry = (x[:1] if ahead else x[-1:]) if len(x) else np.zeros(1, x.dtype)
    entries = yield entry
    members = mesh.group(context.rank, *axes)
    line, me = Layout(mesh, [axes]), members.index(context.rank)
    others = range(me + 1, len(members)) if ahead else range(me - 1, -1, -1)
    for k in others:
        if line.local_shape((size,), members[k])[0]:
            return entries[k : k + 1], True
    return np.zeros(1, x.dtype), False


def _find_run_starts(context: Context, x: Array) -> Generator[Array, Array, Array]:
    """Return a mask of the entries of this rank's block that start a run of equal entries.

    An entry starts a run if it is the first one of the whole dim, or differs from the entry before it, which may be on
    another rank. For example, the blocks [1, 1, 2] and [2, 3] give [True, False, True] and [False, True]. Every nan
    starts a run. The generator yields what :func:`_find_neighbour_entry` yields.
    """
    before, has_entry = yield from _find_neighbour_entry(context, x, False)
    earlier = np.concatenate([before, x])[: len(x)]
    differs = np.asarray(x != earlier)
    if not has_entry:
        differs[:1] = True
    return differs


def _find_next_entries(context: Context, x: Array, last: int) -> Generator[Array, Array, Array]:
    """Return the entry after each entry of this rank's block; ``last`` after the very last."""
    after, has_entry = yield from _find_neighbour_entry(context, x, True)
    return np.concatenate([x[1:], after if has_entry else np.full(1, last, x.dtype)])[: len(x)]


_runs_rule = Rule.parse(f"{ALONG} -> {ALONG}")
_starts_op = SteppedOp(
    "starts",
    _runs_rule,
    _find_run_starts,
    dtype=bool_type,
    steps=_neighbour_steps,
    contextual=True,
    moves=True,
)
_following_op = SteppedOp(
    "following", _runs_rule, _find_next_entries, steps=_neighbour_steps, contextual=True, moves=True
)


def _flatten_detached(name: str, x: Tensor) -> Tensor:
    """Return all entries of a tensor in one dim, detached; raise WorldError in a world without values."""
    require_values(x.world, f"{name}(x)")
    return flatten_in_blocks(x.detach())


def _count_run_lengths(ordered: Tensor, starts: Tensor) -> Tensor:
    """Return the lengths of the runs of equal values, in ascending order of the values."""
    (positions,) = nonzero(starts)
    return subtract(_following_op(positions, last=ordered.shape[0]), positions)


def _compute_inverse_indices(x: Tensor, starts: Tensor, order: Tensor) -> Tensor:
    """Return for each entry of ``x`` the number of its value."""
    numbers = subtract(cumulative_sum(cast(starts, np.int64)), 1)
    return reshape(put_along(numbers, order, 0), x.shape, x.layout.reduced)


@operator()
def unique_values(x: Tensor) -> Tensor:
    """Return the unique values in ascending order; every nan counts as a value of its own.

    Args:
        x: the tensor.

    Returns:
        The values ``[count]``, in balanced blocks over the axes that split ``x``.

    Raises:
        WorldError: If the world has no data.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.unique_values(v).full().tolist()
    [1, 2, 3]
    """
    ordered = sort(_flatten_detached("unique_values", x))
    return select(ordered, _starts_op(ordered))


@operator()
def unique_counts(x: Tensor) -> UniqueCounts:
    """Return the values of :func:`unique_values` and the number of their occurrences.

    Args:
        x: the tensor.

    Returns:
        The named tuple ``(values, counts)``; counts are int64.

    Raises:
        WorldError: If the world has no data.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> values, counts = ops.unique_counts(v)
    >>> values.full().tolist(), counts.full().tolist()
    ([1, 2, 3], [1, 1, 2])
    """
    ordered = sort(_flatten_detached("unique_counts", x))
    starts = _starts_op(ordered)
    return UniqueCounts(select(ordered, starts), _count_run_lengths(ordered, starts))


@operator()
def unique_inverse(x: Tensor) -> UniqueInverse:
    """Return the values of :func:`unique_values` and the number of each entry's value.

    The second result has the shape of ``x``.

    Args:
        x: the tensor.

    Returns:
        The named tuple ``(values, inverse_indices)``; the indices are int64 in the shape of ``x``.

    Raises:
        WorldError: If the world has no data.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.unique_inverse(v).inverse_indices.full().tolist()
    [2, 0, 2, 1]
    """
    ordered, order = sort_with_indices(_flatten_detached("unique_inverse", x))
    starts = _starts_op(ordered)
    return UniqueInverse(select(ordered, starts), _compute_inverse_indices(x, starts, order))


@operator()
def unique_all(x: Tensor) -> UniqueAll:
    """Return unique values, first indices, inverse indices and counts.

    The values are those of :func:`unique_values`. The first index is the row-major position of a value's first
    occurrence. The inverse indices contain for each entry of ``x`` the number of its value.

    Args:
        x: the tensor.

    Returns:
        The named tuple ``(values, indices, inverse_indices, counts)``.

    Raises:
        WorldError: If the world has no data.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.unique_all(v).indices.full().tolist()
    [1, 3, 0]
    """
    ordered, order = sort_with_indices(_flatten_detached("unique_all", x))
    starts = _starts_op(ordered)
    counts, inverse = _count_run_lengths(ordered, starts), _compute_inverse_indices(x, starts, order)
    return UniqueAll(select(ordered, starts), select(order, starts), inverse, counts)
