"""Variance and standard deviation over dimensions."""

from __future__ import annotations

import math

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.arrays.ops.dim_reductions import finish_reductions, mean, normalise_dims, to_sum_type, to_type
from spmdsim.arrays.ops.dim_reductions import sum as sum_
from spmdsim.arrays.ops.elementwise import equal, multiply, sqrt, square, subtract, where
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.reduction_methods import Dims
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
    """Compute the variance over dimensions: the mean square of the differences from the mean.

    The mean is computed first, then the differences, which keeps all digits if the mean is much larger than they are.
    If a reduced dimension is split, the mean and the sum of squares each need one reduction of the result's size. The
    variance is nan if there are no more elements than ``correction``.

    Args:
        x: the tensor; a partial one is reduced first.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        correction: number subtracted from the count of elements before the division: 0 for a population, 1 for a
            sample.
        axis: another name of ``dims``.
        ddof: another name of ``correction``.

    Returns:
        A tensor without the reduced dimensions, or with size 1 for them; partial (a pending sum) over their axes. It
        has the type of ``x``, float64 for integers; 16-bit floats are computed in float32.

    Raises:
        RuleError: If a dimension is out of range or occurs twice, or if ``x`` is complex.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.var(x, axis=1).full().round(4).tolist()
    [0.6667, 0.6667]
    """
    # The decorator passes `axis` as `dims` and `ddof` as `correction`.
    over = normalise_dims(dims, x.ndim)
    count = math.prod(x.shape[d] for d in over)
    if x.dtype.kind == "c":
        raise RuleError("the variance of complex numbers is not defined here; take that of each part")
    # The variance of no more elements than the correction is nan, as in the array API standard.
    share = 1.0 / (count - correction) if count > correction else math.nan
    exact = x.dtype if x.dtype.kind in "fV" else np.dtype(np.float64)
    widened = to_sum_type(to_type(x, exact))
    values = finish_reductions(widened)
    # Differences from the mean add up to zero, so the derivative by the mean is 0: no gradient goes through it.
    average = (mean if count else sum_)(values.detach(), over, keepdims=True)
    centred = subtract(values, finish_reductions(average))
    result = multiply(sum_(square(centred), over, keepdims), share)
    return to_type(result, exact)


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
    """Compute the standard deviation over dimensions: the square root of :func:`var`.

    The result has the type of ``x``, float64 for integers, and no pending reduction. It is nan if there are no more
    elements than ``correction``. Its gradient is 0 where the variance is 0.

    Args:
        x: the tensor.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        correction: number subtracted from the count of elements before the division: 0 for a population, 1 for a
            sample.
        axis: another name of ``dims``.
        ddof: another name of ``correction``.

    Returns:
        A tensor without the reduced dimensions, or with size 1 for them.

    Raises:
        RuleError: If a dimension is out of range or occurs twice, or if ``x`` is complex.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.std(x, axis=1).full().round(4).tolist()
    [0.8165, 0.8165]
    """
    widened = to_sum_type(x)
    spread = finish_reductions(var(widened, dims, keepdims, correction=correction))
    dtype = spread.dtype if widened is x else x.dtype
    if not spread.requires_grad:
        return to_type(sqrt(spread), dtype)
    zero = equal(spread.detach(), 0)
    return to_type(where(zero, 0, sqrt(where(zero, 1, spread))), dtype)
