"""Parameters whose arrays nobody else has any more: what is computed next may take their place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from sys import getrefcount
from types import SimpleNamespace
from typing import Any

import numpy as np

from spmdsim.worlds.pool import surroundings


def _holders(parameter: Any) -> tuple[int, ...]:
    """The references to a parameter's tensor, to the list of its arrays, to the array, and to the buffer it lies in."""
    tensor = parameter.tensor
    held = tensor.held
    array = held[0]
    base = array.base
    in_base = 0 if base is None else getrefcount(base)
    return getrefcount(tensor), getrefcount(held), getrefcount(array), in_base


@cache
def _lonely() -> tuple[int, ...]:
    """What :func:`_holders` says where nobody else refers to any of them; it depends on Python."""
    array = np.ndarray((1,), np.uint8, np.empty(1, np.uint8))
    kept = [array.base]  # as the pool does
    parameter = SimpleNamespace(tensor=SimpleNamespace(held=[array]))
    del array
    return (*_holders(parameter), len(kept))


def sole(parameters: Sequence[Any], asked: set[int]) -> set[int]:
    """The parameters, among those asked for, whose arrays nobody else refers to."""
    lonely, alone = _lonely(), set()
    for parameter in parameters:
        if id(parameter) in asked:
            holders = _holders(parameter)
            few = holders == lonely or all(held <= most for held, most in zip(holders, lonely))
            # Windows that come later would be views of what has room around it.
            if few and surroundings(parameter.tensor.held[0]) is None:
                alone.add(id(parameter))
    return alone
