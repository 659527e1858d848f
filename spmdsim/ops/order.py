"""Where the largest and smallest entries are, along a dim that must be whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spmdsim.core import Rule
from spmdsim.errors import RuleError
from spmdsim.ops.shape import reshape
from spmdsim.tensor import Op, Tensor


def _rule(shape: tuple[int, ...], dim: int) -> Rule:
    if not 0 <= dim < len(shape):
        raise RuleError(f"dim {dim} is out of range for a tensor of {len(shape)} dims")
    names = ["w" if d == dim else f"d{d}" for d in range(len(shape))]
    return Rule.parse(f"{' '.join(names)} -> {' '.join(n for n in names if n != 'w')}", whole="w")


def _extreme(name: str, function: Callable[..., Any]) -> Callable[..., Tensor]:
    op = Op(
        name,
        _rule,
        lambda x, dim: np.asarray(function(x, axis=dim), np.int64),
        dtype=lambda _x, dim: np.dtype(np.int64),
    )

    def call(x: Tensor, dim: int | None = None) -> Tensor:
        if dim is None:
            x, dim = reshape(x.detach(), -1), 0
        if not -x.ndim <= dim < x.ndim:
            raise RuleError(f"dim {dim} is out of range for a tensor of {x.ndim} dims")
        return op(x.detach(), dim=dim % x.ndim)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"``{name}`` along a dim (None: its place among all elements), the first one of equals."
    call.op = op  # type: ignore[attr-defined]
    return call


argmax = _extreme("argmax", np.argmax)
argmin = _extreme("argmin", np.argmin)
