"""Entries chosen by truth values: as many as there are, agreed by one small gathering, in balanced blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.core import Layout, Rule
from spmdsim.errors import OutOfRange, RuleError
from spmdsim.ops.declare import alike, boolean
from spmdsim.ops.functions import logical_not
from spmdsim.ops.operators import operator
from spmdsim.ops.shape import merged, reshape
from spmdsim.tensor import Op, Tensor
from spmdsim.tensor.joined import joined, needs_values
from spmdsim.tensor.operands import Operand, as_operand


def by_first_dim(x: Tensor, dims: int) -> Tensor:
    """The tensor with the first of so many dims split by the axes that split any of them, and nothing pending.

    So the entries of these dims, in row-major order, lie rank after rank.
    """
    layout = x.layout.reduced.canonical
    axes = [axis for entry in layout.dims[:dims] for axis in entry]
    wanted = Layout(layout.mesh, [axes, *[None] * (dims - 1), *layout.dims[dims:]])
    return x.to(wanted)


def select(x: Tensor, mask: Tensor) -> Tensor:
    """``x[mask]``: the entries, or rows, where the mask is true, in row-major order.

    Each rank chooses among its own; how many there are in all is agreed by one small gathering, and one exchange cuts
    them in balanced blocks. Gradients go back to where the entries were.

    Args:
        x: ``[a..., b...]``.
        mask: truth values ``[a...]``.

    Raises:
        RuleError: shapes that do not fit.
        WorldError: a world without values.
    """
    if mask.shape != x.shape[: mask.ndim]:
        raise OutOfRange(f"a mask of shape {mask.shape} does not fit a tensor of shape {x.shape}")
    needs_values(x.world, "x[mask]")
    if not mask.ndim:
        return select(reshape(x, (1, *x.shape)), reshape(mask, (1,)))
    x = by_first_dim(x, mask.ndim)
    there = mask.detach().to(Layout(x.layout.mesh, x.layout.dims[: mask.ndim]))
    masks = there.shards
    pieces = [held[one] for held, one in zip(x.held, masks)]
    shapes, dims = [held.shape for held in x.held], x.layout.dims[mask.ndim :]

    def put(k: int, piece: np.ndarray) -> np.ndarray:
        whole = np.zeros(shapes[k], piece.dtype)
        whole[masks[k]] = piece
        return whole

    pieces = [p if p.ndim == 1 + len(dims) else p.reshape(0, *[0] * len(dims)) for p in pieces]
    layout = Layout(x.layout.mesh, [x.layout.dims[0], *dims])
    return joined(x, layout, pieces, x.shape[mask.ndim :], put)


def flattened(x: Tensor) -> Tensor:
    """All entries in one dim, split by the axes that split any dim."""
    x = x.to(x.layout.reduced.canonical)
    return x if x.ndim == 1 else merged(x, 0, x.ndim)


@operator()
def nonzero(x: Tensor) -> tuple[Tensor, ...]:
    """The places of the entries that are not 0: one tensor of integers per dim, in row-major order.

    Raises:
        RuleError: a tensor without dims.
        WorldError: a world without values.

    >>> import numpy as np
    >>> from spmdsim import LockStep, Mesh, Tensor
    >>> x = Tensor.from_global(np.array([0, 3, 0, 4, 5]), Mesh((2,), ("x",))("x"), LockStep(2))
    >>> nonzero(x)[0].full()
    array([1, 3, 4])
    """
    if not x.ndim:
        raise RuleError("nonzero takes a tensor with dims")
    needs_values(x.world, "nonzero(x)")
    x = by_first_dim(x.detach(), x.ndim)
    pieces = []
    for rank, shard in zip(x.world.ranks, x.shards):
        local_places = np.stack(np.nonzero(shard), -1)
        local_places[:, 0] += x.layout.bounds(x.shape, rank)[0][0]
        pieces.append(local_places.astype(np.int64))
    places = joined(x, Layout(x.layout.mesh, [x.layout.dims[0], None]), pieces, (x.ndim,))
    return tuple(_column_op(places, column=d) for d in range(x.ndim))


_column_op = Op(
    "column",
    Rule.parse("m n -> m", whole="n"),
    lambda x, column: np.ascontiguousarray(x[:, column]),
    moves=True,
)


def _isin(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.asarray(np.isin(x, values.reshape(-1)))


def _isin_rule(x: tuple[int, ...], values: tuple[int, ...]) -> Rule:
    names = " ".join(f"v{d}" for d in range(len(values)))
    return Rule.parse(f"..., {names} -> ...", reduce="any")


_isin_op = Op("isin", _isin_rule, _isin, dtype=boolean)


@operator(_isin_op)
def isin(x: Operand, values: Operand, invert: bool = False) -> Tensor:
    """Whether each entry is one of some values; where those are split, each rank asks about its own.

    Args:
        x: the entries, of any shape.
        values: the values, of any shape.
        invert: whether it is none of them.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.isin(x, [1, 6]).full().tolist()
    [[False, True, False], [True, False, False]]
    """
    like: Any = x if isinstance(x, Tensor) else values
    entries, others = alike("isin", as_operand(x, like), as_operand(values, like))
    among = _isin_op(entries, others)
    return logical_not(among) if invert else among
