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

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from spmdsim.core.rule import Rule

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


@lru_cache(maxsize=4096)
def typed_rule(rule: Rule, operands: tuple[np.dtype, ...], result: np.dtype) -> Rule:
    """A rule for elements of these types.

    A pending value passes only where its operand's parts may be converted to the result's type before they are
    reduced (:func:`additive`). Truth values have no sum: what a product of them, or a lookup, leaves pending is
    ``any``, which such operators pass on, too.

    >>> rule = Rule.parse("m k, k n -> m n", linear="each")
    >>> typed_rule(rule, (np.dtype("i4"), np.dtype("f8")), np.dtype("f8")).linear
    (frozenset({1}),)
    >>> typed_rule(rule, (np.dtype("?"), np.dtype("?")), np.dtype("?")).reduction("k")
    'any'
    """
    linear = tuple(group for group in rule.linear if all(additive(operands[i], result) for i in group))
    if result.kind != "b":
        return replace(rule, linear=linear)
    ops = {factor: rule.reduction(factor) for factor in rule.reduced}
    reductions = tuple(sorted((f, "any" if op == "sum" else op) for f, op in ops.items()))
    passes = frozenset("any" if op == "sum" else op for op in rule.passes) - {"avg"}
    return replace(rule, linear=linear, reductions=reductions, passes=passes)
