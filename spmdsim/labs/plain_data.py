"""Encode values as JSON and decode them, between the judge and a student's process; data is never executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spmdsim.collectives.foreign import Other
from spmdsim.core import Layout, Mesh
from spmdsim.core.cuts import FrozenMapping

#: Largest depth of nested lists, and largest number of elements of one list or array.
MOST_LEVELS, MOST_ELEMENTS = 20, 1 << 20
#: Largest number of characters of the ``repr`` of any other value.
MOST_WORDS = 1000
#: NumPy kinds of elements that arrays may have.
ELEMENTS = "biuf"
_PLAIN = (bool, int, float, str, type(None))
_LISTS: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "list": list, "set": set, "factors": FrozenMapping}
_NAMES: dict[type, str] = {
    tuple: "tuple",
    list: "list",
    set: "set",
    frozenset: "set",
    FrozenMapping: "factors",
}

#: Function that encodes further values as ``[kind, content]``, and returns None for all others.
Special = Callable[[Any], Any]


def encode(value: Any, levels: int = MOST_LEVELS, special: Special | None = None) -> Any:
    """Encode a value as data that JSON can write.

    - Numbers, texts and None stay; NumPy's numbers become Python's.
    - Any other supported value becomes ``[kind, content]``, such as ``["list", items]``.
    - All other values become ``["other", [repr]]`` with at most :data:`MOST_WORDS` (1,000) characters of their ``repr``.
      These are values of other types, collections and arrays of more than :data:`MOST_ELEMENTS` elements, and lists deeper
      than ``levels``.

    Args:
        value: numbers, texts, arrays, lists and similar, meshes, layouts, slices or dtypes.
        levels: largest depth of nested lists.
        special: function that is tried first for all values except numbers, texts and None. It returns the data, or
            None for values that it does not know.

    >>> encode((1, [None, "x"]))
    ['tuple', [1, ['list', [None, 'x']]]]
    """
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in _PLAIN:
        return value
    if special is not None and (data := special(value)) is not None:
        return data
    if type(value) is np.ndarray and value.dtype.kind in ELEMENTS and value.size <= MOST_ELEMENTS:
        return ["array", [value.dtype.str, list(value.shape), value.reshape(-1).tolist()]]
    if levels and type(value) in _NAMES and len(value) <= MOST_ELEMENTS:
        return [_NAMES[type(value)], [encode(each, levels - 1, special) for each in value]]
    if levels and type(value) is dict and len(value) <= MOST_ELEMENTS:
        return ["dict", [[encode(each, levels - 1, special) for each in pair] for pair in value.items()]]
    if type(value) is Mesh:
        return [
            "mesh",
            [list(value.shape), list(value.axes), None if value.ranks is None else list(value.ranks)],
        ]
    if type(value) is Layout:
        return ["layout", [encode(value.mesh), encode(value.dims), encode(value.partial)]]
    if isinstance(value, np.dtype):
        return ["dtype", [value.name]]
    if type(value) is slice:
        return ["slice", [encode(each, levels - 1) for each in (value.start, value.stop, value.step)]]
    return ["other", [repr(value)[:MOST_WORDS]]]


def decode(data: Any, special: Mapping[str, Callable[..., Any]] | None = None) -> Any:
    """Return the value that :func:`encode` encoded as ``data``; an untrusted process may have written it.

    If the value was encoded as its ``repr``, the result is an ``Other``, an object with this ``repr``. So is a kind that
    is not known, if its content is one text.

    Args:
        data: the data.
        special: functions that decode the content of further kinds, by kind; None for none. They have precedence.

    Raises:
        ValueError, TypeError, SpmdError: If the data is invalid. Very deep data raises RecursionError.

    >>> decode(["tuple", [1, ["list", [None, "x"]]]])
    (1, [None, 'x'])
    """
    if type(data) in _PLAIN:
        return data
    kind, content = data
    if special is not None and kind in special:
        return special[kind](*content)
    if kind in _LISTS:
        return _LISTS[kind](decode(each, special) for each in content)
    if kind == "dict":
        return {decode(key, special): decode(each, special) for key, each in content}
    if kind == "array":
        dtype, shape, elements = content
        if np.dtype(dtype).kind not in ELEMENTS:
            raise ValueError(f"an array of {dtype}")
        return np.array(elements, dtype).reshape(shape)
    if kind == "mesh":
        shape, axes, ranks = content
        return Mesh(tuple(shape), tuple(axes), None if ranks is None else tuple(ranks))
    if kind == "layout":
        mesh, dims, partial = map(decode, content)
        return Layout(mesh, dims, partial)
    if kind == "slice":
        return slice(*map(decode, content))
    (text,) = content
    return np.dtype(str(text)) if kind == "dtype" else Other(str(text))
