"""``mindspore.Tensor``: whole arrays before an operator takes its piece, and global tensors, under one name."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.dialects.host import HostTensor
from spmdsim.dialects.mindspore.parameter import Initializer, initializer
from spmdsim.dialects.mindspore.words import host
from spmdsim.errors import UsageTypeError
from spmdsim.tensor import Tensor as CoreTensor


class _Kind(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, (HostTensor, CoreTensor))


class Tensor(metaclass=_Kind):
    """``Tensor(array, ms.float32)``: the same whole array on every rank, of which operators keep their piece."""

    def __new__(  # type: ignore[misc]
        cls, input_data: Any = None, dtype: Any = None, shape: Any = None, init: Any = None
    ) -> HostTensor:
        """The array with MindSpore's words; ``init`` with ``shape`` gives values of an initialiser."""
        if init is not None or isinstance(input_data, Initializer):
            kind = np.float32 if dtype is None else dtype
            source = input_data if isinstance(input_data, Initializer) else initializer(init, shape, kind)
            values: HostTensor = source.init_data()
            return values
        return host(input_data, dtype)

    @staticmethod
    def from_numpy(array: np.ndarray) -> HostTensor:
        """An array of NumPy's."""
        if not isinstance(array, np.ndarray):
            raise UsageTypeError(f"from_numpy takes an array of NumPy's, not a {type(array).__name__}")
        return host(array)


from_numpy = Tensor.from_numpy


def tensor(
    input_data: Any = None, dtype: Any = None, shape: Any = None, init: Any = None, const_arg: bool = False
) -> Any:
    """As :class:`Tensor`; ``const_arg`` is accepted and ignored: programs are not compiled."""
    return Tensor(input_data, dtype, shape, init)


__all__ = ["Tensor", "from_numpy", "tensor"]
