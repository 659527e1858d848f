"""The different values of a tensor, by sorting: equal ones lie side by side then."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from spmdsim.core import BoundRule, Layout, Rule, Strategy
from spmdsim.core.step import Step
from spmdsim.ops.along import put_along
from spmdsim.ops.declare import boolean, cast
from spmdsim.ops.elementwise import subtract
from spmdsim.ops.operators import operator
from spmdsim.ops.scans import ALONG, cumulative_sum
from spmdsim.ops.selecting import flattened, nonzero, select
from spmdsim.ops.shape import reshape
from spmdsim.ops.sorting import sort, sort_with_indices, split_axes
from spmdsim.tensor import Context, Tensor
from spmdsim.tensor.joined import needs_values
from spmdsim.tensor.stepped import SteppedOp


class UniqueAll(NamedTuple):
    """What :func:`unique_all` gives."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """What :func:`unique_counts` gives."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What :func:`unique_inverse` gives."""

    values: Tensor
    inverse_indices: Tensor


def _steps(bound: BoundRule, strategy: Strategy, inputs: Sequence[Any], **params: Any) -> Any:
    axes = split_axes(strategy)
    if not axes:
        return ()
    mesh = strategy.mesh
    step = Step("all_gather", axes, mesh(axes), mesh(None), (mesh.axis_size(*axes),))
    return ((step, inputs[0].dtype),)


def _ends(
    context: Context, x: np.ndarray, ahead: bool
) -> Generator[np.ndarray, np.ndarray, tuple[np.ndarray, bool]]:
    """The entry beside this rank's piece, behind it or ahead, and whether there is one."""
    axes, mesh, size = split_axes(context.strategy), context.strategy.mesh, context.size(ALONG)
    if not axes:
        return np.zeros(1, x.dtype), False
    mine = (x[:1] if ahead else x[-1:]) if len(x) else np.zeros(1, x.dtype)
    all_of = yield mine
    members = mesh.group(context.rank, *axes)
    line, me = Layout(mesh, [axes]), members.index(context.rank)
    others = range(me + 1, len(members)) if ahead else range(me - 1, -1, -1)
    for k in others:
        if line.local_shape((size,), members[k])[0]:
            return all_of[k : k + 1], True
    return np.zeros(1, x.dtype), False


def _starts(context: Context, x: np.ndarray) -> Generator[np.ndarray, np.ndarray, np.ndarray]:
    """Where entries differ from the one before."""
    before, there = yield from _ends(context, x, False)
    earlier = np.concatenate([before, x])[: len(x)]
    differs = np.asarray(x != earlier)
    if not there:
        differs[:1] = True
    return differs


def _following(context: Context, x: np.ndarray, last: int) -> Generator[np.ndarray, np.ndarray, np.ndarray]:
    """The entry after each, and what stands behind the last one."""
    after, there = yield from _ends(context, x, True)
    return np.concatenate([x[1:], after if there else np.full(1, last, x.dtype)])[: len(x)]


_rule = Rule.parse(f"{ALONG} -> {ALONG}")
_starts_op = SteppedOp("starts", _rule, _starts, dtype=boolean, steps=_steps, contextual=True, moves=True)
_following_op = SteppedOp("following", _rule, _following, steps=_steps, contextual=True, moves=True)


def _flat(name: str, x: Tensor) -> Tensor:
    needs_values(x.world, f"{name}(x)")
    return flattened(x.detach())


@operator()
def unique_values(x: Tensor) -> Tensor:
    """The different values, ascending; every nan is one of its own.

    Raises:
        WorldError: a world without values.

    >>> import numpy as np
    >>> from spmdsim import LockStep, Mesh, Tensor
    >>> x = Tensor.from_global(np.array([3, 1, 3, 1, 5]), Mesh((2,), ("x",))("x"), LockStep(2))
    >>> unique_values(x).full()
    array([1, 3, 5])
    """
    ordered = sort(_flat("unique_values", x))
    return select(ordered, _starts_op(ordered))


def _counts(ordered: Tensor, starts: Tensor) -> Tensor:
    """How long the runs of equal values are."""
    (places,) = nonzero(starts)
    return subtract(_following_op(places, last=ordered.shape[0]), places)


def _inverse(x: Tensor, starts: Tensor, order: Tensor) -> Tensor:
    """For each entry of ``x``, the number of its value."""
    numbers = subtract(cumulative_sum(cast(starts, np.int64)), 1)
    return reshape(put_along(numbers, order, 0), x.shape, x.layout.reduced)


@operator()
def unique_counts(x: Tensor) -> UniqueCounts:
    """The different values, ascending, and how often each occurs.

    Raises:
        WorldError: a world without values.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> values, counts = ops.unique_counts(x)
    >>> values.full().tolist(), counts.full().tolist()
    ([1, 2, 3], [1, 1, 2])
    """
    ordered = sort(_flat("unique_counts", x))
    starts = _starts_op(ordered)
    return UniqueCounts(select(ordered, starts), _counts(ordered, starts))


@operator()
def unique_inverse(x: Tensor) -> UniqueInverse:
    """The different values, ascending, and for each entry the number of its value, in the shape of ``x``.

    Raises:
        WorldError: a world without values.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.unique_inverse(x).inverse_indices.full().tolist()
    [2, 0, 2, 1]
    """
    ordered, order = sort_with_indices(_flat("unique_inverse", x))
    starts = _starts_op(ordered)
    return UniqueInverse(select(ordered, starts), _inverse(x, starts, order))


@operator()
def unique_all(x: Tensor) -> UniqueAll:
    """The different values, ascending, where each occurs first among all entries, for each entry the number of its value,
    and how often each value occurs.

    Raises:
        WorldError: a world without values.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.unique_all(x).indices.full().tolist()
    [1, 3, 0]
    """
    ordered, order = sort_with_indices(_flat("unique_all", x))
    starts = _starts_op(ordered)
    counts, inverse = _counts(ordered, starts), _inverse(x, starts, order)
    return UniqueAll(select(ordered, starts), select(order, starts), inverse, counts)
