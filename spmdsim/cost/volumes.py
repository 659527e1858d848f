"""How many bytes a collective moves: message size, received bytes, bus bandwidth factors.

Two ways to state the size of a collective are in use, and both are needed:

* the **message** size of benchmarks: the vector on each rank for all_reduce, reduce, broadcast and scan; all
  bytes gathered for all_gather; the vector before scattering for reduce_scatter; all bytes one rank holds
  for all_to_all; the bytes at the root for gather and scatter (the convention of nccl-tests and MPICH);
* the **received** bytes of one rank, which is what plans and traces of this package count.
"""

from __future__ import annotations

from typing import Any

from spmdsim.core.blocks import largest_block, split_block
from spmdsim.errors import InputError

#: Received bytes per message byte: a multiplier, and whether a factor (n-1)/n comes on top.
_RECEIVED: dict[str, tuple[float, bool]] = {
    "all_gather": (1.0, True),
    "reduce_scatter": (1.0, True),
    "all_reduce": (2.0, True),
    "all_to_all": (1.0, True),
    "gather": (1.0, True),
    "scatter": (1.0, True),
    "broadcast": (1.0, False),
    "reduce": (1.0, False),
    "scan": (1.0, False),
    "exscan": (1.0, False),
    "permute": (1.0, False),
    "exchange": (1.0, False),
    "barrier": (0.0, False),
    "slice": (0.0, False),
}

#: Every collective this room prices.
COLLECTIVES: tuple[str, ...] = tuple(_RECEIVED)


def _entry(collective: str) -> tuple[float, bool]:
    try:
        return _RECEIVED[collective]
    except KeyError:
        known = ", ".join(sorted(_RECEIVED))
        raise InputError(f"unknown collective {collective!r}; known are {known}") from None


def received_per_message(collective: str, group_size: int) -> float:
    """Bytes a rank receives per message byte when the collective is done with the least traffic.

    >>> received_per_message("all_reduce", 4)
    1.5
    >>> received_per_message("broadcast", 4)
    1.0
    """
    multiplier, fraction = _entry(collective)
    return multiplier * (group_size - 1) / group_size if fraction else multiplier


def reduction_elements(collective: str, members: int, held: Any, place: Any = 0) -> Any:
    """Elements that a rank receives in a reduction, over balanced blocks as the bandwidth-optimal algorithm moves them.

    Args:
        collective: ``reduce_scatter`` or ``all_reduce``.
        members: ranks of the group.
        held: elements that the rank holds after it: a number, or an array.
        place: the rank's number in the group; the first rank is the busiest.

    >>> reduction_elements("reduce_scatter", 4, 10), reduction_elements("all_reduce", 4, 10)
    (30, 16)
    """
    if collective == "reduce_scatter":
        return (members - 1) * held
    block = split_block(0, held, members, place)[1]
    return (members - 1) * block + held - block


def most_received(collective: str, members: int, count: int) -> float:
    """Elements that the busiest rank receives, of a message of ``count`` elements in balanced blocks.

    >>> most_received("all_reduce", 4, 10), most_received("all_gather", 4, 10), most_received("reduce_scatter", 4, 10)
    (16, 8, 9)
    """
    if collective in ("all_reduce", "reduce_scatter"):
        held = count if collective == "all_reduce" else largest_block(count, members)
        return int(reduction_elements(collective, members, held))
    if collective in ("all_gather", "all_to_all"):
        return count - count // members
    return received_per_message(collective, members) * count


def message_bytes(collective: str, group_size: int, received: float) -> float:
    """The benchmark's message size whose least traffic is ``received`` bytes per rank.

    >>> message_bytes("all_gather", 4, 768)
    1024.0
    """
    factor = received_per_message(collective, group_size)
    return received / factor if factor else 0.0


def bus_factor(collective: str, group_size: int) -> float:
    """Ratio of bus bandwidth to algorithm bandwidth as nccl-tests defines it.

    >>> bus_factor("all_reduce", 8), bus_factor("broadcast", 8)
    (1.75, 1.0)
    """
    multiplier, fraction = _entry(collective)
    return multiplier * (group_size - 1) / group_size if fraction else 1.0
