"""Conversion of operands that are no tensors: numbers, arrays and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.arrays.values import Operand as Operand
from spmdsim.core.operator import operands_of_one_world
from spmdsim.errors import OutOfRange, UsageTypeError, many
from spmdsim.reading import one_line

if TYPE_CHECKING:
    from spmdsim.arrays.program_tensor import Tensor


def convert_operands(name: str, values: Sequence[Any]) -> list[Tensor]:
    """Return the operands of an operator as tensors of one world.

    Numbers and arrays become replicated tensors.

    Args:
        name: the operator, for error messages.
        values: tensors, numbers, arrays and parameters.

    Raises:
        NoTensorError: If no operand is a tensor, so that the world is unknown.
    """
    tensors: Any = operands_of_one_world(name, values)
    return [*tensors]


def array_operands(name: str, values: Sequence[Any]) -> list[Tensor]:
    """Return operands as :func:`convert_operands` does, but give Python numbers NumPy's types.

    These are int64, float64, complex128 and bool. Elementwise operators promote Python numbers to the type of the
    other operand instead.
    """
    return convert_operands(
        name, [np.asarray(x) if isinstance(x, (bool, int, float, complex)) else x for x in values]
    )


def normalise_dim(dim: int, ndim: int, call: str = "") -> int:
    """Return a dim as a non-negative number; negative numbers count from the end.

    Args:
        dim: the dim.
        ndim: number of dims of the tensor.
        call: start of the error messages, such as ``"sort: "``.

    Raises:
        OutOfRange: If the dim is out of range.
        UsageTypeError: If the dim is no integer.

    >>> normalise_dim(-1, 3)
    2
    """
    try:
        number = index(dim)
    except TypeError:
        raise UsageTypeError(f"{call}dim must be an integer, got {one_line(repr(dim), 60)}") from None
    if not -ndim <= number < ndim:
        raise OutOfRange(f"{call}dim {number} is out of range for a tensor of {many(ndim, 'dim')}")
    return number % ndim


def parse_flag(name: str, value: Any) -> bool:
    """Return a parameter that must be True or False as a bool; 0 and 1 are accepted.

    Other values are refused, because they probably belong to another parameter of NumPy's function.

    Args:
        name: the parameter, for the message.
        value: its value.

    Raises:
        UsageTypeError: If the value is neither.

    >>> parse_flag("keepdims", 1)
    True
    """
    if isinstance(value, type) or value not in (False, True):
        raise UsageTypeError(f"{name} must be True or False, got {one_line(repr(value), 60)}")
    return bool(value)
