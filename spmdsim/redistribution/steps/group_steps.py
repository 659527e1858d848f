"""Steps inside algorithms that scan, sort, select and look up, in groups of ranks.

An exclusive scan gives each rank the reduction of the arrays of the ranks before it. `PartsStep` sends parts of any length
between all ranks of a group. Their lengths depend on data; the receiver knows them when the step runs. Before, there are an
expectation for evenly spread values, and a bound: no rank receives more than it owns afterwards.
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
    """An exclusive scan of arrays along axes. A rank's result is the reduction of the arrays of the ranks before it.

    The first dimension of the tensor has one index per member of a group, and ``axes`` split it. Each rank but the first
    receives one array; this is counted whatever algorithm runs. ``backward`` scans from the last rank to the first.
    """

    backward: bool = field(default=False, kw_only=True)

    def order(self, rank: int) -> tuple[int, ...]:
        """Return the group of ``rank`` in the order of the scan."""
        return self.group(rank)[:: -1 if self.backward else 1]

    def neighbours(self, rank: int) -> tuple[int | None, int | None]:
        """Return the ranks before and after ``rank``, None if there is no such rank."""
        order = self.order(rank)
        k = order.index(rank)
        return order[k - 1] if k else None, order[k + 1] if k + 1 < len(order) else None

    def array_elements(self, rank: int) -> int:
        """Return the elements of the array of a rank."""
        return math.prod(self.src.local_shape(self.shape, rank))

    def received_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` receives: its array's, and 0 if it is the first of its group."""
        return (
            self.array_elements(rank) if rank in self.src.mesh and self.neighbours(rank)[0] is not None else 0
        )

    def sent_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` sends: its array's, and 0 if it is the last of its group."""
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
        """Rounds of the scan, which passes on the values of the ranks before."""
        return (self.src.mesh.axis_size(*self.axes) - 1).bit_length()


def scan_step(
    layout: Layout, axes: tuple[str, ...], rest: Sequence[int], op: str, backward: bool = False
) -> ScanStep:
    """Return the scan of one array per member. ``axes`` split the layout's first dimension; ``rest`` is the arrays' shape."""
    shape = (layout.mesh.axis_size(*axes), *rest)
    return ScanStep(EXCLUSIVE_SCAN, axes, layout, layout, shape, op, backward=backward)


#: The name of the step in traces and agreements.
EXCHANGE_PARTS = "exchange_parts"


class Parts(NamedTuple):
    """A rank's one-dimensional array for each member of its group, and the number of elements from each member."""

    arrays: Sequence[np.ndarray]
    counts: Sequence[int]


@dataclass(frozen=True)
class PartsStep(CountedStep):
    """Parts of any length from each member of a group to each member, which form a tensor with layout ``dst``.

    There are ``times`` values for each element of that tensor.
    """

    times: int = field(default=1, kw_only=True)

    @property
    def ragged(self) -> bool:
        """True: the parts may differ in length."""
        return True

    def expected(self, rank: int) -> list[tuple[int, int]]:
        """Return ``(member, elements)``: the elements that ``rank`` expects from each member if values are spread evenly."""
        if rank not in self.src.mesh:
            return []
        members = self.group(rank)
        held = [_volume(self.src, self.shape, member) for member in members]
        mine, total = _volume(self.dst, self.shape, rank), sum(held)
        return [
            (m, self.times * round(mine * part / total) if total else 0) for m, part in zip(members, held)
        ]

    def sent_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` expects to send to others."""
        group = self.group(rank) if rank in self.src.mesh else ()
        others = (member for member in group if member != rank)
        return sum(count for member in others for peer, count in self.expected(member) if peer == rank)

    def received_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` expects to receive from others."""
        return sum(count for peer, count in self.expected(rank) if peer != rank)

    @property
    def most_received(self) -> int:
        """Elements that the mesh's first rank expects to receive: its shard is the largest."""
        return self.received_elements(self.src.mesh.rank_at(0))

    @property
    def most_messages(self) -> int:
        """The number of other members of a group, and 0 if nothing is expected."""
        return self.src.mesh.axis_size(*self.axes) - 1 if self.most_received else 0

    def most(self, rank: int) -> int:
        """Return the largest number of elements that ``rank`` can receive."""
        return self.times * _volume(self.dst, self.shape, rank) if rank in self.dst.mesh else 0


def parts_step(layout: Layout, axes: tuple[str, ...], shape: Sequence[int], times: int = 1) -> PartsStep:
    """Return the step from a layout to itself, over axes that split a dimension."""
    return PartsStep(EXCHANGE_PARTS, axes, layout, layout, tuple(shape), times=times)


@lru_cache(maxsize=4096)
def _volume(layout: Layout, shape: tuple[int, ...], rank: int) -> int:
    return math.prod(layout.local_shape(shape, rank))


def one_array(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate one-dimensional arrays, without a copy if they follow one another in memory.

    >>> x = np.arange(5)
    >>> one_array([x[:2], x[2:2], x[2:5]]).base is x, one_array([x[3:], x[:3]]).tolist()
    (True, [3, 4, 0, 1, 2])
    """
    filled = [part for part in parts if len(part)] or list(parts[:1])
    base, begin, dtype = filled[0].base, _address(filled[0]), filled[0].dtype
    ends = [*accumulate([part.nbytes for part in filled], initial=begin)]
    if (
        isinstance(base, np.ndarray)
        and base.flags.c_contiguous
        and all(
            part.base is base and part.dtype == dtype and part.flags.c_contiguous and _address(part) == end
            for part, end in zip(filled, ends)
        )
    ):
        # The base may be a buffer of bytes, such as those that are used again.
        first = begin - _address(base)
        return base.reshape(-1).view(np.uint8)[first : first + ends[-1] - begin].view(dtype)
    return np.concatenate(parts)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])
