"""Steps inside algorithms that scan, sort, select and look up, in groups of ranks.

An exclusive scan gives each rank the reduction of the arrays of the ranks before it. `PartsStep` sends parts of any length
between all ranks of a group. Their lengths depend on data; the receiver knows them when the step runs. Before, there are an
expectation for evenly spread values, and a bound: no rank receives more than it owns afterwards.

:func:`sent_nbytes` counts the bytes that a rank sends in any step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from spmdsim.core.layout import Layout, split_block
from spmdsim.core.step import LOCAL_STEPS, Step, overlap, volume
from spmdsim.redistribution.exchange.direct import sent_counts
from spmdsim.redistribution.exchange.direct_reduction import DirectReduction
from spmdsim.redistribution.exchange.flat import FlatExchange
from spmdsim.redistribution.halo import HaloStep

EXCLUSIVE_SCAN = "exclusive_scan"


@dataclass(frozen=True)
class ScanStep(Step):
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

    def held(self, rank: int) -> int:
        """Return the elements of the array of a rank."""
        return math.prod(self.src.local_shape(self.shape, rank))

    def received_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` receives: its array's, and 0 if it is the first of its group."""
        return self.held(rank) if rank in self.src.mesh and self.neighbours(rank)[0] is not None else 0

    def sent_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` sends: its array's, and 0 if it is the last of its group."""
        return self.held(rank) if rank in self.src.mesh and self.neighbours(rank)[1] is not None else 0


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
class PartsStep(Step):
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

    def expected_sent(self, rank: int) -> int:
        """Return the number of elements that ``rank`` expects to send to others."""
        group = self.group(rank) if rank in self.src.mesh else ()
        others = (member for member in group if member != rank)
        return sum(count for member in others for peer, count in self.expected(member) if peer == rank)

    def received_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` expects to receive from others."""
        return sum(count for peer, count in self.expected(rank) if peer != rank)

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


#: The largest number of ranks whose sent elements are counted one by one. In larger meshes, shares are assumed to be even.
LISTED = 1024


def reduced_block(step: Step, rank: int) -> int:
    """Return the elements of the block that ``rank`` reduces in an all_reduce."""
    held = math.prod(step.dst.local_shape(step.shape, rank))
    number: int = split_block(0, held, step.src.mesh.axis_size(*step.axes), step.place(rank))[1]
    return number


def sent_nbytes(step: Step, rank: int, itemsize: int) -> int:
    """Return the bytes that ``rank`` sends to others. Reductions count like in :meth:`Step.nbytes`, in the other direction."""
    if isinstance(step, DirectReduction | FlatExchange | HaloStep | ScanStep):
        return itemsize * step.sent_elements(rank)
    if step.collective in LOCAL_STEPS or rank not in step.src.mesh:
        return 0
    if step.collective == "exchange":
        return itemsize * sent_counts(step.src, step.dst, step.shape, (rank,))[0]
    if step.collective == "all_reduce":
        return step.nbytes(rank, itemsize)
    box = step.src.bounds(step.shape, rank)
    held, members = volume(box), step.src.mesh.axis_size(*step.axes)
    if step.collective == "all_gather":
        return itemsize * (members - 1) * held
    own = overlap(box, step.dst.bounds(step.shape, rank))
    mine = 0 if own is None else volume(own)
    same = {*step.src.split_axes, *step.axes} == {*step.dst.split_axes}
    whole = same and step.src.mesh == step.dst.mesh
    if step.collective != "reduce_scatter" or whole:
        return itemsize * (held - mine)
    if step.dst.is_even(step.shape):  # the blocks are only a part of what is held
        return itemsize * (members - 1) * mine
    others = (member for member in step.group(rank) if member != rank)
    return itemsize * sum(math.prod(step.dst.local_shape(step.shape, member)) for member in others)
