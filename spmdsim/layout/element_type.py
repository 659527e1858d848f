"""Element types by their names, those that numpy learns from a package included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spmdsim.errors import InputError

if TYPE_CHECKING:
    import numpy as np

#: Short names, and the ones that packages know.
SHORT = {"bf16": "bfloat16"}


def element_type(dtype: Any) -> np.dtype:
    """What numpy takes for an element type, or the name of one.

    Raises:
        InputError: no type is called so.

    >>> element_type("float32"), element_type("bfloat16").itemsize
    (dtype('float32'), 2)
    """
    import numpy as np

    try:
        return np.dtype(dtype)
    except (TypeError, ValueError):
        found = _of_package(SHORT.get(dtype, dtype)) if isinstance(dtype, str) else None
    if found is None:
        raise InputError(f"no element type is called {dtype!r}; float32, int64 and bfloat16 are some")
    return np.dtype(found)


def _of_package(name: str) -> Any:
    try:
        import ml_dtypes
    except ImportError:
        return None
    found = getattr(ml_dtypes, name, None)
    return found if isinstance(found, type) else None
