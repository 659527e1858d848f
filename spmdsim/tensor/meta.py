"""What is known of a tensor without its data: layout, shape, element type. Interned, so equal means identical."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from spmdsim.bounded import Bounded
from spmdsim.core import Layout
from spmdsim.layout.element_type import held_type

_Key = tuple[Layout, tuple[int, ...], np.dtype]
_METAS: Bounded[_Key, Meta] = Bounded()
"""The latest ones, found at once."""
_ALIVE: WeakValueDictionary[_Key, Meta] = WeakValueDictionary()
"""All that some tensor or recipe has: two of equal values would not be one object otherwise."""


class Meta:
    """Layout, global shape and dtype of a tensor.

    Equal values are one object: operators look their recipe up by identity, which costs nothing.

    Attributes:
        held: the type of the arrays, see :func:`~spmdsim.layout.element_type.held_type`; but for pending values of
            16-bit types it is ``dtype``.
    """

    __slots__ = ("__weakref__", "dtype", "held", "layout", "shape")

    layout: Layout
    shape: tuple[int, ...]
    dtype: np.dtype
    held: np.dtype

    @staticmethod
    def of(layout: Layout, shape: Sequence[int], dtype: Any) -> Meta:
        """The one Meta with these values.

        Raises:
            LayoutError: the layout is for another number of dims.
        """
        if type(shape) is tuple and isinstance(dtype, np.dtype):
            known = _METAS.get((layout, shape, dtype))
            if known is not None:
                return known
        key = (layout, tuple(int(n) for n in shape), np.dtype(dtype))
        meta = _ALIVE.get(key)
        if meta is None:
            layout.check_shape(key[1])
            meta = Meta.__new__(Meta)
            meta.layout, meta.shape, meta.dtype = key
            meta.held = held_type(layout, meta.dtype)
            _ALIVE[key] = meta
        _METAS[key] = meta
        return meta

    def with_layout(self, layout: Layout) -> Meta:
        """The same tensor laid out differently."""
        return Meta.of(layout, self.shape, self.dtype)

    def __repr__(self) -> str:
        sizes = ",".join(map(str, self.shape))
        return f"{short_dtype(self.dtype)}[{sizes}] {self.layout.short()}"


def short_dtype(dtype: np.dtype) -> str:
    """``f32``, ``i64``, ``bf16``: the element type in few letters.

    >>> short_dtype(np.dtype("float32")), short_dtype(np.dtype("bool"))
    ('f32', 'bool')
    """
    if dtype.name == "bfloat16":
        return "bf16"
    return f"{dtype.kind}{dtype.itemsize * 8}" if dtype.kind in "fiuc" else dtype.name
