"""The largest entries of a dim, and places in a sorted one, where the dims may be split."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from spmdsim.core import BoundRule, Rule, Strategy
from spmdsim.core.step import Step
from spmdsim.errors import RuleError
from spmdsim.ops.along import take_along_axis
from spmdsim.ops.operators import operator
from spmdsim.ops.scans import ALONG, along_dim
from spmdsim.ops.selection import comparable
from spmdsim.ops.sorting import rows_back, rows_last, split_axes
from spmdsim.tensor import Context, Op, Tensor
from spmdsim.tensor.operands import Operand, as_operand
from spmdsim.tensor.stepped import SteppedOp

# -- topk ----------------------------------------------------------------------------------------------------


def _kept_rule(shape: tuple[int, ...], dim: int, k: int, results: int) -> tuple[Rule, dict[str, int]]:
    names = [ALONG if d == dim else f"d{d}" for d in range(len(shape))]
    kept = " ".join("k" if name == ALONG else name for name in names)
    return Rule.parse(f"{' '.join(names)} -> {', '.join([kept] * results)}", whole="k"), {"k": k}


def _steps(
    bound: BoundRule, strategy: Strategy, inputs: Sequence[Any], dim: int, k: int, largest: bool
) -> Any:
    axes = split_axes(strategy)
    if not axes:
        return ()
    (meta,), ranks = inputs, strategy.mesh.axis_size(*axes)
    others = [d for d in range(len(meta.shape)) if d != dim]
    rest, entries = [meta.shape[d] for d in others], [meta.layout.dims[d] for d in others]
    src, dst = (strategy.mesh(first, None, *entries) for first in (axes, None))
    step = Step("all_gather", axes, src, dst, (ranks, k, *rest))
    return (step, meta.dtype), (step, np.dtype(np.int64))


def _forward(
    context: Context, x: np.ndarray, dim: int, k: int, largest: bool
) -> Generator[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
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
    shape = list(x.shape)
    shape[dim] = k
    return rows_back(values.reshape(len(rows), k), shape, dim), rows_back(
        places.reshape(len(rows), k), shape, dim
    )


def _first(rows: np.ndarray, k: int, largest: bool) -> np.ndarray:
    """The places of the first entries in order, the first of equal ones first."""
    keys = comparable(rows)
    if not largest:
        return np.argsort(keys, axis=-1, kind="stable")[:, :k]
    turned = np.argsort(keys[:, ::-1], axis=-1, kind="stable")[:, ::-1]
    order: np.ndarray = rows.shape[1] - 1 - turned[:, :k]
    return order


def _place_forward(context: Context, x: np.ndarray, ids: np.ndarray, dim: int, size: int) -> np.ndarray:
    start, stop = context.bounds(ALONG)
    shape = list(x.shape)
    shape[dim] = stop - start
    whole = np.zeros(shape, x.dtype)
    mine = (ids >= start) & (ids < stop)
    where = list(np.nonzero(mine))
    where[dim] = ids[mine] - start
    whole[tuple(where)] = x[mine]
    return whole


def _place_rule(x: tuple[int, ...], ids: tuple[int, ...], dim: int, size: int) -> tuple[Rule, dict[str, int]]:
    names = ["k" if d == dim else f"d{d}" for d in range(len(x))]
    whole = " ".join(ALONG if name == "k" else name for name in names)
    return Rule.parse(f"{' '.join(names)}, {' '.join(names)} -> {whole}", whole="k"), {ALONG: size}


#: Entries at their places in a dim of zeros, of which each rank makes its piece.
_place_op = Op(
    "place", _place_rule, _place_forward, dtype=lambda x, _ids, dim, size: x, contextual=True, moves=True
)


def _adjoint(
    dys: Sequence[Tensor | None],
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
    dim: int,
    k: int,
    largest: bool,
) -> tuple[Tensor | None]:
    (dy, _), (x,) = dys, operands
    if dy is None:
        return (None,)
    axes = {ALONG if d == dim else f"d{d}": entry for d, entry in enumerate(x.layout.dims) if entry}
    return (_place_op.shard(axes)(dy, results[1], dim=dim, size=x.shape[dim]),)


_topk_op = SteppedOp(
    "topk",
    lambda shape, dim, k, largest: _kept_rule(shape, dim, k, 2),
    _forward,
    dtype=lambda x, **_: (x, np.dtype(np.int64)),
    steps=_steps,
    adjoint=_adjoint,
    contextual=True,
    saves_result=True,
    moves=True,
)


@operator(_topk_op)
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, *, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The ``k`` largest entries along a dim, in order, and where they are.

    Where the dim is split each rank finds its own ``k`` and all are gathered in one call per result: the dim of the
    results is whole. Of equal entries the first come first; nan count as larger than all other values.

    Args:
        x: the tensor.
        k: how many.
        dim: along which dim.
        largest: False for the smallest ones.
        axis: the same as ``dim``.

    Raises:
        RuleError: a dim out of range, or fewer entries than ``k``.

    >>> import numpy as np
    >>> from spmdsim import LockStep, Mesh, Tensor
    >>> x = Tensor.from_global(np.array([3, 1, 4, 1, 5]), Mesh((2,), ("x",))("x"), LockStep(2))
    >>> [part.full() for part in topk(x, 2)]
    [array([5, 4]), array([4, 2])]
    """
    at = along_dim("topk", x, dim)
    if not 0 <= k <= x.shape[at]:
        raise RuleError(f"topk: {k} entries of dim {at}, which has {x.shape[at]}")
    values, places = _topk_op.results(x.to(x.layout.reduced), dim=at, k=int(k), largest=bool(largest))
    return values, places


# -- searchsorted --------------------------------------------------------------------------------------------


def _search(x: np.ndarray, values: np.ndarray, side: Any) -> np.ndarray:
    """How many entries of a rank's piece lie before each value: what all pieces say together is the place."""
    return np.asarray(np.searchsorted(comparable(x), comparable(values), side=side), np.int64)


_search_op = Op(
    "searchsorted",
    Rule.parse("v, ... -> ..."),
    _search,
    dtype=lambda _x, _values, side: np.dtype(np.int64),
    moves=True,
)


@operator(_search_op)
def searchsorted(x: Tensor, values: Operand, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """Where values are to be put into a sorted tensor so that it stays sorted.

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
    >>> x = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.searchsorted(ops.sort(x), [2, 4]).full().tolist()
    [1, 4]
    """
    from spmdsim.ops.declare import alike

    if x.ndim != 1:
        raise RuleError(f"searchsorted looks in a tensor of one dim, but got {x.ndim}")
    if side not in ("left", "right"):
        raise RuleError(f"the side of searchsorted is 'left' or 'right', but got {side!r}")
    if sorter is not None:
        x = take_along_axis(x, sorter, 0)
    sorted_values, wanted = alike("searchsorted", x, as_operand(values, x))
    return _search_op(sorted_values, wanted, side=side)
