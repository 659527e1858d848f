"""``x[index] = value`` as a function: the tensor with other values at an index; nothing is gathered."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spmdsim.core import Layout
from spmdsim.errors import OutOfRange, RuleError
from spmdsim.ops.elementwise import where
from spmdsim.ops.indexing import per_dim, place_of, span
from spmdsim.ops.operators import operator
from spmdsim.ops.reduce import as_type
from spmdsim.ops.shape import broadcast_to, flip, reshape
from spmdsim.ops.windows import slice_update
from spmdsim.tensor import Tensor
from spmdsim.tensor.operands import Operand, as_operand
from spmdsim.tensor.tensor import Index


@operator()
def setitem(x: Tensor, index: Index, value: Operand) -> Tensor:
    """The tensor with ``value`` at an index: integers, slices, ``...`` and None, or one mask of truth values.

    Args:
        x: the tensor; dims that are cut may be split.
        index: as in numpy.
        value: broadcasts to what is at the index, and takes the tensor's element type; with a mask one number.

    Returns:
        Of ``x``'s shape and type.

    Raises:
        RuleError: arrays of integers as indices, a value that does not fit, an index out of range.
    """
    new = as_operand(value, x)
    if new.dtype != x.dtype:
        if not np.can_cast(new.dtype, x.dtype, "same_kind"):
            raise RuleError(f"elements of {new.dtype} are not assigned to {x.dtype}; convert them first")
        new = as_type(new, x.dtype)
    mask = _mask(index, x)
    if mask is not None:
        if new.size != 1:
            raise RuleError(
                f"one number is assigned to x[mask], but got shape {new.shape}; use where(mask, value, x)"
            )
        return where(_beside(mask, x), reshape(new, ()), x)
    parts = per_dim([place_of(p) for p in (index if isinstance(index, tuple) else (index,))], x.ndim)
    if any(isinstance(p, (np.ndarray, Tensor)) for p in parts):
        raise RuleError(
            "values are assigned to integers, slices and masks, not to arrays of integers; use where()"
        )
    return _assigned(x, parts, new)


def _mask(index: Any, x: Tensor) -> Tensor | None:
    """The only entry of an index, if it is truth values of the first dims, as one that broadcasts with the tensor."""
    one = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if not (isinstance(one, (list, bool, np.bool_, np.ndarray, Tensor))):
        return None
    mask = one if isinstance(one, Tensor) else np.asarray(one)
    if mask.dtype.kind != "b":
        return None
    if tuple(mask.shape) != x.shape[: mask.ndim]:
        raise OutOfRange(f"a mask of shape {tuple(mask.shape)} does not fit a tensor of shape {x.shape}")
    return reshape(as_operand(mask, x), (*mask.shape, *[1] * (x.ndim - mask.ndim)))


def _assigned(x: Tensor, parts: list[Any], value: Tensor) -> Tensor:
    spans: list[tuple[int, int, int]] = []
    seen: list[int] = []
    turned: list[int] = []
    for part in parts:
        if part is None:
            seen.append(1)
            continue
        d = len(spans)
        a, b, s = span(part, x.shape[d], d)
        if s < 0:
            turned.append(d)
        spans.append((a, b, abs(s)))
        if not isinstance(part, int):
            seen.append(len(range(*spans[-1])))
    window = [len(range(*one)) for one in spans]
    extra = value.ndim - len(seen)
    if extra > 0 and math.prod(value.shape[:extra]) == 1:  # numpy drops leading dims of size one
        value = reshape(value, value.shape[extra:])
    whole = value if value.shape == tuple(seen) else broadcast_to(value, seen)
    shaped = whole if whole.shape == tuple(window) else reshape(whole, window)
    start, stop, step = ([one[k] for one in spans] for k in range(3))
    return slice_update(x, _beside(flip(shaped, turned) if turned else shaped, x), start, stop, step)


def _beside(value: Tensor, x: Tensor) -> Tensor:
    """What has as many dims as the tensor, split where its whole dims are: the tensor itself then stays as it is."""
    if x.layout.partial_axes:
        return value
    kept = [axes if n == m else () for axes, n, m in zip(x.layout.dims, value.shape, x.shape)]
    return value.to(Layout(x.layout.mesh, kept))
