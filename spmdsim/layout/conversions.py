"""Which conversions of element types commute with a sum.

A tensor whose sum is pending may be converted part by part only if ``cast(a + b) == cast(a) + cast(b)``:

- to the same type: nothing is converted;
- between integers, to a type that is not wider: both sums wrap around, modulo a power of two that divides the
  other. To a wider one they do not: 100 + 100 is -56 in int8, and 200 where each part became an int16 before;
- between floating and complex types, to one that represents every value of the first: the sum is then rounded less,
  never more, and what fits still fits.

All others lose something of each part that the whole has: fractions, range, or whether it is zero.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

#: Digits and exponent bits of a floating type: (nmant, nexp).
_Width = tuple[int, int]


@lru_cache(maxsize=1024)
def additive(src: np.dtype, dst: np.dtype) -> bool:
    """Whether converting each part of a sum is converting the sum.

    >>> [additive(np.dtype(a), np.dtype(b)) for a, b in (("f4", "f8"), ("f8", "f4"), ("i8", "i4"), ("i4", "f8"))]
    [True, False, True, False]
    >>> [additive(np.dtype(a), np.dtype(b)) for a, b in (("c8", "c16"), ("f4", "c8"), ("c8", "f4"))]
    [True, True, False]
    >>> [additive(np.dtype(a), np.dtype(b)) for a, b in (("i4", "u4"), ("u1", "i1"), ("i2", "u4"))]
    [True, True, False]
    """
    if src == dst:
        return True
    if src.kind in "iu" and dst.kind in "iu":
        return dst.itemsize <= src.itemsize
    if (src.kind == "c" and dst.kind != "c") or not (src.kind in "fcV" and dst.kind in "fcV"):
        return False
    return all(a <= b for a, b in zip(_width(src), _width(dst)))


def _width(dtype: np.dtype) -> _Width:
    if dtype.kind == "V":
        import ml_dtypes

        finfo: Any = ml_dtypes.finfo
        limits = finfo(dtype)
    else:
        limits = np.finfo(dtype)
    return int(limits.nmant), int(limits.nexp)
