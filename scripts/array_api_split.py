"""Offer ``spmdsim.array_api`` to the array API suite, with each created tensor split over three ranks in lock step.

The shape determines which dim is split, so that every dim is split in some test. Uneven and empty shards are common.
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


def choose_layout(shape: tuple[int, ...]) -> Layout:
    """Return a layout that splits one dim of a shape: dim number (sum of sizes) modulo (number of dims)."""
    if not shape:
        return MESH()
    dim = sum(shape) % len(shape)
    return MESH(*["x" if d == dim else None for d in range(len(shape))])


def _of_shape(name: str) -> Callable[..., Any]:
    """Return a creation function that takes a shape, with a split layout."""
    make = getattr(spmd, name)

    @wraps(make)
    def created(shape: Any, *args: Any, **options: Any) -> Any:
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        return make(shape, *args, layout=choose_layout(sizes), world=WORLD, **options)

    return created


zeros, ones, empty, full = map(_of_shape, ("zeros", "ones", "empty", "full"))


def _of_values(name: str) -> Callable[..., Any]:
    """Return a creation function that takes values and splits its result; a tensor keeps its own layout."""
    make = getattr(spmd, name)

    @wraps(make)
    def created(*args: Any, **options: Any) -> Any:
        replicated = make(*args, world=WORLD, **options)
        return replicated if hasattr(args[0], "layout") else replicated.to(choose_layout(replicated.shape))

    return created


arange, linspace, eye, asarray, from_dlpack = map(
    _of_values, ("arange", "linspace", "eye", "asarray", "from_dlpack")
)


def __getattr__(name: str) -> Any:
    return getattr(spmd, name)
