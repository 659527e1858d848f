"""Who else has a tensor at hand, or its array: what nobody has may be overwritten."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from sys import getrefcount
from types import SimpleNamespace
from typing import Any

import numpy as np

from spmdsim.worlds.pool import pool


def _holders(tensors: Sequence[Any], k: int) -> tuple[int, int, int, int]:
    """The references to one of some tensors, to the list of its arrays, to the array, and to the buffer it lies in."""
    tensor = tensors[k]
    held = tensor.held
    array = held[0]
    base = array.base
    in_base = 0 if base is None else getrefcount(base)
    return getrefcount(tensor), getrefcount(held), getrefcount(array), in_base


@cache
def _lonely() -> tuple[int, int, int, int]:
    """What :func:`_holders` says of a parameter's where nobody else refers to any of them; it depends on Python."""
    array = np.ndarray((1,), np.uint8, np.empty(1, np.uint8))
    _kept = array.base  # as the pool does
    parameter = SimpleNamespace(tensor=SimpleNamespace(held=[array]))
    del array
    return _holders([parameter.tensor], 0)


def is_sole(tensors: Sequence[Any], k: int) -> bool:
    """Whether one of some tensors, which somebody has under one name, has one array, to which nobody else refers."""
    most, held_most, array_most, base_most = _lonely()
    if len(tensors[k].held) != 1 or not isinstance(tensors[k].held[0], np.ndarray):
        return False
    tensor, held, array, base = _holders(tensors, k)
    if tensor > most or held > held_most or array > array_most or base > base_most:
        return False
    # Under a view lies what somebody else may have, who counts as the pool does; or windows that come later.
    under = tensors[k].held[0].base
    return under is None or (isinstance(under, np.ndarray) and pool().keeps(under))
