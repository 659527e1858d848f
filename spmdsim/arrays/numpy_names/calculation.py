"""NumPy's functions that calculate: reductions with start and mask, products, differences, statistics."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor, linalg, ops
from spmdsim.arrays.creation import zeros_like
from spmdsim.arrays.numpy_names.arrangement import ravel
from spmdsim.arrays.operands import Operand, array_operands, convert_operands
from spmdsim.arrays.ops.dim_reductions import normalise_dims, to_type
from spmdsim.arrays.ops.scans import conjugate_if_complex, normalise_along_dim
from spmdsim.arrays.ops.slicing import slice_along
from spmdsim.arrays.ops.statistics import PICKING, to_type_of_quantiles
from spmdsim.core.element_types import has_gradient, promote_types
from spmdsim.errors import RuleError, SpmdError, UsageTypeError

Axis = int | Sequence[int] | None


def _make_reduction(name: str, neutral: Any, joined: str) -> Callable[..., Tensor]:
    """Return a reduction with NumPy's arguments ``where`` and ``initial``.

    ``where`` is a mask that broadcasts: only elements where it is True count. ``initial`` is a number that is combined
    with the result: the sum of [1, 2] with ``initial`` 10 is 13.

    Args:
        name: the operator of `spmdsim.ops`, such as "sum".
        neutral: the number by which excluded elements are replaced, such as 0 for a sum. None if the operation has no
            such number (a maximum): they are replaced by ``initial``, and a mask without ``initial`` raises
            UsageTypeError.
        joined: the operator that combines the result with ``initial``, such as "add".
    """

    def reduction(
        a: Tensor, axis: Axis = None, keepdims: bool = False, initial: Any = None, where: Any = True
    ) -> Tensor:
        """Reduce elements where a mask is True, and combine the result with ``initial``.

        Args:
            a: the tensor.
            axis: one dim or several; None: all.
            keepdims: keep reduced dims with size 1.
            initial: a number, converted to the type of the result; None: none.
            where: a mask that broadcasts to ``a``; True: all elements.

        Raises:
            UsageTypeError: If there is a mask without ``initial``, for a maximum or a minimum.
        """
        if where is not True:
            outside = neutral
            if neutral is None and initial is not None:
                outside = np.asarray(initial).astype(a.dtype)
            if outside is None:
                raise UsageTypeError(
                    f"np.{name} with where= has to be told what there is without elements: initial="
                )
            a = ops.where(where, a, outside)
        result: Tensor = getattr(ops, name)(a, axis=axis, keepdims=keepdims)
        if initial is None:
            return result
        first = convert_operands(f"np.{name}", (result, np.asarray(initial).astype(result.dtype)))[1]
        return getattr(ops, joined)(result, first)  # type: ignore[no-any-return]

    reduction.__name__ = name
    return reduction


REDUCTIONS = {
    "sum": _make_reduction("sum", 0, "add"),
    "prod": _make_reduction("prod", 1, "multiply"),
    "any": _make_reduction("any", False, "logical_or"),
    "all": _make_reduction("all", True, "logical_and"),
    "max": _make_reduction("max", None, "maximum"),
    "min": _make_reduction("min", None, "minimum"),
}


def ptp(a: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the largest element minus the smallest."""
    return ops.subtract(ops.max(a, axis=axis, keepdims=keepdims), ops.min(a, axis=axis, keepdims=keepdims))


class NoWeights(SpmdError, ZeroDivisionError):
    """Weights that add up to 0, or an average without results."""


def average(a: Operand, axis: Axis = None, weights: Operand | None = None, keepdims: bool = False) -> Tensor:
    """Compute the mean, weighted by one number per element or per entry of the dimension.

    All ranks must call it, because they check that weights do not add up to 0.

    Args:
        a: the numbers.
        axis: one dimension or several; None: all.
        weights: one weight per element, in the shape of ``a``; or one per entry, in the shape of the dimensions
            ``axis``; None: 1 for each.
        keepdims: keep reduced dimensions with size 1.

    Returns:
        A tensor in the promoted type of ``a`` and ``weights``, and at least float64 if ``a`` has integers.

    Raises:
        NoWeights: If weights of a result add up to 0 (a ``ZeroDivisionError``, as in NumPy), or there is no result. A
            compiled function and a world without data do not read the sums; there the result is what the division
            gives.
        UsageTypeError: If the weights have another shape.
    """
    x, *weight_tensors = convert_operands("np.average", (a,) if weights is None else (a, weights))
    if not weight_tensors:
        mean = ops.mean(x, axis=axis, keepdims=keepdims)
        if not mean.size:
            raise NoWeights(
                f"np.average: the result must have an element, got axis {axis} of shape {x.shape}"
            )
        return mean
    weight, dims = weight_tensors[0], normalise_dims(axis, x.ndim)
    if axis is not None and weight.shape == tuple(x.shape[d] for d in dims):
        weight = ops.reshape(weight, [n if d in dims else 1 for d, n in enumerate(x.shape)])
    elif weight.shape != x.shape:
        raise UsageTypeError(
            f"np.average of tensors takes weights of the shape {x.shape}, not {weight.shape}"
        )
    # As in NumPy, weights are summed in the result's type: their own one may overflow.
    dtypes = (
        (x.dtype, weight.dtype) if has_gradient(x.dtype) else (x.dtype, weight.dtype, np.dtype(np.float64))
    )
    x, weight = (ops.cast(tensor, promote_types(*dtypes)) for tensor in (x, weight))
    total = ops.sum(weight, axis=axis, keepdims=keepdims)
    total = total.to(total.layout.reduced)  # Reduce once, for the check and the quotient.
    is_read = total.world.has_data and not total.world.observers.programs
    if is_read and bool(ops.any(ops.equal(total.detach(), 0))):
        raise NoWeights(
            f"np.average: the weights must not add up to 0, got weights of shape {weight.shape} along axis {axis}; "
            "leave weights out for the mean"
        )
    return ops.divide(ops.sum(ops.multiply(x, weight), axis=axis, keepdims=keepdims), total)


def cov(
    m: Operand, y: Operand | None = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None
) -> Tensor:
    """Compute covariances of the rows of a matrix, and of ``y``; a vector is one row.

    Entry (i, j) is the sum over all observations of ``d_i * conj(d_j)``, where ``d_i`` is the deviation of row i from its
    mean. It is divided by the number of observations minus ``ddof``, or by 0 if this is negative.

    Args:
        m: a vector or matrix; its rows are variables, its columns observations.
        y: more variables in the same form, which are added as rows, or None.
        rowvar: False if columns are variables.
        bias: True to divide by the number of observations, False to divide by one less.
        ddof: the number subtracted from the number of observations; None: as ``bias`` says.

    Returns:
        A square float64 or complex128 matrix; a tensor of shape () for one variable.

    Raises:
        RuleError: If an operand has more than two dims.
    """
    matrices = [_convert_to_rows(x, rowvar) for x in array_operands("np.cov", (m,) if y is None else (m, y))]
    rows = matrices[0] if len(matrices) == 1 else ops.concat(matrices)
    deviations = ops.subtract(rows, ops.mean(rows, axis=1, keepdims=True))
    count = rows.shape[1] - (int(not bias) if ddof is None else ddof)
    products = ops.divide(ops.matmul(deviations, ops.conjugate(ops.transpose(deviations))), max(count, 0))
    return ops.reshape(products, ()) if rows.shape[0] == 1 else products


def _convert_to_rows(m: Tensor, rowvar: bool) -> Tensor:
    """Return variables as rows of a float64 or complex128 matrix; raise RuleError for more than two dims."""
    if m.ndim > 2:
        raise RuleError(f"np.cov takes vectors and matrices, but the shape is {m.shape}")
    m = ops.cast(m, np.complex128 if m.dtype.kind == "c" else np.float64)
    return ops.reshape(m, (1, -1)) if m.ndim < 2 else m if rowvar else ops.transpose(m)


def corrcoef(x: Operand, y: Operand | None = None, rowvar: bool = True) -> Tensor:
    """Compute correlation coefficients: covariances divided by both standard deviations.

    A variable without deviations gives nan.

    Args:
        x: a vector or matrix; its rows are variables, its columns observations.
        y: more variables, or None.
        rowvar: False if columns are variables.

    Returns:
        A square float64 or complex128 matrix; a tensor of shape () for one variable.

    Raises:
        RuleError: If an operand has more than two dims.
    """
    products = cov(x, y, rowvar)
    if not products.ndim:
        return ops.divide(products, products)
    size = ops.sqrt(ops.real(linalg.diagonal(products)))
    return ops.divide(products, linalg.outer(size, size))


def dot(a: Operand, b: Operand) -> Tensor:
    """Compute sums of products over one dim of each operand, as ``numpy.dot``.

    These are the last dim of ``a`` and the last but one of ``b``, or the only dim of a vector ``b``. If an operand
    has no dims, return the products of its number with all elements.
    """
    left, right = array_operands("np.dot", (a, b))
    if not left.ndim or not right.ndim:
        return ops.multiply(left, right)
    return ops.matmul(left, right) if right.ndim <= 2 else ops.tensordot(left, right, ((-1,), (-2,)))


def inner(a: Operand, b: Operand) -> Tensor:
    """Compute sums of products over the last dims of both operands.

    If an operand has no dims, return the products of its number with all elements.
    """
    left, right = array_operands("np.inner", (a, b))
    if not left.ndim or not right.ndim:
        return ops.multiply(left, right)
    return ops.tensordot(left, right, ((-1,), (-1,)))


def outer(a: Operand, b: Operand) -> Tensor:
    """Multiply each element of one tensor with each element of the other."""
    left, right = array_operands("np.outer", (a, b))
    return linalg.outer(ravel(left), ravel(right))


def vdot(a: Operand, b: Operand) -> Tensor:
    """Compute the sum of products of all elements, the first ones conjugated."""
    left, right = array_operands("np.vdot", (a, b))
    if left.shape == right.shape:
        return ops.vdot(left, right)
    return ops.vdot(ravel(left), ravel(right))


def einsum(*operands: Any, optimize: Any = False) -> Tensor:
    """Compute sums of products, as :func:`spmdsim.ops.einsum`; ``optimize`` has no effect."""
    return ops.einsum(*operands)


def correlate(a: Operand, v: Operand, mode: str = "valid") -> Tensor:
    """Compute the cross-correlation of two vectors, as ``numpy.correlate``.

    It is the convolution of ``a`` with ``v`` reversed and conjugated. ``mode`` is as in :func:`convolve`.
    """
    signal, kernel = array_operands("np.correlate", (a, v))
    if kernel.size > signal.size:
        return conjugate_if_complex(ops.flip(correlate(kernel, signal, mode), 0))
    return convolve(signal, conjugate_if_complex(ops.flip(kernel, 0)), mode)


def convolve(a: Operand, v: Operand, mode: str = "full") -> Tensor:
    """Compute the convolution of two vectors; the longer one may stay split.

    ``mode`` is "full", "same" or "valid", see :func:`spmdsim.ops.convolve`.
    """
    signal, kernel = (x if x.ndim else ravel(x) for x in array_operands("np.convolve", (a, v)))
    return ops.convolve(signal, kernel, mode)


def polyval(p: Operand, x: Operand) -> Tensor:
    """Evaluate a polynomial with the coefficients ``p`` at each element of ``x``.

    The coefficient of the highest power comes first. The result has the shape of ``x``.
    """
    powers, points = array_operands("np.polyval", (p, x))
    return functools.reduce(
        lambda y, c: ops.add(ops.multiply(y, points), c), list(powers), zeros_like(points)
    )


def polyfit(x: Operand, y: Operand, deg: int) -> Tensor:
    """Fit a polynomial by least squares; the coefficient of the highest power comes first.

    The powers of ``x`` are scaled to equal norms and passed to :func:`spmdsim.linalg.lstsq`. Its default limit decides
    which singular values count as 0.

    Args:
        x: the positions, a vector.
        y: the values, a vector or a matrix with one column per polynomial.
        deg: the degree, at least 0.

    Returns:
        ``deg + 1`` coefficients, or a matrix with one column per polynomial; integers become float64.

    Raises:
        RuleError: If the numbers of positions and values differ.
    """
    points, values = map(_to_floats, array_operands("np.polyfit", (x, y)))
    columns = vander(points, int(deg) + 1)
    scale = linalg.norm(columns, axis=0)
    weights = linalg.lstsq(ops.divide(columns, scale), values)[0]
    return ops.divide(weights, scale if values.ndim == 1 else ops.expand_dims(scale, 1))


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """Return a matrix whose columns are powers of a vector's elements, from ``N - 1`` down to 0.

    ``N``: the number of columns; None: the number of elements. ``increasing``: from power 0 up.
    """
    powers = np.arange(x.size if N is None else N)
    return ops.power(ops.expand_dims(x, 1), powers if increasing else powers[::-1].copy())


def gradient(f: Tensor, *varargs: float, axis: int | Sequence[int] | None = None) -> Any:
    """Compute the slopes along dims from differences of neighbours.

    The slope of an inner element is the difference of its two neighbours, divided by the length of two steps. At both
    ends it is the difference to the only neighbour, divided by the length of one step: [1, 2, 5] gives [1, 2, 3].
    Integers become float64.

    Along a split dim, neighbouring ranks exchange one element.

    Args:
        f: the values.
        *varargs: the length of a step, for all dims or per dim; default 1. Positions as arrays are not supported.
        axis: one dim or several; None: all.

    Returns:
        A tensor for one dim, else a tuple of one per dim. Each has the shape of ``f``.

    Raises:
        UsageTypeError: If there is another number of steps, or a step is no number.
        OutOfRange: If a dim is out of range.
        RuleError: If a dim has fewer than two elements.
    """
    if axis is None:
        axis = range(f.ndim)
    elif isinstance(axis, int):
        axis = [axis]
    dims = [normalise_along_dim("gradient", f, d) for d in axis]
    steps = varargs * len(dims) if len(varargs) == 1 else varargs or (1.0,) * len(dims)
    if len(steps) != len(dims) or any(np.ndim(step) for step in steps):
        raise UsageTypeError(
            "np.gradient of tensors takes a number as the length of a step, one or one for each dim"
        )
    f = _to_floats(f)
    slopes = tuple(_compute_slope(f, d, step) for d, step in zip(dims, steps))
    return slopes[0] if len(slopes) == 1 else slopes


def _to_floats(x: Tensor) -> Tensor:
    """Convert integers to float64; differences and sums of neighbours may overflow small types."""
    return x if x.dtype.kind in "fcV" else ops.cast(x, np.float64)


def _compute_slope(f: Tensor, d: int, step: float) -> Tensor:
    """Return the slopes along one dim: differences over two steps inside, over one at both ends.

    For example, the values [1, 2, 4] with step 1 have the slopes [1, 1.5, 2].
    """
    if f.shape[d] < 2:
        raise RuleError(f"np.gradient needs two elements along a dim, but the shape is {f.shape}")
    n = f.shape[d]
    inside = ops.divide(ops.subtract(slice_along(f, d, 2, n), slice_along(f, d, 0, n - 2)), 2 * step)
    ends = ops.divide(ops.subtract(slice_along(f, d, 1, n), slice_along(f, d, 0, n - 1)), step)
    return ops.concat([slice_along(ends, d, 0, 1), inside, slice_along(ends, d, n - 2, n - 1)], d)


def trapezoid(y: Tensor, x: Operand | None = None, dx: float = 1.0, axis: int = -1) -> Tensor:
    """Compute the area below straight lines between neighbours along a dim.

    Integers become float64. The result lacks the dim ``axis``; it is 0 for fewer than two elements.

    Args:
        y: the values.
        x: their positions, in the shape of ``y``, or a vector with one entry per value along the dim; None: neighbours
            are ``dx`` apart.
        dx: the distance of neighbours; not used with ``x``.
        axis: the dim.

    Raises:
        RuleError: If the dim is out of range, or shapes do not fit.
    """
    y, d = _to_floats(y), normalise_along_dim("trapezoid", y, axis)
    n = y.shape[d]
    sums = ops.add(slice_along(y, d, 1, n), slice_along(y, d, 0, n - 1))
    if x is None:
        return ops.multiply(ops.sum(sums, axis=d), dx / 2)
    positions = convert_operands("np.trapezoid", (y, x))[1]
    steps = ops.diff(positions, dim=d if positions.ndim > 1 else 0)
    steps = ops.reshape(steps, [-1 if k == d else 1 for k in range(y.ndim)]) if steps.ndim == 1 else steps
    return ops.divide(ops.sum(ops.multiply(sums, steps), axis=d), 2)


def interp(
    x: Operand, xp: Operand, fp: Operand, left: float | None = None, right: float | None = None
) -> Tensor:
    """Interpolate linearly between points; before the first and after the last one, values are constant.

    For example, points at 0 and 2 with the values 10 and 30 give 10 at -1, 20 at 1 and 30 at 5.

    Args:
        x: the positions at which to interpolate, in any shape; a tensor, unless ``xp`` or ``fp`` is one.
        xp: the positions of the points, a vector in ascending order. The order of a tensor is not checked.
        fp: their values, a vector.
        left: the result before the first point; None: the value of the first point.
        right: the result after the last point; None: the value of the last point.

    Returns:
        A float64 tensor in the shape of ``x``; complex128 for complex values.

    Raises:
        RuleError: If there are no points, positions do not ascend, or the numbers of positions and values differ.
    """
    if np.shape(xp) != np.shape(fp) or np.ndim(xp) != 1 or not np.size(xp):  # type: ignore[arg-type]
        raise RuleError(
            f"np.interp takes places and as many values, but got {np.shape(xp)} and {np.shape(fp)}"  # type: ignore[arg-type]
        )
    if not isinstance(xp, Tensor) and (np.diff(xp) <= 0).any():  # type: ignore[arg-type]
        raise RuleError(f"np.interp takes ascending places, but got {np.asarray(xp).tolist()}")
    points, positions, values = array_operands("np.interp", (x, xp, fp))
    points, positions = (ops.cast(tensor, np.float64) for tensor in (points, positions))
    values = ops.cast(values, np.complex128 if values.dtype.kind == "c" else np.float64)
    # One slope per point, up to the next point; the last point has the slope 0.
    slopes = ops.pad(ops.divide(ops.diff(values), ops.diff(positions)), (0,), (1,))
    numbers = ops.clip(ops.subtract(ops.searchsorted(positions, points, side="right"), 1), 0, None)
    start, value, slope = (ops.take(tensor, numbers, 0) for tensor in (positions, values, slopes))
    y = ops.add(value, ops.multiply(slope, ops.subtract(points, start)))
    y = ops.where(ops.less(points, positions[0]), values[0] if left is None else left, y)
    return ops.where(ops.greater(points, positions[-1]), values[-1] if right is None else right, y)


def _make_order_statistic(name: str) -> Callable[..., Tensor]:
    """Return ``np.quantile`` or ``np.percentile`` for tensors, by its name.

    A fraction says how much of the elements lies below a quantile: 0.5 is the median. The type of the result:

    - Fractions in an array: the array's type is promoted with the tensor's type. A Python number does not count.
    - Integer fractions of "quantile" (0 and 1): the type of the tensor, because the results are elements themselves.

    Args:
        name: "quantile" or "percentile".
    """

    def order_statistic(
        a: Tensor, q: Any, axis: Axis = None, keepdims: bool = False, method: str = "linear"
    ) -> Tensor:
        """Compute quantiles or percentiles; see :func:`spmdsim.ops.quantile`."""
        # Integer fractions are 0 and 1: the smallest and the largest element, in the tensor's own type.
        if name == "quantile" and np.asarray(q).dtype.kind in "iu":
            return to_type(ops.quantile(a, q, axis, keepdims, "lower"), a.dtype)
        x = a if method in PICKING else to_type_of_quantiles(a, q)
        statistic: Tensor = getattr(ops, name)(x, q, axis, keepdims, method)
        return statistic

    order_statistic.__name__ = name
    order_statistic.__doc__ = f"Compute ``numpy.{name}``; see :func:`spmdsim.ops.{name}`."
    return order_statistic


percentile, quantile = map(_make_order_statistic, ("percentile", "quantile"))
