"""Counts of the busiest rank of a direct exchange: all that a price asks for.

If everything divides, the counts are products of sizes, however many ranks there are. A search prices thousands of exchanges
between 65,536 ranks, and arrays with an entry for each rank would take seconds and gigabytes. On up to ``FEW_RANKS`` ranks,
where replicas share boxes, the counts come from the arrays.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

from spmdsim.redistribution.exchange.direct import FEW_RANKS
from spmdsim.redistribution.exchange.exchange_counts import ExchangeCounts, exchange_counts
from spmdsim.redistribution.exchange.grid import Ends, common_axes


class BusiestCounts(NamedTuple):
    """Elements that the busiest rank receives, messages that it receives, and elements that the busiest rank sends."""

    most_received: int
    most_messages: int
    most_sent: float


@lru_cache(maxsize=4096)
def busiest_counts(ends: Ends) -> BusiestCounts | ExchangeCounts:
    """Return the counts of the busiest rank, which are those of :func:`exchange_counts`.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((256, 256), ("a", "b"))
    >>> busiest_counts(Ends(mesh, (("a",), ()), mesh, ((), ("a",)), (512, 1024)))
    BusiestCounts(most_received=2040, most_messages=255, most_sent=2040.0)
    """
    if ends.have.size > FEW_RANKS and _is_nested(ends):
        return _nested_counts(ends)
    return exchange_counts(ends)  # which counts messages and senders only if they are asked for


def _is_nested(ends: Ends) -> bool:
    """Return True if, on one mesh, the blocks of each dimension are equal and one cut of it refines the other."""
    have, src, want, dst, shape = ends
    if have != want or 0 in shape:
        return False
    split = {axis for entry in src for axis in entry}
    for size, before, after in zip(shape, src, dst):
        fewer, more = sorted((have.axis_size(*before), have.axis_size(*after)))
        if more % fewer or size % more:
            return False
        count = common_axes(before, after)
        added = after[count:]
        if len(before) > count and added and added[0] not in split and not split.isdisjoint(added):
            return False
    return True


def _nested_counts(ends: Ends) -> BusiestCounts:
    """Return the counts of an exchange with nested blocks.

    The two blocks of a rank in a dimension are nested, one in the other, or those of some rank have no common element. So what
    the busiest rank owns already is a product of lengths, or nothing. A source block is asked for by all target blocks in it,
    except for the parts that its own ranks keep, and its replicas send equally many elements.
    """
    have, src, _, dst, shape = ends
    split = {axis for entry in src for axis in entry}
    needed = {axis for entry in dst for axis in entry}
    owned = wanted = held = kept = messages = 1
    for size, before, after in zip(shape, src, dst):
        old, new = size // have.axis_size(*before), size // have.axis_size(*after)
        count = common_axes(before, after)
        removed, added = before[count:], after[count:]
        owned *= 0 if removed and added else min(old, new)
        held, wanted, messages = held * old, wanted * new, messages * max(new // old, 1)
        if added and not removed:
            kept *= new * have.axis_size(*[axis for axis in added if axis not in split])
        elif removed and added and not split.isdisjoint(added):
            kept = 0
        else:
            kept *= old
    untouched = prod([size for axis, size in have.size_of.items() if axis not in split | needed])
    copies = have.size // (have.axis_size(*needed) * untouched)
    replicas = have.size // (have.axis_size(*split) * untouched)
    demand = held * copies - kept
    return BusiestCounts(wanted - owned, messages - (owned > 0), demand / replicas)
