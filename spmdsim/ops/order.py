"""Where the largest and smallest entries are, along a dim that must be whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spmdsim.core import Rule
from spmdsim.errors import RuleError
from spmdsim.ops.operators import operator
from spmdsim.ops.shape import reshape
from spmdsim.tensor import Op, Tensor


def _rule(shape: tuple[int, ...], dim: int) -> Rule:
    if not 0 <= dim < len(shape):
        raise RuleError(f"dim {dim} is out of range for a tensor of {len(shape)} dims")
    names = ["w" if d == dim else f"d{d}" for d in range(len(shape))]
    return Rule.parse(f"{' '.join(names)} -> {' '.join(n for n in names if n != 'w')}", whole="w")


def _extreme(name: str, function: Callable[..., np.ndarray]) -> Op:
    return Op(
        name,
        _rule,
        lambda x, dim: np.asarray(function(x, axis=dim), np.int64),
        dtype=lambda _x, dim: np.dtype(np.int64),
    )


_argmax_op, _argmin_op = _extreme("argmax", np.argmax), _extreme("argmin", np.argmin)


def _place(op: Op, x: Tensor, dim: int | None, keepdims: bool) -> Tensor:
    x = x.detach()
    kept = tuple(1 if dim is None or d == dim % x.ndim else n for d, n in enumerate(x.shape))
    if dim is None:
        x, dim = reshape(x, -1), 0
    if not -x.ndim <= dim < x.ndim:
        raise RuleError(f"dim {dim} is out of range for a tensor of {x.ndim} dims")
    if not x.shape[dim]:
        raise RuleError(f"{op.name} of no elements is undefined: shape {x.shape}, dim {dim}")
    found = op(x, dim=dim % x.ndim)
    return reshape(found, kept) if keepdims else found


@operator(_argmax_op)
def argmax(x: Tensor, dim: int | None = None, keepdims: bool = False, *, axis: int | None = None) -> Tensor:
    """Where the largest element is along a dim (None: its place among all elements), the first one of equals."""
    return _place(_argmax_op, x, dim, keepdims)


@operator(_argmin_op)
def argmin(x: Tensor, dim: int | None = None, keepdims: bool = False, *, axis: int | None = None) -> Tensor:
    """Where the smallest element is along a dim (None: its place among all elements), the first one of equals."""
    return _place(_argmin_op, x, dim, keepdims)
