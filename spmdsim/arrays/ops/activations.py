"""Functions of elements that layers use: activations, one number per channel, and dropout.

NumPy has no error function. Here it is its Taylor series around the nearest of a row of points. The slopes follow
from Hermite's recurrence: accurate to the last digits of the type everywhere, with one look-up per term.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from spmdsim.arrays import Context, Op, Tensor
from spmdsim.arrays.operands import Operand, normalise_dim
from spmdsim.arrays.ops.declare import (
    Array,
    Arrays,
    Shape,
    cast,
    conj,
    convert_to_one_type,
    declare_unary,
    infer_result_type,
    with_reused_output,
)
from spmdsim.arrays.ops.elementwise import identity, one_like
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.random import uniform_block
from spmdsim.core import PASSES, Rule
from spmdsim.errors import InputError, OutOfRange, many
from spmdsim.layout.element_type import check_ordered, fraction_type, promote_types

__all__ = [
    "bias_add", "dropout", "elu", "erf", "gelu", "prelu", "relu", "relu6", "sigmoid", "silu", "softplus",
]  # fmt: skip


def stable_sigmoid(x: Array) -> Array:
    """Compute ``1 / (1 + exp(-x))`` of every element without overflow.

    ``x`` is floating or complex; for complex numbers the sign of the real part decides which of two equal formulas is
    used.
    """
    is_positive = (x.real if x.dtype.kind == "c" else x) >= 0
    power = np.exp(np.where(is_positive, -x, x))
    unit = np.asarray(1, power.dtype)
    array: Array = np.where(is_positive, unit / (unit + power), power / (unit + power))
    return array


_maximum = with_reused_output(np.maximum)


def _relu(x: Array) -> Array:
    """Return the larger of each element and 0; write large results into reused buffers."""
    array: Array = _maximum(x, np.zeros((), x.dtype))
    return array


relu = declare_unary("relu", _relu, lambda y: y > 0, real=True, says="max(x, 0)")
sigmoid = declare_unary(
    "sigmoid",
    stable_sigmoid,
    lambda y: y * (1 - y),
    fractions=True,
    work=PASSES,
    says="1 / (1 + exp(-x))",
)
softplus = declare_unary(
    "softplus",
    lambda x: np.logaddexp(x, np.zeros((), x.dtype)),
    lambda x: stable_sigmoid(x),
    fractions=True,
    says="log(1 + exp(x))",
)
silu = declare_unary(
    "silu",
    lambda x: x * stable_sigmoid(x),
    lambda x, y: stable_sigmoid(x) + y * (1 - stable_sigmoid(x)),
    fractions=True,
    says="x / (1 + exp(-x))",
)
relu6 = declare_unary(
    "relu6",
    lambda x: np.clip(x, 0, 6).astype(x.dtype),
    lambda y: (y > 0) & (y < 6),
    real=True,
    says="min(max(x, 0), 6)",
)
elu = declare_unary(
    "elu",
    lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    lambda y: np.where(y > 0, one_like(y), y + 1),
    fractions=True,
    real=True,
    says="x if x > 0 else exp(x) - 1",
)

#: The table has _DENSITY points per unit. It ends at _END, where the function is 1 in float64. Terms after the first
#: _TERMS are below 1e-17.
_DENSITY, _END, _TERMS = 16, 6, 10
_SLOPE = 2 / math.sqrt(math.pi)


@lru_cache(maxsize=4)
def _compute_series(dtype: np.dtype) -> Array:
    """Return the error function's Taylor coefficients ``[term, point]``, constants first.

    Entry ``[k, j]`` is the k-th derivative at j / 16, divided by k!. The 11 terms are 0 to 10; the 97 points are the
    multiples of 1 / 16 from 0 to 6. Results are cached; the caller must not change them.

    Args:
        dtype: float32 or float64, the type of the result.
    """
    points = np.arange(_DENSITY * _END + 1) / _DENSITY
    bell = _SLOPE * np.exp(-points * points)
    hermite, previous_hermite = np.ones_like(points), np.zeros_like(points)
    rows = [np.array([math.erf(x) for x in points])]
    # The k-th derivative of erf is (-1)^(k-1) * H_(k-1)(x) * 2/sqrt(pi) * exp(-x**2), with the Hermite polynomials H.
    for order in range(1, _TERMS + 1):
        rows.append(bell * hermite / math.factorial(order) * (-1) ** (order - 1))
        next_hermite = 2 * points * hermite - 2 * (order - 1) * previous_hermite
        hermite, previous_hermite = next_hermite, hermite
    return np.stack(rows).astype(dtype)


def _erf(x: Array) -> Array:
    """Compute the error function of an array ``x``, by Taylor series around the nearest points.

    The points are multiples of 1 / 16. Elements above 6 get the value at 6, which is 1 in float64, and elements below
    -6 get -1; nan stays nan. Floats keep their type; 16-bit floats are computed in float32. Integers become floats of
    the type that ``exp`` returns.
    """
    kind = x.dtype if x.dtype.kind in "fV" else fraction_type(x.dtype)
    rows = _compute_series(np.result_type(kind, np.float32))
    size = np.minimum(np.abs(x).astype(rows.dtype, copy=False), _END)  # nan stays nan
    near = np.nan_to_num(np.rint(size * _DENSITY)).astype(np.intp)
    step = size - near.astype(rows.dtype) / _DENSITY
    total = rows[_TERMS][near]
    for row in rows[_TERMS - 1 :: -1]:
        total = total * step + row[near]
    array: Array = np.copysign(total, x).astype(kind, copy=False)
    return array


def _erf_slope(x: Array) -> Array:
    """Return the slope of the error function, ``2 / sqrt(pi) * exp(-x**2)``."""
    array: Array = np.asarray(_SLOPE, x.dtype) * np.exp(-x * x)
    return array


erf = declare_unary(
    "erf",
    _erf,
    _erf_slope,
    fractions=True,
    real=True,
    work=PASSES,
    says="2 / sqrt(pi) * integral of exp(-t**2) from 0 to x",
)


_SCALE = math.sqrt(2 / math.pi)


def _convert_numbers(x: Array, *values: float) -> list[Array]:
    """Return numbers as arrays of shape () in the type of ``x``.

    A Python number and bfloat16 elements would give float32.
    """
    return [np.asarray(value, x.dtype) for value in values]


def _gelu_by_tanh(x: Array) -> Array:
    """Return GELU by the formula with tanh."""
    half, cubic, scale = np.asarray(0.5, x.dtype), np.asarray(0.044715, x.dtype), np.asarray(_SCALE, x.dtype)
    array: Array = half * x * (1 + np.tanh(scale * (x + cubic * x * x * x)))
    return array


def _gelu_slope_by_tanh(x: Array) -> Array:
    """Return the slope of GELU by the formula with tanh."""
    half, cubic, scale = _convert_numbers(x, 0.5, 0.044715, _SCALE)
    t = np.tanh(scale * (x + cubic * x * x * x))
    array: Array = half * (1 + t) + half * x * (1 - t * t) * scale * (1 + 3 * cubic * x * x)
    return array


def _compute_normal_cdf(x: Array) -> Array:
    """Return the cumulative distribution function of the standard normal distribution."""
    half, root = _convert_numbers(x, 0.5, math.sqrt(0.5))
    array: Array = half * (1 + _erf(x * root))
    return array


def _gelu_slope_by_erf(x: Array) -> Array:
    """Return the slope of GELU by the error function."""
    half, root = _convert_numbers(x, 0.5, math.sqrt(0.5))
    array: Array = _compute_normal_cdf(x) + x * root * half * _erf_slope(x * root)
    return array


def _gelu_slope_by_sigmoid(x: Array) -> Array:
    """Return the slope of ``x * sigmoid(1.702 * x)``."""
    scaled = np.asarray(1.702, x.dtype) * x
    y = stable_sigmoid(scaled)
    array: Array = y + scaled * y * (1 - y)
    return array


def _make_form(function: Callable[..., Any], slope: Callable[..., Any], real: bool = False) -> Any:
    """Return three functions for one form (formula) of GELU: the form, its slope and the result type.

    Args:
        function: computes the form of an array of floats.
        slope: computes the derivative of the form; returned unchanged.
        real: True to refuse complex elements.

    Returns:
        - ``function``, preceded by a conversion of integers to floats.
        - ``slope``.
        - A function from the operand's element type to the result's; it raises RuleError for a type that is refused.
    """

    def local(x: Array) -> Any:
        """Compute the function; convert integers to floats first."""
        return function(x.astype(fraction_type(x.dtype), copy=False))

    return local, slope, infer_result_type("gelu", local, real)


#: The forms of GELU by the argument ``approximate``; "tanh" is by Hendrycks and Gimpel, 2016.
_FORMS = {
    "tanh": _make_form(_gelu_by_tanh, _gelu_slope_by_tanh),
    "none": _make_form(lambda x: x * _compute_normal_cdf(x), _gelu_slope_by_erf, real=True),
    "sigmoid": _make_form(
        lambda x: x * stable_sigmoid(np.asarray(1.702, x.dtype) * x), _gelu_slope_by_sigmoid, real=True
    ),
}

_gelu_op = Op(
    "gelu",
    Rule.parse("... -> ...", work=PASSES, backward=3),
    lambda x, approximate="tanh": _FORMS[approximate][0](x),
    lambda dy, xs, _y, approximate="tanh": (dy * conj(_FORMS[approximate][1](xs[0])),),
    dtype=lambda x, approximate="tanh": _FORMS[approximate][2](x),
)


@operator(_gelu_op)
def gelu(x: Tensor, approximate: str | bool = "tanh") -> Tensor:
    """Apply the Gaussian error linear unit to every element; integers become floats.

    Nothing is communicated, but a partial operand is reduced first.

    Args:
        x: the tensor.
        approximate: ``"none"`` (or False): the exact formula ``x / 2 * (1 + erf(x / sqrt(2)))``. ``"tanh"`` (or True):
            ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``, which differs by at most 5e-4. ``"sigmoid"``:
            ``x * sigmoid(1.702 * x)``, which differs by at most 0.021 (MindSpore's FastGeLU, OneFlow's quick_gelu).
            The strings "none" and "tanh" are torch's, the bools JAX's and Paddle's.

    Returns:
        A tensor in the shape of ``x``, split as ``x``.

    Raises:
        InputError: If ``approximate`` is none of these.
        RuleError: If ``x`` is complex, except for "tanh".

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.gelu(m - 2.0).full().round(4).tolist(), ops.gelu(m - 2.0, approximate="none").full().round(4).tolist()
    ([[0.8412, -0.1588], [0.0, 1.9546]], [[0.8413, -0.1587], [0.0, 1.9545]])
    """
    form = ("tanh" if approximate else "none") if isinstance(approximate, bool) else approximate
    if not isinstance(form, str) or form not in _FORMS:
        raise InputError(
            f"gelu: approximate must be 'tanh', 'none', 'sigmoid', True or False, got {approximate!r}"
        )
    return _gelu_op(x) if form == "tanh" else _gelu_op(x, approximate=form)


def _channel_rule(x: Shape, channel: Shape, dim: int, linear: Any = "none") -> Rule:
    """Return the rule of ``x`` with one parameter per entry of a dimension, or one for all.

    With shapes (8, 3, 5), (3,) and dimension 1 it is "d0 d1 d2, d1 -> d0 d1 d2". A parameter of shape (1,) for a
    dimension of another size is shared by all entries: it is "1" in the rule and never split.
    """
    if not 0 <= dim < len(x):
        raise OutOfRange(f"dim {dim} is out of range for a tensor of {many(len(x), 'dim')}")
    names = [f"d{k}" for k in range(len(x))]
    parameter = "1" if channel == (1,) and x[dim] != 1 else names[dim]
    return Rule.parse(f"{' '.join(names)}, {parameter} -> {' '.join(names)}", linear=linear)


def _reshape_along(parameter: Array, ndim: int, dim: int) -> Array:
    """Reshape a vector so that it broadcasts along one dimension."""
    return parameter.reshape([-1 if k == dim else 1 for k in range(ndim)])


def _sum_per_channel(gradient: Array, parameter: Array, dim: int) -> Array:
    """Return a gradient summed over all dimensions except ``dim``.

    If the parameter has one element for all channels, the gradient is summed over ``dim``, too.
    """
    dims = tuple(k for k in range(gradient.ndim) if k != dim)
    total = gradient.sum(axis=dims, dtype=gradient.dtype)
    array: Array = total if total.shape == parameter.shape else total.sum(keepdims=True, dtype=total.dtype)
    return array


_bias_op = Op(
    "bias_add",
    lambda x, bias, dim: _channel_rule(x, bias, dim, linear="all"),
    lambda x, bias, dim: x + _reshape_along(bias, x.ndim, dim),
    lambda dy, operands, _y, dim: (dy, _sum_per_channel(dy, operands[1], dim)),
)


@operator(_bias_op)
def bias_add(x: Tensor, bias: Operand, dim: int = 1, *, axis: int = 1) -> Tensor:
    """Add one number per entry of a dimension: ``[n, c, ...] + [c]``.

    The result has the type to which both operands are promoted.

    Args:
        x: the tensor.
        bias: ``[c]``, or ``[1]`` for the same number everywhere.
        dim: the dimension; negative numbers count from the end. It may be split.
        axis: another name of ``dim``.

    Returns:
        A tensor in the shape of ``x``, in the type to which both operands are promoted.

    Raises:
        RuleError: If the dimension is out of range, or ``bias`` does not have one dimension of its size or of size 1.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.bias_add(x, [10, 20, 30]).full().tolist()
    [[13, 21, 32], [16, 25, 34]]
    """
    return _bias_op(*convert_to_one_type("bias_add", x, bias), dim=normalise_dim(dim, x.ndim))


def _prelu_vjp(dy: Array, operands: Arrays, _y: Any, dim: int) -> tuple[Any, Any]:
    """Return the gradients of the elements and of the slopes, for one rank's blocks.

    Where an element is negative or 0, its gradient is ``dy`` times the slope. The gradient of a slope is summed over
    all dims but ``dim``.

    Args:
        dy: the gradient of the result.
        operands: the elements, and the slopes ``[n]`` or ``[1]``.
        _y: the result; not used.
        dim: the dimension that has one slope per entry.
    """
    x, slope = operands
    uses_slope = x <= 0
    return (
        np.where(uses_slope, dy * _reshape_along(slope, x.ndim, dim), dy),
        _sum_per_channel(np.where(uses_slope, dy * x, np.zeros((), dy.dtype)), slope, dim),
    )


_prelu_op = Op(
    "prelu",
    _channel_rule,
    lambda x, slope, dim: np.where(x > 0, x, x * _reshape_along(slope, x.ndim, dim)),
    _prelu_vjp,
    dtype=lambda x, slope, dim: check_ordered(promote_types(x, slope), "prelu"),
)


@operator(_prelu_op)
def prelu(x: Tensor, slope: Operand, dim: int = 1, *, axis: int = 1) -> Tensor:
    """Multiply negative elements by the slope of their channel.

    The result has the type to which both operands are promoted.

    Args:
        x: ``[n, c, ...]``, real.
        slope: ``[c]``, or ``[1]`` for the same slope everywhere.
        dim: the dimension; negative numbers count from the end. It may be split.
        axis: another name of ``dim``.

    Returns:
        A tensor in the shape of ``x``, in the type to which both operands are promoted.

    Raises:
        RuleError: If the dimension is out of range, ``slope`` does not have one dimension of its size or of size 1,
            or an operand is complex.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.prelu(m - 2.0, [0.5, 0.1]).full().tolist()
    [[1.0, -0.1], [0.0, 2.0]]
    """
    return _prelu_op(*convert_to_one_type("prelu", x, slope), dim=normalise_dim(dim, x.ndim))


def _dropout_scale(context: Context, x: Array, rate: float, seed: int) -> Array:
    """Return 0 for dropped elements and ``1 / (1 - rate)`` for others, so that the mean stays.

    The choice follows from the global index of each element, so it does not depend on the layout.
    """
    keep = uniform_block(context.index(0), context.bound.shapes[0], np.float32, seed) >= rate
    array: Array = keep * x.dtype.type(1 / (1 - rate))
    return array


_dropout_op = Op(
    "dropout",
    Rule.parse("... -> ...", linear="each"),
    lambda context, x, rate, seed: np.asarray(x * _dropout_scale(context, x, rate, seed), x.dtype),
    lambda context, dy, xs, _y, rate, seed: (dy * _dropout_scale(context, xs[0], rate, seed),),
    contextual=True,
    varying=("seed",),
)


@operator(_dropout_op)
def dropout(x: Tensor, rate: float, seed: int) -> Tensor:
    """Set random elements to zero and scale the others up; integers become floats.

    The dropped elements follow from the seed and their global indices, so all layouts and rank counts drop the same
    elements.

    Args:
        x: the tensor.
        rate: share of elements to drop, ``0 <= rate < 1``; the others are divided by ``1 - rate``.
        seed: seed of the random choice; use another one for every call.

    Returns:
        A tensor in the shape and layout of ``x``.

    Raises:
        InputError: If the rate is outside of [0, 1).

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> bool((ops.dropout(m, 0.5, seed=1).full() == ops.dropout(m, 0.5, seed=1).full()).all())
    True
    """
    if not 0 <= rate < 1:
        raise InputError(f"dropout: rate must be from 0 to less than 1, got {rate!r}")
    x = x if x.dtype.kind in "fcV" else cast(x, fraction_type(x.dtype))
    return identity(x) if rate == 0 else _dropout_op(x, rate=float(rate), seed=int(seed))
