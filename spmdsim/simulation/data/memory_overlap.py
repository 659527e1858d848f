"""Find memory that two buffers of one call share, or that one call writes twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def share_memory(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Return True if a byte is in blocks of both lists.

    Args:
        first: `MessageBuffer` blocks of one memory.
        second: blocks of one memory, too.
    """
    if not first or not second or _owner(first[0].array) is not _owner(second[0].array):
        return False
    starts, ends = _intervals(first)
    other_starts, other_ends = _intervals(second)
    if not len(starts) or not len(other_starts):
        return False
    order = np.argsort(other_starts, kind="stable")
    other_starts, reached = other_starts[order], np.maximum.accumulate(other_ends[order])
    # Of the intervals that start before this one ends, does one end behind its start?
    counts = np.searchsorted(other_starts, ends, side="left")
    return bool(np.any((counts > 0) & (reached[np.maximum(counts - 1, 0)] > starts)))


def overlap_one_another(blocks: Sequence[Any]) -> bool:
    """Return True if a byte is in two blocks of a list, or twice in one block.

    Args:
        blocks: `MessageBuffer` blocks of one memory.
    """
    starts, ends = _intervals(blocks)
    order = np.argsort(starts, kind="stable")
    return bool(np.any(starts[order][1:] < np.maximum.accumulate(ends[order])[:-1]))


def _owner(array: Any) -> Any:
    """Return the object that owns the memory of an array."""
    return array if array.base is None else array.base


def _intervals(blocks: Sequence[Any]) -> tuple[Any, Any]:
    """Return the first address and the address after the last one of each stretch of some blocks.

    A block of a derived datatype has one stretch per element. Blocks without elements have none.
    """
    starts = [np.zeros(0, np.int64)]
    ends = [np.zeros(0, np.int64)]
    for block in blocks:
        if block.elements:
            address = block.array.__array_interface__["data"][0]
            size = block.dtype.itemsize
            offsets = np.zeros(1, np.int64) if block.index is None else block.index * size
            starts.append(address + offsets)
            ends.append(starts[-1] + (block.nbytes if block.index is None else size))
    return np.concatenate(starts), np.concatenate(ends)
