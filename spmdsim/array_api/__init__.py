"""The array API standard's namespace (2024.12) over global tensors: ``x.__array_namespace__()``.

This module has a table of names. Most functions are operators of :mod:`spmdsim.ops`. Functions that create tensors are
in :mod:`spmdsim.arrays.creation`; they also take ``layout=`` and ``world=``.

>>> import spmdsim.array_api as xp
>>> from spmdsim import Mesh
>>> x = xp.arange(6, dtype=xp.float32, layout=Mesh((3,), ("x",))("x"))
>>> float(xp.sum(xp.pow(x, 2))), x.__array_namespace__() is xp
(55.0, True)

Source: Python array API standard, version 2024.12, https://data-apis.org/array-api/2024.12/
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spmdsim.array_api.functions import NAMES as _DTYPES
from spmdsim.lazy_imports import lazy_names, list_public_names

__array_api_version__ = "2024.12"

#: Names of the standard that are spelled otherwise in :mod:`spmdsim.ops`.
SPELLED = {
    "abs": "absolute",
    **{f"a{name}": f"arc{name}" for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh")},
    "atan2": "arctan2",
    "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
    "conj": "conjugate",
    "pow": "power",
}

_SAME = """
    acos acosh add all any argmax argmin argsort asin asinh atan atan2 atanh bitwise_and bitwise_invert
    bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor abs broadcast_arrays broadcast_to ceil clip concat conj
    copysign cos cosh count_nonzero cumulative_prod cumulative_sum diff divide equal exp expand_dims expm1 flip floor
    floor_divide greater greater_equal hypot imag isfinite isin isinf isnan less less_equal log log10 log1p log2
    logaddexp logical_and logical_not logical_or logical_xor matmul matrix_transpose max maximum mean meshgrid min
    minimum moveaxis multiply negative nextafter nonzero not_equal positive pow prod real reciprocal remainder repeat
    reshape roll round searchsorted sign signbit sin sinh sort sqrt square squeeze stack std subtract sum take
    take_along_axis tan tanh tensordot tile tril triu trunc unique_all unique_counts unique_inverse unique_values unstack
    var vecdot where
"""
_CREATION = "arange empty empty_like eye full full_like linspace ones ones_like zeros zeros_like"
_OWN = "astype can_cast finfo iinfo isdtype permute_dims result_type __array_namespace_info__"

_HOMES = {
    ".arrays.ops": " ".join(f"{name}={SPELLED.get(name, name)}" for name in _SAME.split()),
    ".arrays.creation": _CREATION,
    ".arrays.conversion": "asarray from_dlpack",
    "functions": _OWN,
    ".": "linalg fft",  # the standard's extensions
}
_VALUES: dict[str, Any] = {
    **{name: np.dtype(name) for name in _DTYPES},
    "e": math.e,
    "inf": math.inf,
    "nan": math.nan,
    "newaxis": None,
    "pi": math.pi,
}


_find = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    value = _VALUES[name] if name in _VALUES else _find(name)
    if getattr(value, "others", None):
        value = value.with_all_names()  # for readers of signatures: the standard's names
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*list_public_names(_HOMES), *_VALUES, "__array_api_version__"])


__all__ = [*(name for name in list_public_names(_HOMES) if name not in ("linalg", "fft")), *_VALUES]
