"""What a numpy user writes without thinking: symbols, rows in a loop, sizes and indices."""

from __future__ import annotations

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, Tensor
from spmdsim.errors import RuleError, UsageTypeError

A = np.arange(1.0, 25.0, dtype=np.float32).reshape(4, 6)


def tensor():
    return Tensor.from_global(A, Mesh((2, 2), ("dp", "tp"))("dp", "tp"), LockStep(4))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: abs(x - 7),
        lambda x: x // 5,
        lambda x: 100 // x,
        lambda x: x % 5,
        lambda x: 100 % x,
        lambda x: A.T @ x,
        lambda x: x.reshape(24),
        lambda x: x[None, -1],
    ],
)
def test_symbols_are_numpys(function):
    expected = function(A)
    found = function(tensor()).full()
    assert found.dtype == expected.dtype and np.array_equal(found, expected)


def test_rows_in_a_loop():
    rows = [row.full() for row in tensor()]
    assert len(rows) == 4 and np.array_equal(rows, A)


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (np.asarray, UsageTypeError, "full"),
        (lambda x: x.reshape(3, -1), UsageTypeError, "one tuple"),
        (lambda x: x[np.array([0.5, 1])], RuleError, "not ndarray of float64"),
        (lambda x: x["a"], RuleError, "not str"),
    ],
)
def test_what_is_not_there_says_so(function, error, text):
    with pytest.raises(error, match=text):
        function(tensor())
