"""Gather along any dim: the result has the dims of the indices in place of the one looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.core import Rule
from spmdsim.errors import OutOfRange
from spmdsim.ops.operators import operator
from spmdsim.redistribution.sparse_lookup import checked_ids
from spmdsim.tensor import Context, Op, Tensor
from spmdsim.worlds.local_lookup import add_rows

#: The factor that is looked up.
LOOKED_UP = "v"


def _rule(x: tuple[int, ...], ids: tuple[int, ...], dim: int) -> Rule:
    if not 0 <= dim < len(x):
        raise OutOfRange(f"dim {dim} is out of range for a tensor of {len(x)} dims")
    kept = [f"d{k}" for k in range(len(x))]
    new = [f"i{k}" for k in range(len(ids))]
    table = " ".join(LOOKED_UP if k == dim else name for k, name in enumerate(kept))
    result = " ".join([*kept[:dim], *new, *kept[dim + 1 :]])
    order = " ".join([*new, *table.split()])
    text = f"{table}, {' '.join(new)} -> {result}"
    return Rule.parse(text, indexed=LOOKED_UP, linear=((0,),), order=order)


def _forward(context: Context, x: np.ndarray, ids: np.ndarray, dim: int) -> np.ndarray:
    """The entries this rank holds, zeros where another rank holds them."""
    checked_ids(ids, context.size(LOOKED_UP), what=f"entries of dim {dim}")
    start, stop = context.bounds(LOOKED_UP)
    if stop - start == context.size(LOOKED_UP):
        return np.take(x, ids, axis=dim)
    mine = (ids >= start) & (ids < stop)
    moved = np.moveaxis(x, dim, 0)
    entries = np.zeros((*ids.shape, *moved.shape[1:]), x.dtype)
    entries[mine] = moved[ids[mine] - start]
    return np.asarray(np.moveaxis(entries, range(ids.ndim), range(dim, dim + ids.ndim)), order="C")


def _vjp(
    context: Context, dy: np.ndarray, operands: Sequence[np.ndarray], _result: Any, dim: int
) -> tuple[np.ndarray, None]:
    x, ids = operands
    start, stop = context.bounds(LOOKED_UP)
    gradient = np.zeros_like(np.moveaxis(x, dim, 0), order="C")
    mine = (ids >= start) & (ids < stop)
    rows = np.moveaxis(dy, range(dim, dim + ids.ndim), range(ids.ndim))
    add_rows(gradient, ids[mine] - start, rows[mine])
    return np.moveaxis(gradient, 0, dim), None


_op = Op("gather", _rule, _forward, _vjp, dtype=lambda x, _ids, dim: x, contextual=True, moves=True)


@operator(_op)
def gather(x: Tensor, ids: Tensor, dim: int = 0, *, axis: int = 0) -> Tensor:
    """``x`` looked up by ``ids`` along a dim, as ``numpy.take`` does.

    Where that dim is split every rank gives the entries it holds and zeros for the others, so the result is
    partial over its axes.

    Args:
        x: ``[a..., v, b...]``.
        ids: integers ``[i...]`` in ``0 .. v-1``.
        dim: which dim of ``x`` is ``v``.
        axis: the same.

    Returns:
        ``[a..., i..., b...]``.

    Raises:
        RuleError: a dim out of range.
        InputError: an id outside the dim.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ids = Tensor.from_global([[0], [2]], x.layout)
    >>> ops.gather(x, ids, dim=1).full().tolist()
    [[[3], [2]], [[6], [4]]]
    """
    if not -x.ndim <= dim < x.ndim:
        raise OutOfRange(f"dim {dim} is out of range for a tensor of {x.ndim} dims")
    return _op(x, ids, dim=dim % x.ndim)
