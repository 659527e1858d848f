"""``spmdsim.array_api`` with every created tensor split over three ranks in lock step: what the standard's suite is given.

Which dim is split follows from the shape, so that all dims have their turn; uneven pieces and empty ones are common.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import spmdsim.array_api as spmd
from spmdsim import Layout, LockStep, Mesh

WORLD = LockStep(3)
MESH = Mesh((3,), ("x",))

__array_api_version__ = spmd.__array_api_version__


def split(shape: tuple[int, ...]) -> Layout:
    """A layout that splits one dim of a shape, the first of those that are longest or the last, by turns."""
    if not shape:
        return MESH()
    dim = sum(shape) % len(shape)
    return MESH(*["x" if d == dim else None for d in range(len(shape))])


def _of_shape(name: str) -> Callable[..., Any]:
    make = getattr(spmd, name)

    @wraps(make)
    def created(shape: Any, *args: Any, **options: Any) -> Any:
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        return make(shape, *args, layout=split(sizes), world=WORLD, **options)

    return created


zeros, ones, empty, full = map(_of_shape, ("zeros", "ones", "empty", "full"))


def _of_values(name: str) -> Callable[..., Any]:
    make = getattr(spmd, name)

    @wraps(make)
    def created(*args: Any, **options: Any) -> Any:
        whole = make(*args, world=WORLD, **options)
        return whole if hasattr(args[0], "layout") else whole.to(split(whole.shape))

    return created


arange, linspace, eye, asarray, from_dlpack = map(
    _of_values, ("arange", "linspace", "eye", "asarray", "from_dlpack")
)


def __getattr__(name: str) -> Any:
    return getattr(spmd, name)
