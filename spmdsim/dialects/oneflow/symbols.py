"""What local and global tensors have in common: symbols, a shape that prints as OneFlow's, small questions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from spmdsim.errors import UsageTypeError


class Size(tuple[int, ...]):
    """A shape, printed as OneFlow prints it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"oneflow.Size({list(self)})"


class Symbols(NDArrayOperatorsMixin):
    """``x + 1``, ``-x``, ``x @ w``, ``x > 0``: numpy's functions of the same meaning are asked for."""

    __hash__ = object.__hash__
    shape: Any
    dtype: Any
    item: Any
    numpy: Any
    _apply: Any

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, **options: Any) -> Any:
        return NotImplemented if method != "__call__" or options else self._apply(ufunc, *operands)

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __format__(self, spec: str) -> str:
        """A tensor of one element prints as its number, as in OneFlow."""
        return format(self.item() if not self.ndim else str(self), spec)

    def __len__(self) -> int:
        if not self.ndim:
            raise UsageTypeError("len() of a 0-d tensor")
        return int(self.shape[0])

    @property
    def ndim(self) -> int:
        """Number of dims."""
        return len(self.shape)

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    nelement = numel

    def dim(self) -> int:
        """Number of dims."""
        return self.ndim

    ndimension = dim

    def tolist(self) -> Any:
        """Nested lists of numbers."""
        return self.numpy().tolist()

    def is_floating_point(self) -> bool:
        """Whether its elements are floats."""
        return bool(self.dtype.is_floating_point)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of a dim."""
        return self.shape if dim is None else self.shape[dim]


def in_place(kind: type[Any]) -> None:
    """``x += y`` and the like: the tensor becomes what ``x + y`` gives, for all who have it."""

    def assignment(name: str) -> Any:
        return lambda self, other: self.become(getattr(self, name)(other))

    for name in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow"]:
        setattr(kind, f"__i{name}__", assignment(f"__{name}__"))
