"""How MindSpore's tensors print: ``repr`` as ``Tensor(shape=[2], dtype=Float32, value= [...])``, ``str`` as numpy's arrays.

Semantics: ``mindspore/core/ir/tensor.cc``. Of a tensor of which ranks hold parts, a rank shows those that it has, as there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdsim.dialects.printed import ends, known_values, nested
from spmdsim.tensor import Tensor

THRESHOLD, EDGEITEMS = 1000, 3
#: Numbers of a type: their width and the digits behind the point.
_FLOATS = {"f2": (11, 4), "f4": (15, 8), "f8": (15, 8)}


def type_name(dtype: np.dtype) -> str:
    """``Float32``, ``Int64``, ``UInt8``, ``Bool``."""
    name = dtype.name.capitalize()
    return f"UI{name[2:]}" if dtype.kind == "u" else name


def shown(x: Any) -> str:
    """A tensor or a whole array as MindSpore shows it."""
    values, which = known_values(x) if isinstance(x, Tensor) else (np.asarray(x), "")
    array, cut = ends(values, EDGEITEMS, THRESHOLD)
    kind, size = array.dtype.str[1:], max((len(str(value)) for value in array.flat), default=0)

    def written(value: Any) -> str:
        if not values.ndim:
            return f"{value:g}" if kind in _FLOATS else f"{value}"
        if kind in _FLOATS:
            width, digits = _FLOATS[kind]
            return f"{value:{width}.{digits}e}"
        return f"{value}".rjust(5 if kind == "b1" else size)

    text = nested(array, cut, 0, written, lambda _indent: max(1, array.size), EDGEITEMS)
    apart = "\n" if values.ndim > 1 else " "
    told = f"Tensor(shape={list(np.shape(x))}, dtype={type_name(values.dtype)}, value={apart}{text}"
    return f"{told}, {which})" if which else f"{told})"


def printed(x: Tensor) -> str:
    """What ``print`` shows: the array, and which part of the tensor it is, if it is not all."""
    values, which = known_values(x)
    return f"{values} ({which} of {x.shape})" if which else str(values)
