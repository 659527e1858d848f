"""``mindspore.runtime``: how much memory a rank may take.

What a rank holds is counted in the largest piece that any rank has, so that all ranks say the same: values of parameters, the
inputs of networks, results of operators, all gradients and the state of optimisers, as long as anything refers to them. An
optimiser's new values take the places of the old ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any
from weakref import finalize

import numpy as np

from spmdsim.dialects.missing import refusal
from spmdsim.errors import InputError, SpmdError, UsageTypeError

GB = 2**30
#: What is MindSpore's default, and no limit here.
UNLIMITED = "1024GB"
_SIZE = re.compile(r"(\d+\.?\d*|0?\.\d+)GB")
#: The limit in bytes, if there is one, and what is held.
_limit: list[int | None] = [None]
_held, _peak = [0], [0]
#: The arrays that are counted, by identity.
_counted: set[int] = set()


class OutOfMemory(SpmdError, RuntimeError):
    """A rank would hold more than it may."""


class Room:
    """What is counted as long as it lives, whatever arrays take turns in it."""


def set_memory(
    init_size: str = "2GB", increase_size: str = "2GB", max_size: str = UNLIMITED, optimize_level: str = "O0",
    huge_page_reserve_size: str = "0GB",
) -> None:  # fmt: skip
    """Limit what a rank holds to ``max_size``, such as ``"28GB"``; the other arguments are checked, and change nothing.

    A size that is no str is a TypeError, another text, or another level than ``O0`` or ``O1``, a ValueError.
    """
    sizes = dict(init_size=init_size, increase_size=increase_size, max_size=max_size)
    for name, value in {**sizes, "huge_page_reserve_size": huge_page_reserve_size}.items():
        if not isinstance(value, str):
            raise UsageTypeError(f"{name} is a str such as '2GB', not {value!r}")
        if not _SIZE.fullmatch(value) or (name in sizes and not float(value[:-2])):
            raise InputError(f"{name} is a size such as '2GB' or '0.5GB', not {value!r}")
    if optimize_level not in ("O0", "O1"):
        raise InputError(f"optimize_level is 'O0' or 'O1', not {optimize_level!r}")
    _limit[0] = None if max_size == UNLIMITED else int(float(max_size[:-2]) * GB)


def counts() -> bool:
    """Whether there is a limit."""
    return _limit[0] is not None


def reserve(array: Any, shape: Sequence[int], dtype: np.dtype, what: str) -> None:
    """Count a rank's array, which is of this shape on the rank that holds most, as long as anybody refers to it.

    A RuntimeError if ranks would hold more than they may.
    """
    if _limit[0] is None or id(array) in _counted:
        return
    size = math.prod(shape) * dtype.itemsize
    if _held[0] + size > _limit[0]:
        raise OutOfMemory(
            f"out of memory: max_size is {_limit[0]:,} bytes per rank, of which {_held[0]:,} are held and {size:,} more are "
            f"needed for {what}; nearest: a larger max_size, or more cuts"
        )
    _held[0] += size
    _peak[0] = max(_peak[0], _held[0])
    _counted.add(id(array))
    finalize(array, _released, id(array), size)


def _released(array: int, size: int) -> None:
    _held[0] -= size
    _counted.discard(array)


def memory_allocated() -> int:
    """Bytes that a rank holds, counted since :func:`set_memory` set a limit."""
    return _held[0]


def max_memory_allocated() -> int:
    """The most bytes that a rank has held since the limit was set, or since :func:`reset_peak_memory_stats`."""
    return _peak[0]


def reset_peak_memory_stats() -> None:
    """Forget what was held most."""
    _peak[0] = _held[0]


__all__ = ["max_memory_allocated", "memory_allocated", "reset_peak_memory_stats", "set_memory"]
__getattr__ = refusal(__name__, __all__, {
    "memory_stats memory_reserved memory_summary": "memory_allocated",
    "empty_cache set_cpu_affinity launch_blocking synchronize Stream Event": "set_memory",
})  # fmt: skip
