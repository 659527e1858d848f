"""Steps inside algorithms that scan, sort, select and look up, in groups of ranks.

An exclusive scan gives each rank the reduction of the arrays of the ranks before it. `PartsStep` sends arrays of any
length between all ranks of a group. Their lengths depend on data; the receiver knows them when the step runs. Before,
only an expectation for evenly spread values and a bound are known: no rank receives more than it owns afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from spmdsim.core.layout import Layout
from spmdsim.redistribution.steps.counted_step import CountedStep

EXCLUSIVE_SCAN = "exclusive_scan"


@dataclass(frozen=True)
class ScanStep(CountedStep):
    """Exclusive scan of arrays along axes.

    A rank's result is the reduction of the arrays of the ranks before it.

    The first dimension of the tensor has one index per member of a group, and ``axes`` split it. Each rank but the
    first receives one array; this is counted whatever algorithm runs. ``backward`` scans from the last rank to the
    first.
    """

    backward: bool = field(default=False, kw_only=True)

    def order(self, rank: int) -> tuple[int, ...]:
        """Return the group of ``rank`` in the order of the scan."""
        return self.group(rank)[:: -1 if self.backward else 1]

    def neighbours(self, rank: int) -> tuple[int | None, int | None]:
        """Return the ranks before and after ``rank`` in the scan; None at an end."""
        order = self.order(rank)
        k = order.index(rank)
        return order[k - 1] if k else None, order[k + 1] if k + 1 < len(order) else None

    def array_elements(self, rank: int) -> int:
        """Return the number of elements of the array of a rank."""
        return math.prod(self.src.local_shape(self.shape, rank))

    def received_elements(self, rank: int) -> int:
        """Return the number of elements of the rank's array; 0 for the first rank of a group."""
        return (
            self.array_elements(rank) if rank in self.src.mesh and self.neighbours(rank)[0] is not None else 0
        )

    def sent_elements(self, rank: int) -> int:
        """Return the number of elements of the rank's array; 0 for the last rank of a group."""
        return (
            self.array_elements(rank) if rank in self.src.mesh and self.neighbours(rank)[1] is not None else 0
        )

    @property
    def most_received(self) -> int:
        """Elements of the largest array, and 0 in groups of one rank."""
        largest = self.array_elements(self.src.mesh.rank_at(0))
        return largest if self.src.mesh.axis_size(*self.axes) > 1 else 0

    @property
    def most_messages(self) -> int:
        """Number of rounds of the scan, each of which passes on values of the ranks before."""
        return (self.src.mesh.axis_size(*self.axes) - 1).bit_length()


def build_scan_step(
    layout: Layout, axes: tuple[str, ...], array_shape: Sequence[int], op: str, backward: bool = False
) -> ScanStep:
    """Return the scan of one array of shape ``array_shape`` per member.

    ``axes`` split the first dimension of ``layout``; ``op`` is the reduction.
    """
    shape = (layout.mesh.axis_size(*axes), *array_shape)
    return ScanStep(EXCLUSIVE_SCAN, axes, layout, layout, shape, op, backward=backward)


#: The name of the step in traces and agreements.
EXCHANGE_PARTS = "exchange_parts"


class Parts(NamedTuple):
    """One-dimensional arrays of a rank for the members of its group.

    Attributes:
        arrays: the array for each member.
        counts: the number of elements that come from each member.
    """

    arrays: Sequence[np.ndarray]
    counts: Sequence[int]


@dataclass(frozen=True)
class PartsStep(CountedStep):
    """Step in which each member of a group sends an array of any length to each member.

    The arrays form a tensor with layout ``dst``, with ``times`` values for each of its elements.
    """

    times: int = field(default=1, kw_only=True)

    @property
    def ragged(self) -> bool:
        """True, because the arrays may differ in length."""
        return True

    def expected_elements(self, rank: int) -> list[tuple[int, int]]:
        """Return the elements that each member should send to ``rank``, as ``(member, elements)``.

        The expectation is for values that are spread evenly: ``times`` times the rounded product of the rank's target
        shard and the member's share of the group's elements. For example, from 4 members with equal shards a rank with
        a target shard of 8 elements gets 2 each, if ``times`` is 1.

        ``rank`` itself is included; members are in the group's order. Empty for a rank outside of the source mesh.
        """
        if rank not in self.src.mesh:
            return []
        members = self.group(rank)
        sizes = [_volume(self.src, self.shape, member) for member in members]
        target_size, total = _volume(self.dst, self.shape, rank), sum(sizes)
        return [
            (member, self.times * round(target_size * size / total) if total else 0)
            for member, size in zip(members, sizes)
        ]

    def sent_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` is expected to send to others.

        It is the sum of what the other members of its group expect from it; 0 outside of the source mesh.
        """
        group = self.group(rank) if rank in self.src.mesh else ()
        other_members = (member for member in group if member != rank)
        return sum(
            count
            for member in other_members
            for peer, count in self.expected_elements(member)
            if peer == rank
        )

    def received_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` is expected to receive from others."""
        return sum(count for peer, count in self.expected_elements(rank) if peer != rank)

    @property
    def most_received(self) -> int:
        """Elements that the mesh's first rank, whose shard is the largest, is expected to receive."""
        return self.received_elements(self.src.mesh.rank_at(0))

    @property
    def most_messages(self) -> int:
        """Number of other members of a group, and 0 if no elements are expected."""
        return self.src.mesh.axis_size(*self.axes) - 1 if self.most_received else 0

    def most(self, rank: int) -> int:
        """Return the largest number of elements that ``rank`` can receive."""
        return self.times * _volume(self.dst, self.shape, rank) if rank in self.dst.mesh else 0


def build_parts_step(
    layout: Layout, axes: tuple[str, ...], shape: Sequence[int], times: int = 1
) -> PartsStep:
    """Return the step that sends arrays between ranks of a layout, over axes that split a dimension.

    The tensor has shape ``shape``, with ``times`` values per element.
    """
    return PartsStep(EXCHANGE_PARTS, axes, layout, layout, tuple(shape), times=times)


@lru_cache(maxsize=4096)
def _volume(layout: Layout, shape: tuple[int, ...], rank: int) -> int:
    """Return the number of elements of a rank's shard."""
    return math.prod(layout.local_shape(shape, rank))


def join_arrays(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate one-dimensional arrays; return a view if they are neighbours in memory.

    A view needs one base array, one element type, and contiguous arrays; arrays without elements do not count.
    Otherwise a new array is returned.

    Args:
        parts: the arrays; at least one.

    >>> x = np.arange(5)
    >>> join_arrays([x[:2], x[2:2], x[2:5]]).base is x, join_arrays([x[3:], x[:3]]).tolist()
    (True, [3, 4, 0, 1, 2])
    """
    nonempty = [array for array in parts if len(array)] or list(parts[:1])
    base, start, dtype = nonempty[0].base, _address(nonempty[0]), nonempty[0].dtype
    ends = [*accumulate([array.nbytes for array in nonempty], initial=start)]
    if (
        isinstance(base, np.ndarray)
        and base.flags.c_contiguous
        and all(
            array.base is base
            and array.dtype == dtype
            and array.flags.c_contiguous
            and _address(array) == end
            for array, end in zip(nonempty, ends)
        )
    ):
        # The base may be a buffer of bytes from the pool.
        offset = start - _address(base)
        return base.reshape(-1).view(np.uint8)[offset : offset + ends[-1] - start].view(dtype)
    return np.concatenate(parts)


def _address(array: np.ndarray) -> int:
    """Return the memory address of an array's first element."""
    return int(array.__array_interface__["data"][0])
