"""Results that numpy copies are separate tensors: assigning to a result leaves the operand unchanged."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.array_api as xp
from spmdsim import LockStep, Mesh, Tensor

#: Functions that change nothing of this operand, and return a copy of it in numpy.
IDLE = {
    **{
        name: getattr(np, name)
        for name in ("positive", "abs", "floor", "ceil", "trunc", "rint", "conjugate", "round")
    },
    **{name: getattr(np, name) for name in ("nan_to_num", "sort", "copy", "fix", "unique")},
    "astype": lambda x: x.astype(x.dtype),
    "flatten": lambda x: x.flatten(),
    "x.round": lambda x: x.round(),
    "x.copy": lambda x: x.copy(),
    "roll": lambda x: np.roll(x, 0),
    "tile": lambda x: np.tile(x, 1),
    "repeat": lambda x: np.repeat(x, 1),
    "pad": lambda x: np.pad(x, 0),
    "concatenate": lambda x: np.concatenate([x]),
    "hstack": lambda x: np.hstack([x]),
    "block": lambda x: np.block([x]),
    "delete": lambda x: np.delete(x, []),
    "append": lambda x: np.append(x, x[:0]),
    "clip": lambda x: np.clip(x, -99, 99),
    "take": lambda x: np.take(x, np.arange(8)),
    "mask": lambda x: x[x > -99],
    "places": lambda x: x[np.arange(8)],
    "sum over no axes": lambda x: np.sum(x, axis=()),
    "largest over no axes": lambda x: np.max(x, axis=()),
    "where": lambda x: np.where(x > -99, x, x),
}


@pytest.mark.filterwarnings("ignore:numpy.fix is deprecated:DeprecationWarning")
@pytest.mark.parametrize("dtype", [np.float64, np.int64])
@pytest.mark.parametrize("name", IDLE)
def test_a_function_that_changes_nothing_returns_a_new_tensor(name, dtype):
    array = np.arange(1, 9).astype(dtype)
    x = Tensor.from_global(array, Mesh((2,), ("x",))("x"), LockStep(2))
    # Earlier versions of round return arrays of integers themselves.
    if "round" not in name or np.lib.NumpyVersion(np.__version__) >= "2.3.0":
        assert not np.shares_memory(IDLE[name](array), array)  # NumPy returns a copy.
    y = IDLE[name](x)
    y[2:5] = 99
    np.testing.assert_array_equal(x.full(), array)


def test_functions_of_the_standard_return_a_new_tensor():
    array = np.arange(8)
    x = Tensor.from_global(array, Mesh((2,), ("x",))("x"), LockStep(2))
    for function in (
        xp.floor,
        xp.trunc,
        xp.round,
        xp.positive,
        lambda x: xp.astype(x, x.dtype),
        lambda x: xp.concat([x]),
    ):
        y = function(x)
        y[...] = -1
        np.testing.assert_array_equal(x.full(), array)
