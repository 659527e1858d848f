"""The error function, and the Gaussian error linear unit by it or by the usual approximation.

numpy has no error function. Here it is its Taylor series around the nearest of a row of points, of which the slopes follow
from Hermite's recurrence: accurate to the type's last places everywhere, with one look-up per term.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from spmdsim.core import PASSES, Rule
from spmdsim.core.operator import Op
from spmdsim.errors import InputError
from spmdsim.ops.declare import conj, derived, unary
from spmdsim.ops.elementwise import stable_sigmoid
from spmdsim.ops.operators import operator
from spmdsim.tensor import Tensor
from spmdsim.tensor.element_types import fractional

#: Points per unit, up to where the function is 1 in float64, and terms: the next one is below 1e-17.
_DENSITY, _END, _TERMS = 16, 6, 10
_SLOPE = 2 / math.sqrt(math.pi)


@lru_cache(maxsize=4)
def _series(dtype: np.dtype) -> np.ndarray:
    """The coefficients around every point, ``[term, point]``, the constant ones first."""
    points = np.arange(_DENSITY * _END + 1) / _DENSITY
    bell = _SLOPE * np.exp(-points * points)
    hermite, before = np.ones_like(points), np.zeros_like(points)
    rows = [np.array([math.erf(x) for x in points])]
    for order in range(1, _TERMS + 1):
        rows.append(bell * hermite / math.factorial(order) * (-1) ** (order - 1))
        hermite, before = 2 * points * hermite - 2 * (order - 1) * before, hermite
    return np.stack(rows).astype(dtype)


def _erf(x: np.ndarray) -> np.ndarray:
    kind = x.dtype if x.dtype.kind in "fV" else fractional(x.dtype)
    rows = _series(np.result_type(kind, np.float32))
    size = np.minimum(np.abs(x).astype(rows.dtype, copy=False), _END)  # nan stays nan
    near = np.nan_to_num(np.rint(size * _DENSITY)).astype(np.intp)
    step = size - near.astype(rows.dtype) / _DENSITY
    total = rows[_TERMS][near]
    for row in rows[_TERMS - 1 :: -1]:
        total = total * step + row[near]
    array: np.ndarray = np.copysign(total, x).astype(kind, copy=False)
    return array


def _bell(x: np.ndarray) -> np.ndarray:
    array: np.ndarray = np.asarray(_SLOPE, x.dtype) * np.exp(-x * x)
    return array


erf = unary(
    "erf",
    _erf,
    lambda x, _y: _bell(x),
    fractions=True,
    real=True,
    work=PASSES,
    says="2 / sqrt(pi) * integral of exp(-t**2) from 0 to x",
)

_SCALE = math.sqrt(2 / math.pi)


def _by_tanh(x: np.ndarray) -> np.ndarray:
    """The tanh form of GELU (Hendrycks and Gimpel, 2016)."""
    half, cubic = np.asarray(0.5, x.dtype), np.asarray(0.044715, x.dtype)
    array: np.ndarray = half * x * (1 + np.tanh(np.asarray(_SCALE, x.dtype) * (x + cubic * x * x * x)))
    return array


def _slope_by_tanh(x: np.ndarray) -> np.ndarray:
    half, cubic, scale = (np.asarray(v, x.dtype) for v in (0.5, 0.044715, _SCALE))
    t = np.tanh(scale * (x + cubic * x * x * x))
    array: np.ndarray = half * (1 + t) + half * x * (1 - t * t) * scale * (1 + 3 * cubic * x * x)
    return array


def _share(x: np.ndarray) -> np.ndarray:
    """The share of normally distributed numbers that are less than ``x``."""
    array: np.ndarray = np.asarray(0.5, x.dtype) * (1 + _erf(x * np.asarray(math.sqrt(0.5), x.dtype)))
    return array


def _exact(x: np.ndarray) -> np.ndarray:
    array: np.ndarray = x * _share(x)
    return array


def _slope_exact(x: np.ndarray) -> np.ndarray:
    root = np.asarray(math.sqrt(0.5), x.dtype)
    array: np.ndarray = _share(x) + x * root * np.asarray(0.5, x.dtype) * _bell(x * root)
    return array


def _by_sigmoid(x: np.ndarray) -> np.ndarray:
    array: np.ndarray = x * stable_sigmoid(np.asarray(1.702, x.dtype) * x)
    return array


def _slope_by_sigmoid(x: np.ndarray) -> np.ndarray:
    scaled = np.asarray(1.702, x.dtype) * x
    y = stable_sigmoid(scaled)
    array: np.ndarray = y + scaled * y * (1 - y)
    return array


def _fractions(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """The function, given fractions where it is given whole numbers."""
    return lambda x: function(x.astype(fractional(x.dtype), copy=False))


#: By what ``approximate`` is: the function, its slope, its result type.
_FORMS = {
    "tanh": (_fractions(_by_tanh), _slope_by_tanh, derived("gelu", _fractions(_by_tanh))),
    "none": (_fractions(_exact), _slope_exact, derived("gelu", _fractions(_exact), real=True)),
    "sigmoid": (
        _fractions(_by_sigmoid),
        _slope_by_sigmoid,
        derived("gelu", _fractions(_by_sigmoid), real=True),
    ),
}


def _local(x: np.ndarray, approximate: str = "tanh") -> np.ndarray:
    return _FORMS[approximate][0](x)


def _vjp(
    dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any, approximate: str = "tanh"
) -> tuple[np.ndarray]:
    return (dy * conj(_FORMS[approximate][1](operands[0])),)


def _dtype(x: np.dtype, approximate: str = "tanh") -> np.dtype:
    return _FORMS[approximate][2](x)


_gelu_op = Op("gelu", Rule.parse("... -> ...", work=PASSES, backward=3), _local, _vjp, dtype=_dtype)


@operator(_gelu_op)
def gelu(x: Tensor, approximate: str | bool = "tanh") -> Tensor:
    """Gaussian error linear unit, element by element.

    Args:
        x: the operand; whole numbers become fractions.
        approximate: ``"tanh"`` (or True): ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``; ``"none"`` (or False):
            ``x / 2 * (1 + erf(x / sqrt(2)))``, which is at most 5e-4 away. The words are torch's, the truth values JAX's and
            Paddle's. ``"sigmoid"``: ``x * sigmoid(1.702 * x)``, at most 0.021 away (MindSpore's FastGeLU, OneFlow's quick_gelu).

    Raises:
        InputError: another word.

    >>> import numpy as np
    >>> from spmdsim import LockStep, Mesh, Tensor
    >>> from spmdsim.ops import gelu
    >>> world = LockStep(2)
    >>> x = Tensor.from_global(np.array([-1.0, 2.0]), Mesh((2,), ("dp",))("dp"), world)
    >>> gelu(x).full().round(4).tolist(), gelu(x, approximate="none").full().round(4).tolist()
    ([-0.1588, 1.9546], [-0.1587, 1.9545])
    """
    form = ("tanh" if approximate else "none") if isinstance(approximate, bool) else approximate
    if not isinstance(form, str) or form not in _FORMS:
        raise InputError(
            f"approximate is 'tanh', 'none' (also True and False) or 'sigmoid', not {approximate!r}"
        )
    return _gelu_op(x) if form == "tanh" else _gelu_op(x, approximate=form)
