"""Operators as methods and symbols of tensors: ``a @ b``, ``x + 1``, ``x.sum(0)``, ``x[1:3]``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from spmdsim.errors import UsageTypeError
from spmdsim.ops import contract, declare, elementwise, functions, indexing, order, reduce, shape, spread
from spmdsim.ops.keywords import with_other_names
from spmdsim.tensor import Tensor


def _compared(function: Any) -> Any:
    """``==`` and ``!=`` element by element, with what can be an operand; a tensor still hashes by identity."""

    def compare(a: Tensor, b: Any) -> Any:
        known = isinstance(b, (Tensor, np.ndarray, np.generic, bool, int, float, complex, list, tuple))
        return function(a, b) if known or hasattr(b, "as_operand") else NotImplemented

    return compare


def _rows(x: Tensor) -> Iterator[Tensor]:
    """``for row in x``, as in numpy."""
    return (indexing.getitem(x, k) for k in range(len(x)))


def _refuse_array(x: Tensor, *_: Any, **__: Any) -> Any:
    """``np.asarray(x)`` would gather behind the user's back, and only on the ranks that call it."""
    raise UsageTypeError(
        "a tensor is not turned into an array by itself; use .full() on all ranks, or .local()"
    )


def install() -> None:
    """Give :class:`Tensor` its operators. The tensor room does not know them."""
    symbols: dict[str, Any] = {
        "__matmul__": contract.matmul,
        "__add__": elementwise.add,
        "__radd__": lambda a, b: elementwise.add(b, a),
        "__sub__": elementwise.subtract,
        "__rsub__": lambda a, b: elementwise.subtract(b, a),
        "__mul__": elementwise.multiply,
        "__rmul__": lambda a, b: elementwise.multiply(b, a),
        "__truediv__": elementwise.divide,
        "__rtruediv__": lambda a, b: elementwise.divide(b, a),
        "__pow__": elementwise.power,
        "__rpow__": lambda a, b: elementwise.power(b, a),
        "__floordiv__": functions.floor_divide,
        "__rfloordiv__": lambda a, b: functions.floor_divide(b, a),
        "__mod__": functions.remainder,
        "__rmod__": lambda a, b: functions.remainder(b, a),
        "__rmatmul__": lambda a, b: contract.matmul(b, a),
        "__neg__": elementwise.negative,
        "__abs__": elementwise.absolute,
        "__iter__": _rows,
        "__array__": _refuse_array,
        "__gt__": elementwise.greater,
        "__lt__": elementwise.less,
        "__eq__": _compared(elementwise.equal),
        "__ne__": _compared(functions.not_equal),
        "__ge__": functions.greater_equal,
        "__le__": functions.less_equal,
        "__getitem__": indexing.getitem,
        "astype": declare.cast,
        "reshape": shape.reshape,
        "transpose": shape.transpose,
        "flatten": shape.flatten,
        "sum": reduce.sum,
        "mean": reduce.mean,
        "std": spread.std,
        "var": spread.var,
        "max": reduce.max,
        "min": reduce.min,
        "prod": reduce.prod,
        "all": reduce.all,
        "any": reduce.any,
        "argmax": order.argmax,
        "argmin": order.argmin,
        "T": property(shape.transpose),
    }
    for name, function in symbols.items():
        setattr(Tensor, name, with_other_names(function) if callable(function) else function)
