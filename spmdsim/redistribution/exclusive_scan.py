"""The exclusive scan: each rank of a group gets the reduction of what those before it hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

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
