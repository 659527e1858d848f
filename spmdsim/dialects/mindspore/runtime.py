"""``mindspore.runtime``: how much memory a rank may take.

What a rank holds is counted in the largest piece that any rank has, so that all ranks say the same: values of parameters, the
inputs of networks, results of operators, and gradients, as long as anything refers to them.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar
from weakref import finalize

from spmdsim.dialects.missing import refusal
from spmdsim.errors import InputError, SpmdError, UsageTypeError

T = TypeVar("T")
GB = 2**30
#: What is MindSpore's default, and no limit here.
UNLIMITED = "1024GB"
_SIZE = re.compile(r"(\d+\.?\d*|0?\.\d+)GB")
#: The limit in bytes, if there is one, and what is held.
_limit: list[int | None] = [None]
_held = [0]


class OutOfMemory(SpmdError, RuntimeError):
    """A rank would hold more than it may."""


def set_memory(
    init_size: str = "2GB", increase_size: str = "2GB", max_size: str = UNLIMITED, optimize_level: str = "O0",
    huge_page_reserve_size: str = "0GB",
) -> None:  # fmt: skip
    """Limit what a rank holds to ``max_size``, such as ``"28GB"``; the other arguments are checked, and change nothing.

    Raises:
        TypeError: no str.
        ValueError: no size such as ``"2GB"`` or ``"0.5GB"``, or another level than ``O0`` or ``O1``.
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


def held(tensor: T) -> T:
    """The tensor, counted from now on until nothing refers to it any more.

    Raises:
        RuntimeError: ranks would hold more than they may.
    """
    if _limit[0] is None or tensor is None:
        return tensor
    known: Any = tensor
    size: int = known.dtype.itemsize
    for length in known.layout.largest_shape(known.shape):
        size *= length
    if _held[0] + size > _limit[0]:
        raise OutOfMemory(
            f"out of memory: max_size is {_limit[0]:,} bytes per rank, of which {_held[0]:,} are held and {size:,} more are "
            f"needed for a tensor of shape {known.shape} on {known.layout.mesh}; nearest: a larger max_size, or more cuts"
        )
    _held[0] += size
    finalize(tensor, _released, size)
    return tensor


def _released(size: int) -> None:
    _held[0] -= size


def memory_allocated() -> int:
    """Bytes that a rank holds, counted since :func:`set_memory` set a limit."""
    return _held[0]


__all__ = ["memory_allocated", "set_memory"]
__getattr__ = refusal(__name__, __all__, {
    **dict.fromkeys(("memory_stats", "memory_reserved", "max_memory_allocated", "memory_summary"), "memory_allocated"),
    **dict.fromkeys(("empty_cache", "set_cpu_affinity", "launch_blocking", "synchronize"), "set_memory"),
})  # fmt: skip
