"""Variance and standard deviation: the mean first, then the mean square of what differs from it.

Two passes lose no digits where the mean is large against the spread. Where a reduced dim is split, each pass is one
reduction of a result's size.
"""

from __future__ import annotations

import math

import numpy as np

from spmdsim.errors import RuleError
from spmdsim.ops.elementwise import equal, multiply, sqrt, subtract, where
from spmdsim.ops.functions import square
from spmdsim.ops.operators import operator
from spmdsim.ops.reduce import Dims, as_type, mean, normal_dims, wide
from spmdsim.ops.reduce import sum as sum_
from spmdsim.tensor import Tensor


@operator()
def var(
    x: Tensor,
    dims: Dims = None,
    keepdims: bool = False,
    *,
    correction: float = 0,
    axis: Dims = None,
    ddof: float = 0,
) -> Tensor:
    """Mean square of the differences from the mean, over dims (all for None).

    Args:
        x: numbers, not complex; whole numbers and types of two bytes are computed in more.
        dims: which dims; they may be split.
        keepdims: leave reduced dims in the result, with size 1.
        correction: taken off the number of elements that the sum of squares is divided by, as in the array API
            standard (numpy's ``ddof``): 0 for a population's variance, 1 for an unbiased one from a sample. Of no
            more elements than this the variance is nan.
        axis: the same as ``dims``.
        ddof: the same as ``correction``.

    Returns:
        Of ``x``'s type (float64 for whole numbers), partial over the axes of split dims until somebody needs it.

    Raises:
        RuleError: a complex tensor.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.var(x, axis=1).full().round(4).tolist()
    [0.6667, 0.6667]
    """
    over = normal_dims(dims, x.ndim)
    count = math.prod(x.shape[d] for d in over)
    if x.dtype.kind == "c":
        raise RuleError("the variance of complex numbers is not defined here; take that of each part")
    # Of no more elements than the correction there is none: nan, as the array API standard has it.
    share = 1.0 / (count - correction) if count > correction else math.nan
    exact = x.dtype if x.dtype.kind in "fV" else np.dtype(np.float64)
    given = wide(as_type(x, exact))
    whole = given.to(given.layout.reduced)
    # Differences from the mean add up to zero, so moving it changes nothing: no gradient goes through it.
    average = (mean if count else sum_)(whole.detach(), over, keepdims=True)
    centred = subtract(whole, average.to(average.layout.reduced))
    result = multiply(sum_(square(centred), over, keepdims), share)
    return as_type(result, exact)


@operator()
def std(
    x: Tensor,
    dims: Dims = None,
    keepdims: bool = False,
    *,
    correction: float = 0,
    axis: Dims = None,
    ddof: float = 0,
) -> Tensor:
    """The root of :func:`var`; where that is zero its gradient is taken to be zero, too.

    Args:
        x: numbers, not complex; whole numbers and types of two bytes are computed in more.
        dims: one dim or several, negative ones from the end; all of them for None. They may be split.
        keepdims: leave reduced dims in the result, with size 1; left out by default.
        correction: taken off the number of elements that the sum of squares is divided by: 0 for a population's
            deviation, 1 for one from a sample. Of no more elements than this the deviation is nan.
        axis: the same as ``dims``.
        ddof: the same as ``correction``.

    Returns:
        Of the type of ``x`` (float64 for whole numbers), with nothing pending.

    Raises:
        RuleError: a complex tensor, or a dim out of range or given twice.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.std(x, axis=1).full().round(4).tolist()
    [0.8165, 0.8165]
    """
    given = wide(x)
    spread = var(given, dims, keepdims, correction=correction)
    spread = spread.to(spread.layout.reduced)
    dtype = spread.dtype if given is x else x.dtype
    if not spread.requires_grad:
        return as_type(sqrt(spread), dtype)
    zero = equal(spread.detach(), 0)
    return as_type(where(zero, 0, sqrt(where(zero, 1, spread))), dtype)
