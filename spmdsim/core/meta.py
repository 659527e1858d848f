"""What is known of a tensor without its data: layout, shape, element type. Interned, so equal means identical.

Next: :mod:`spmdsim.core.tensor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from spmdsim.core import elements
from spmdsim.core.layout import Layout
from spmdsim.notation.layout_facts import short_dtype

_ALIVE: WeakValueDictionary[Any, Meta] = WeakValueDictionary()
"""All that some tensor or recipe has: two of equal values would not be one object otherwise."""


class Meta:
    """Layout, global shape and dtype of a tensor; ``held`` is the type of its arrays, mostly ``dtype``.

    Equal values are one object: operators look their recipe up by identity, which costs nothing.
    """

    __slots__ = ("__weakref__", "dtype", "held", "layout", "shape")

    def __init__(self, layout: Layout, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.layout, self.shape, self.dtype = layout, shape, dtype
        self.held = elements.types.held(layout, dtype)

    @staticmethod
    def of(layout: Layout, shape: Sequence[int], dtype: Any) -> Meta:
        """The one Meta with these values; LayoutError if the layout is for another number of dims."""
        if type(shape) is tuple and isinstance(dtype, np.dtype):
            return interned(layout, shape, dtype)
        return interned(layout, tuple(shape), np.dtype(dtype))

    def with_layout(self, layout: Layout) -> Meta:
        """The same tensor laid out differently."""
        return Meta.of(layout, self.shape, self.dtype)

    def __repr__(self) -> str:
        sizes = ",".join(map(str, self.shape))
        return f"{short_dtype(self.dtype)}[{sizes}] {self.layout.short()}"


@lru_cache(maxsize=4096)
def interned(layout: Layout, shape: tuple[int, ...], dtype: np.dtype) -> Meta:
    """The one Meta with these values; the latest are found at once."""
    shape = tuple([int(n) for n in shape])  # numpy's integers are equal to Python's, and would stay
    meta = _ALIVE.get((layout, shape, dtype))
    if meta is None:
        layout.check_shape(shape)
        meta = _ALIVE[layout, shape, dtype] = Meta(layout, shape, dtype)
    return meta
