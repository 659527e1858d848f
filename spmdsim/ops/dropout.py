"""Dropout whose mask does not depend on the layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.core import Rule
from spmdsim.errors import InputError
from spmdsim.ops.declare import cast
from spmdsim.ops.operators import operator
from spmdsim.tensor import Context, Op, Tensor
from spmdsim.tensor.element_types import fractional
from spmdsim.tensor.random import uniform_block


def _mask(context: Context, x: np.ndarray, rate: float, seed: int) -> np.ndarray:
    """Which elements stay, by their global index, scaled so that the mean stays the same."""
    keep = uniform_block(context.index(0), context.bound.shapes[0], np.float32, seed) >= rate
    array: np.ndarray = keep * x.dtype.type(1 / (1 - rate))
    return array


def _dropout(context: Context, x: np.ndarray, rate: float, seed: int) -> np.ndarray:
    return np.asarray(x * _mask(context, x, rate, seed), x.dtype)


def _dropout_vjp(
    context: Context, dy: np.ndarray, operands: Sequence[np.ndarray], _result: Any, rate: float, seed: int
) -> tuple[np.ndarray]:
    return (dy * _mask(context, operands[0], rate, seed),)


_dropout_op = Op(
    "dropout",
    Rule.parse("... -> ...", linear="each"),
    _dropout,
    _dropout_vjp,
    contextual=True,
    varying=("seed",),
)


@operator(_dropout_op)
def dropout(x: Tensor, rate: float, seed: int) -> Tensor:
    """Set a share of the elements to zero and scale the others up.

    Which ones follows from the seed and the global index: every layout and rank count drops the same.

    Args:
        x: the tensor; whole numbers become fractions.
        rate: share of elements to drop, ``0 <= rate < 1``.
        seed: another one for every call.

    Raises:
        InputError: a rate outside [0, 1).

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> bool((ops.dropout(x, 0.5, seed=1).full() == ops.dropout(x, 0.5, seed=1).full()).all())
    True
    """
    if not 0 <= rate < 1:
        raise InputError(f"dropout drops a share of at least 0 and less than 1, not {rate}")
    x = x if x.dtype.kind in "fcV" else cast(x, fractional(x.dtype))
    return x if rate == 0 else _dropout_op(x, rate=float(rate), seed=int(seed))
