"""Inputs on which every sum is exact in whatever order it is taken: small whole numbers in the place of the data.

Rounding hides small faults: an element may be off by as much as an honest sum of such terms could be. So each case is
run a second time on whole numbers so small that every product, every sum of some of the products and every result is
a number of its type. Then there is one right result, to the last bit, for every strategy and every order, and what is
off by anything is wrong. No number is zero where a rank's part would vanish with it, and neighbours differ.

Integers wrap around in the same way in every order, so for them any numbers do.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from spmdsim.cases.inputs import VOCABULARY, Index, Inputs, Source
from spmdsim.tensor.random import normal_block

#: Numbers other than zero in a column of a weight: sums of so many terms of at most 2, twice in a row, are exact.
MOST = 1022
#: The same for floats of 16 bits: results up to 256, which bfloat16 holds, and 32,512 after a second layer.
MOST_HALF = 126


class ExactInputs(Inputs):
    """The shapes and types of other inputs, with whole numbers.

    Args:
        data: the inputs whose place they take.
    """

    def __init__(self, data: Inputs) -> None:
        super().__init__()
        self.data = data

    @cached_property
    def dtype(self) -> np.dtype:
        """The element type of the data."""
        return self.data.dtype

    @cached_property
    def x(self) -> Source:
        """1 and 2, positive and negative."""
        return self._like(self.data.x, 11, 2)

    @cached_property
    def w(self) -> Source:
        """1 and -1; of a long column only so many that a sum stays exact, in each column others."""
        return self._like(self.data.w, 12, 1, sparse=True)

    @cached_property
    def bias(self) -> Source:
        """1 and 2, positive and negative."""
        return self._like(self.data.bias, 13, 2)

    @cached_property
    def w2(self) -> Source:
        """As the first weight."""
        return self._like(self.data.w2, 14, 1, sparse=True)

    @cached_property
    def ids(self) -> Source:
        """Every row of the table, in no order."""
        data = self.data.ids

        def read(index: Index) -> np.ndarray:
            array: np.ndarray = (np.abs(normal_block(index, data.shape, np.float64, 15)) * 1e6).astype(
                data.dtype
            ) % VOCABULARY
            return array

        return Source("whole numbers", data.shape, data.dtype, read)

    @cached_property
    def table(self) -> Source:
        """1 and 2, positive and negative."""
        return self._like(self.data.table, 16, 2)

    def _like(self, data: Source, seed: int, most: int, sparse: bool = False) -> Source:
        shape, dtype = data.shape, self.dtype
        stride = (
            -(-shape[0] // (MOST_HALF if dtype.itemsize <= 2 else MOST))
            if sparse and dtype.kind not in "iu"
            else 1
        )

        def read(index: Index) -> np.ndarray:
            block = _whole(normal_block(index, shape, np.float64, seed), most)
            if dtype.kind == "c":
                block = block + 1j * _whole(normal_block(index, shape, np.float64, seed + 100), most)
            if stride > 1:
                rows, columns = (np.arange(part.start, part.stop) for part in index)
                block = np.where((rows[:, None] + columns) % stride == 0, block, 0)
            return block.astype(np.int64).astype(dtype) if dtype.kind in "iu" else block.astype(dtype)

        return Source("whole numbers", shape, dtype, read)


def _whole(normal: np.ndarray, most: int) -> np.ndarray:
    size = np.where(np.abs(normal) > 0.7, most, 1)
    return np.where(normal < 0, -size, size)


def exact_block(block: Any, dtype: np.dtype) -> np.ndarray:
    """A reference's block worked out in a type in which it is exact, then in its own.

    Args:
        block: an array, or a function and its operands.
        dtype: the type that the result is kept in.
    """
    if not isinstance(block, tuple):
        return np.asarray(block)
    function, operands = block
    wide = [x.astype(_WIDE.get(x.dtype.kind, x.dtype)) for x in map(np.asarray, operands)]
    return np.asarray(function(*wide)).astype(dtype)


#: bfloat16 is of kind V.
_WIDE: dict[str, Any] = {"f": np.float64, "V": np.float64, "c": np.complex128}
