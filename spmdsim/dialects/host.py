"""Arrays as dialects' programs hold them: whole, the same on every rank, before an operator takes its piece.

Also the words that programs use for "the whole tensor as an array" on global tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.tensor import Tensor as CoreTensor


class HostTensor(np.ndarray):
    """A numpy array with the words of the frameworks: ``asnumpy()``, ``numpy()``."""

    def asnumpy(self) -> np.ndarray:
        """The array (MindSpore's word)."""
        return np.asarray(self)

    def numpy(self) -> np.ndarray:
        """The array (OneFlow's and Paddle's word)."""
        return np.asarray(self)


def host(data: Any, dtype: Any = None) -> HostTensor:
    """Numbers, lists or arrays as a host tensor; Python floats become float32 as in the frameworks.

    >>> host([1.0, 2.0]).dtype, host([1, 2]).dtype, host(np.zeros(2)).dtype
    (dtype('float32'), dtype('int64'), dtype('float64'))
    """
    if isinstance(data, CoreTensor):
        data = data.full()
    array = np.asarray(data, dtype)
    if dtype is None and array.dtype == np.float64 and not isinstance(data, (np.ndarray, np.generic)):
        array = array.astype(np.float32)
    return array.view(HostTensor)


def install() -> None:
    """Give global tensors the same two words; both gather the tensor, so all ranks must call them."""
    for word in ("asnumpy", "numpy"):
        setattr(CoreTensor, word, _whole)


def _whole(tensor: CoreTensor) -> np.ndarray:
    """The whole tensor as one array, on every process."""
    return tensor.full()
