"""Values as JSON has them, between the judge and a student's process; nothing that is read is executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spmdsim.collectives.foreign import Other
from spmdsim.core import Layout, Mesh
from spmdsim.core.cuts import FrozenMapping

#: Levels of lists in lists that are read, and elements of all of them together.
MOST_LEVELS, MOST_ELEMENTS = 20, 1 << 20
#: Characters of what is said of something else.
MOST_WORDS = 1000
#: Kinds of elements that arrays may have.
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

#: Encodes further values: a list ``[kind, content]``, or None for values that it does not know.
Special = Callable[[Any], Any]


def encode(value: Any, levels: int = MOST_LEVELS, special: Special | None = None) -> Any:
    """Return a value as JSON has it; of anything that is no plain data, mesh or layout its ``repr``.

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
    """Return the value of :func:`encode`'s data, which anybody may have written.

    Args:
        data: the data.
        special: by further kinds, what reads their content.

    Raises:
        ValueError, TypeError, SpmdError: If it is none.
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
    (words,) = content
    return np.dtype(str(words)) if kind == "dtype" else Other(str(words))
