"""NumPy's functions name the argument of a tensor's call that has a wrong type or value."""

from __future__ import annotations

import re

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, Tensor
from spmdsim.errors import InputError, RuleError, UsageTypeError

HUGE = 10**30
CASES = {
    "np.round: decimals must be a whole number, got 'a'": lambda x: np.round(x, "a"),
    "np.round: decimals must fit 64 bits, got an integer of 100 bits": lambda x: x.round(HUGE),
    "np.split: indices_or_sections must be a whole number or whole numbers": lambda x: np.split(x, 1.5),
    "array_split: the number of parts must be from 1 to 1,000,000, got 1": lambda x: np.array_split(x, HUGE),
    "arange: the length must be below 2**63, got 0 to 1": lambda x: Tensor.arange(HUGE, layout=x.layout),
    "np.rot90: k must be a whole number, got 1.5": lambda x: np.rot90(x, 1.5),
    "np.vander: N must be a whole number or None, got 'a'": lambda x: np.vander(x[0], "a"),
    "np.linalg.outer: an argument has a wrong type": lambda x: np.linalg.outer(x[0], []),
    "histogram: bins must be a whole number or edges in one dim, got 1.5": lambda x: np.histogram(x, 1.5),
    "quantiles: q must be numbers, got 'a'": lambda x: np.quantile(x, "a"),
    "np.transpose: an argument has a wrong type": lambda x: np.transpose(x, -7),
    "np.fft.fftn: an argument has a wrong type": lambda x: np.fft.fftn(x, 1.5),
    "np.tril_indices_from: an argument has a wrong type": lambda x: np.tril_indices_from(x, "a"),
}


@pytest.mark.parametrize("message", CASES)
def test_the_call_and_the_argument_are_named(message):
    """One line begins with the call, and names the argument if its type or size is wrong."""
    x = Tensor.from_global(np.arange(16.0).reshape(4, 4), Mesh((2,), ("dp",))("dp", None), LockStep(2))
    with pytest.raises((UsageTypeError, InputError, RuleError), match=re.escape(message)) as caught:
        CASES[message](x)
    assert "\n" not in str(caught.value)


def test_numbers_and_empty_texts_are_converted_or_refused():
    """``np.atleast_1d`` converts numbers beside tensors; an order that is no text is refused."""
    x = Tensor.from_global(np.arange(4.0), Mesh((2,), ("dp",))("dp"), LockStep(2))
    pair = np.atleast_2d(x, 5)
    assert [result.shape for result in pair] == [(1, 4), (1, 1)]
    with pytest.raises(UsageTypeError, match="order"):
        np.copy(x, order=7)
