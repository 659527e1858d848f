"""The exclusive scan: each rank of a group gets the reduction of what those before it hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from spmdsim.core.layout import Layout
from spmdsim.core.step import RECEIVED_ELSEWHERE, Step

EXCLUSIVE_SCAN = "exclusive_scan"


@dataclass(frozen=True)
class ScanStep(Step):
    """An exclusive scan along axes: arrays of one shape in, the reduction of those of the ranks before out.

    The tensor has a dim of one entry for each member of a group, the first one, split by ``axes``. Each rank but the
    first has to receive one array, which is what counts, whatever algorithm runs.

    Args:
        backward: from the last member to the first.
    """

    backward: bool = field(default=False, kw_only=True)

    def order(self, rank: int) -> tuple[int, ...]:
        """The group of ``rank``, first to last."""
        members = self.group(rank)
        return members[::-1] if self.backward else members

    def neighbours(self, rank: int) -> tuple[int | None, int | None]:
        """The ranks before and after ``rank``."""
        order = self.order(rank)
        k = order.index(rank)
        return order[k - 1] if k else None, order[k + 1] if k + 1 < len(order) else None

    def held(self, rank: int) -> int:
        """Elements of the array of a rank."""
        return math.prod(self.src.local_shape(self.shape, rank))


def scan_step(
    layout: Layout, axes: tuple[str, ...], rest: Sequence[int], op: str, backward: bool = False
) -> ScanStep:
    """The scan of one array per member.

    Args:
        layout: of the tensor made of all members' arrays: first the dim that ``axes`` split, then the arrays' dims.
        axes: of the groups, first the major one.
        rest: global sizes of the arrays' dims.
        op: the reduction.
        backward: from the last member to the first.
    """
    shape = (layout.mesh.axis_size(*axes), *rest)
    return ScanStep(EXCLUSIVE_SCAN, axes, layout, layout, shape, op, backward=backward)


def _received(step: Step, rank: int) -> int:
    assert isinstance(step, ScanStep)
    if rank not in step.src.mesh or step.neighbours(rank)[0] is None:
        return 0
    return step.held(rank)


def scan_sent(step: ScanStep, rank: int) -> int:
    """Elements that a rank sends on: nothing from the last one."""
    return 0 if rank not in step.src.mesh or step.neighbours(rank)[1] is None else step.held(rank)


RECEIVED_ELSEWHERE[EXCLUSIVE_SCAN] = _received


#: What it is called in traces and agreements.
EXCHANGE_PARTS = "exchange_parts"


class Parts(NamedTuple):
    """What a rank gives to the members of its group, in the group's order.

    Args:
        arrays: one of one dim for each member.
        counts: how many elements come from each.
    """

    arrays: Sequence[np.ndarray]
    counts: Sequence[int]


@dataclass(frozen=True)
class PartsStep(Step):
    """Parts of any length to each member of a group, which together hold a tensor laid out as ``dst`` afterwards.

    Args:
        times: how many values there are for each element of that tensor.
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

    def nbytes(self, rank: int, itemsize: int) -> int:
        """Bytes ``rank`` expects to receive."""
        return itemsize * sum(count for peer, count in self.expected(rank) if peer != rank)

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
