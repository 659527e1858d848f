"""The local functions of operators on 16-bit floats: they compute in float32, and each result is rounded once.

This is the one place where it is so: an operator's functions are written for the types that they are given. See
:mod:`spmdsim.layout.element_type` for why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.layout.element_type import is_half
from spmdsim.tensor.meta import Meta

if TYPE_CHECKING:
    from spmdsim.tensor.operator import Op

Function = Callable[..., Any]


def widened(value: Any) -> Any:
    """Arrays of 16-bit floats as float32, also inside of lists; everything else as it is."""
    if isinstance(value, (list, tuple)):
        return [widened(item) for item in value]
    if isinstance(value, np.ndarray) and is_half(value.dtype):
        return value.astype(np.float32)
    return value


def forward_of(op: Op, inputs: Sequence[Meta], outputs: Sequence[Meta]) -> Function:
    """An operator's local function for operands and results with these metas; see :meth:`Op.typed` for its results."""
    if op.moves or not any(is_half(meta.dtype) for meta in (*inputs, *outputs)):
        return op.forward
    forward = op.forward

    def compute(*operands: Any, **params: Any) -> Any:
        return forward(*widened(operands), **params)

    return compute


def gradient_of(op: Op, inputs: Sequence[Meta], outputs: Sequence[Meta]) -> Function | None:
    """An operator's local gradient function, likewise; who calls it brings the gradients into their types."""
    if op.vjp is None or not any(is_half(meta.dtype) for meta in (*inputs, *outputs)):
        return op.vjp
    vjp = op.vjp

    def compute(*given: Any, **params: Any) -> Any:
        return vjp(*widened(given), **params)

    return compute
