"""Variance and standard deviation over dimensions."""

from __future__ import annotations

import math

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.arrays.ops.dim_reductions import Dims, as_type, mean, normal_dims, reduced, wide
from spmdsim.arrays.ops.dim_reductions import sum as sum_
from spmdsim.arrays.ops.elementwise import equal, multiply, sqrt, square, subtract, where
from spmdsim.arrays.ops.operators import operator
from spmdsim.errors import RuleError

__all__ = ["std", "var"]


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
    """Compute the mean square of the differences from the mean, over dimensions.

    Of the type of ``x``, float64 for whole numbers, partial as a sum; types of two bytes are computed in more. Two passes
    lose no digits where the mean is large against the spread; where a reduced dim is split, each is one reduction of a
    result's size. Of no more elements than the correction (numpy's ``ddof``) the variance is nan.

    Args:
        x: the tensor.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        correction: number subtracted from the count of elements before the division: 0 for a population, 1 for a
            sample.
        axis: another name of ``dims``.
        ddof: another name of ``correction``.

    Raises:
        RuleError: a dimension out of range or given twice, a complex tensor.

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
    widened = wide(as_type(x, exact))
    whole = reduced(widened)
    # Differences from the mean add up to zero, so moving it changes nothing: no gradient goes through it.
    average = (mean if count else sum_)(whole.detach(), over, keepdims=True)
    centred = subtract(whole, reduced(average))
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
    """Compute the square root of :func:`var`; nothing stays partial.

    Where the variance is zero, the gradient is defined as zero.

    Args:
        x: the tensor.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        correction: number subtracted from the count of elements before the division: 0 for a population, 1 for a
            sample.
        axis: another name of ``dims``.
        ddof: another name of ``correction``.

    Raises:
        RuleError: a dimension out of range or given twice, a complex tensor.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.std(x, axis=1).full().round(4).tolist()
    [0.8165, 0.8165]
    """
    widened = wide(x)
    spread = reduced(var(widened, dims, keepdims, correction=correction))
    dtype = spread.dtype if widened is x else x.dtype
    if not spread.requires_grad:
        return as_type(sqrt(spread), dtype)
    zero = equal(spread.detach(), 0)
    return as_type(where(zero, 0, sqrt(where(zero, 1, spread))), dtype)
