"""Operands that are no tensors yet: numbers, arrays and parameters beside tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from spmdsim.core.operator import operands_of_one_world
from spmdsim.errors import OutOfRange, UsageTypeError, many

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from spmdsim.arrays.program_tensor import Tensor


class HasOperand(Protocol):
    """What stands for a tensor, such as a parameter."""

    def as_operand(self, like: Tensor) -> Tensor:
        """The tensor that it stands for."""


#: What operators take: tensors, what stands for one, and numbers and arrays, which every rank has whole.
Operand: TypeAlias = "Tensor | HasOperand | ArrayLike"


def operands(name: str, values: Sequence[Any]) -> list[Tensor]:
    """Return what an operator is given as tensors of one world; NoTensorError if no operand says in which world that is."""
    tensors: Any = operands_of_one_world(name, values)
    return [*tensors]


def array_operands(name: str, values: Sequence[Any]) -> list[Tensor]:
    """:func:`operands` of what NumPy makes arrays of first: a Python number has a type of its own, float64 or int64.

    In functions of elements it takes the other operand's instead.
    """
    return operands(
        name, [np.asarray(x) if isinstance(x, (bool, int, float, complex)) else x for x in values]
    )


def counted_dim(dim: int, ndim: int) -> int:
    """A dim counted from the front.

    >>> counted_dim(-1, 3)
    2
    """
    if not -ndim <= dim < ndim:
        raise OutOfRange(f"dim {dim} is out of range for a tensor of {many(ndim, 'dim')}")
    return int(dim) % ndim


def flag(name: str, value: Any) -> bool:
    """A parameter that is true or false, and not what has another place in NumPy, such as an element type.

    >>> flag("keepdims", 1)
    True
    """
    if isinstance(value, type) or value not in (False, True):
        raise UsageTypeError(f"{name} is True or False, but got {value!r}")
    return bool(value)
