"""The steps in the middle of algorithms that scan, sort, select and look up, inside of groups.

An exclusive scan gives each rank the reduction of what those before it hold. Parts of any length go from each rank of a
group to each: how much goes where depends on data, so it is known when the step runs, to both sides: who takes says how
long the parts are. What can be said beforehand is an expectation, for values that lie evenly, and a bound: no rank
receives more than it holds afterwards.

:func:`sent_nbytes` counts what a rank sends in any step.
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
    """An exclusive scan along axes: arrays of one shape in, the reduction of those of the ranks before out.

    The tensor has a dim of one entry for each member of a group, the first one, split by ``axes``. Each rank but the
    first has to receive one array, which is what counts, whatever algorithm runs. Backward: from the last to the first.
    """

    backward: bool = field(default=False, kw_only=True)

    def order(self, rank: int) -> tuple[int, ...]:
        """The group of ``rank``, first to last."""
        return self.group(rank)[:: -1 if self.backward else 1]

    def neighbours(self, rank: int) -> tuple[int | None, int | None]:
        """The ranks before and after ``rank``."""
        order = self.order(rank)
        k = order.index(rank)
        return order[k - 1] if k else None, order[k + 1] if k + 1 < len(order) else None

    def held(self, rank: int) -> int:
        """Elements of the array of a rank."""
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
    """The scan of one array per member: in the layout, first the dim that ``axes`` split, then the arrays' dims, ``rest``."""
    shape = (layout.mesh.axis_size(*axes), *rest)
    return ScanStep(EXCLUSIVE_SCAN, axes, layout, layout, shape, op, backward=backward)


#: What it is called in traces and agreements.
EXCHANGE_PARTS = "exchange_parts"


class Parts(NamedTuple):
    """What a rank gives to the members of its group, an array of one dim to each, and how many elements come from each."""

    arrays: Sequence[np.ndarray]
    counts: Sequence[int]


@dataclass(frozen=True)
class PartsStep(Step):
    """Parts of any length to each member of a group, which together hold a tensor laid out as ``dst`` afterwards.

    There are so many values for each element of that tensor: ``times``.
    """

    times: int = field(default=1, kw_only=True)

    @property
    def ragged(self) -> bool:
        """Its parts have any lengths."""
        return True

    def expected(self, rank: int) -> list[tuple[int, int]]:
        """For each member of the group, the elements that ``rank`` expects from it, if values lie evenly."""
        if rank not in self.src.mesh:
            return []
        members = self.group(rank)
        held = [_volume(self.src, self.shape, member) for member in members]
        mine, total = _volume(self.dst, self.shape, rank), sum(held)
        return [
            (m, self.times * round(mine * part / total) if total else 0) for m, part in zip(members, held)
        ]

    def expected_sent(self, rank: int) -> int:
        """Elements that ``rank`` expects to send to others."""
        group = self.group(rank) if rank in self.src.mesh else ()
        others = (member for member in group if member != rank)
        return sum(count for member in others for peer, count in self.expected(member) if peer == rank)

    def received_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` expects to receive from others."""
        return sum(count for peer, count in self.expected(rank) if peer != rank)

    def most(self, rank: int) -> int:
        """Elements that ``rank`` receives at most, whatever the values."""
        return self.times * _volume(self.dst, self.shape, rank) if rank in self.dst.mesh else 0


def parts_step(layout: Layout, axes: tuple[str, ...], shape: Sequence[int], times: int = 1) -> PartsStep:
    """The step from and to a layout, over axes that split a dim of it."""
    return PartsStep(EXCHANGE_PARTS, axes, layout, layout, tuple(shape), times=times)


@lru_cache(maxsize=4096)
def _volume(layout: Layout, shape: tuple[int, ...], rank: int) -> int:
    return math.prod(layout.local_shape(shape, rank))


def one_array(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays of one dim, one after the other: without a copy where they lie in memory like that.

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


#: Up to so many ranks, what each of them sends is added up; in larger meshes shares are taken to be even.
LISTED = 1024


def reduced_block(step: Step, rank: int) -> int:
    """Elements of the block that ``rank`` reduces in an all_reduce."""
    held = math.prod(step.dst.local_shape(step.shape, rank))
    number: int = split_block(0, held, step.src.mesh.axis_size(*step.axes), step.place(rank))[1]
    return number


def sent_nbytes(step: Step, rank: int, itemsize: int) -> int:
    """Bytes ``rank`` sends to others; reductions count as in :meth:`Step.nbytes`, the blocks going the other way."""
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
