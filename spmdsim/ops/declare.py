"""How an operator on elements is declared in one row: its function, its slope, and what linearity lets through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.ops.broadcast import unbroadcast
from spmdsim.rules import Rule
from spmdsim.tensor import Op, Tensor
from spmdsim.tensor.apply import as_operand

Vjp = Callable[..., Sequence[Any]]


def binary(
    name: str,
    function: Callable[..., Any],
    vjp: Vjp | None,
    linear: Any = "none",
    dtype: Any = None,
    **rule: Any,
) -> Callable[[Any, Any], Tensor]:
    """A function of two elements; ``vjp(dy, operands, result)`` gives both gradients, not yet summed to their shapes."""
    declared = Rule.parse("..., ... -> ...", linear=linear, **rule)
    op = Op(name, declared, function, None if vjp is None else _summed(vjp), dtype=dtype)

    def call(a: Any, b: Any) -> Tensor:
        like = a if isinstance(a, Tensor) else b
        return op(as_operand(a, like), as_operand(b, like))

    return _named(call, op, name)


def _summed(vjp: Vjp) -> Vjp:
    """The gradients summed over what was broadcast."""

    def local(dy: np.ndarray, operands: Sequence[np.ndarray], result: Any, **params: Any) -> list[Any]:
        found = vjp(dy, operands, result, **params)
        return [None if g is None else unbroadcast(g, x.shape) for g, x in zip(found, operands)]

    return local


def unary(
    name: str,
    function: Callable[..., Any],
    derivative: Callable[[np.ndarray, np.ndarray], np.ndarray] | None,
    linear: Any = "none",
    dtype: Any = None,
    **rule: Any,
) -> Callable[..., Tensor]:
    """A function of one element; ``derivative(x, y)`` gives dy/dx from operand and result."""

    def vjp(dy: np.ndarray, operands: Sequence[np.ndarray], result: np.ndarray) -> tuple[np.ndarray]:
        return (dy * derivative(operands[0], result),)  # type: ignore[misc]

    declared = Rule.parse("... -> ...", linear=linear, **rule)
    op = Op(name, declared, function, vjp if derivative else None, dtype=dtype, saves_result=True)

    def call(x: Tensor) -> Tensor:
        return op(x)

    return _named(call, op, name)


def _named(call: Callable[..., Tensor], op: Op, name: str) -> Callable[..., Tensor]:
    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"``{name}``, element by element."
    call.op = op  # type: ignore[attr-defined]
    return call


def boolean(*_: Any, **__: Any) -> np.dtype:
    """The result type of comparisons."""
    return np.dtype(bool)


def divided(a: np.dtype, b: np.dtype) -> np.dtype:
    """The result type of a true division."""
    return np.result_type(np.true_divide(np.ones((), a), np.ones((), b)))


def floating(dtype: np.dtype) -> np.dtype:
    """The result type of functions that make fractions of whole numbers."""
    return dtype if dtype.kind in "fcV" else np.exp(np.ones((), dtype)).dtype
