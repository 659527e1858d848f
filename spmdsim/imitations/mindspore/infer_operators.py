"""Which Split, Concat and AllToAll MindSpore's inference picks, and in which order.

A greedy loop over the dims whose axis is not yet the wanted one: split what can be split, exchange an axis that
another dim holds, gather what nobody wants, and if nothing of this is possible gather the first dim. Volumes play no
part, so the result is correct but not the cheapest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spmdsim.errors import PlanError
from spmdsim.imitations.mindspore.unify import MapLayout, check_map

#: MindSpore keeps the open dims in a hash table. Up to six dims ascending order gives its published results; for seven
#: to twelve this is the order in which its table is walked.
_FEW_DIMS = 6
_WALK = (0, 4, 8, 3, 11, 10, 1, 5, 6, 7, 9, 2)


class Abstract(NamedTuple):
    """One inferred operator.

    Attributes:
        name: ``Split``, ``Concat`` or ``AllToAll``.
        dim: the dim that is split or concatenated; for AllToAll the one that is split.
        axis: the device axis, counted from the right.
        parts: its size.
        concat_dim: for AllToAll, the dim that is concatenated.
    """

    name: str
    dim: int
    axis: int
    parts: int
    concat_dim: int = -1

    def arguments(self) -> list[int]:
        """``[dim, axis, count]``; for AllToAll ``[split dim, concat dim, axis, count]``."""
        between = [self.concat_dim] if self.name == "AllToAll" else []
        return [self.dim, *between, self.axis, self.parts]


def infer_operators(
    matrix: Sequence[int], from_map: Sequence[int], to_map: Sequence[int], all2all: bool = False
) -> list[Abstract]:
    """The operators from one map to another on a device matrix.

    Args:
        matrix: the device matrix.
        from_map: per dim the axis counted from the right, or -1.
        to_map: the map wanted.
        all2all: exchange by AllToAll; otherwise by Concat and Split, as MindSpore's offline transforms do.

    Raises:
        PlanError: maps that are none on this device matrix, or of different lengths.

    >>> [[op.name, *op.arguments()] for op in infer_operators((4, 2), (1, -1), (-1, 1), all2all=True)]
    [['AllToAll', 1, 0, 1, 4]]
    """
    if len(from_map) != len(to_map):
        raise PlanError(f"two maps of one tensor are equally long, not {list(from_map)} and {list(to_map)}")
    for mapping in (from_map, to_map):
        check_map(MapLayout(tuple(matrix), tuple(mapping), (1,) * len(mapping)))
    return _Inference(tuple(matrix), tuple(from_map), tuple(to_map), all2all).run()


class _Inference:
    def __init__(
        self, matrix: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...], all2all: bool
    ):
        self.matrix, self.before, self.after, self.all2all = matrix, before, after, all2all
        self.open = {dim: before[dim] for dim in _visited(len(before))}
        self.found: list[Abstract] = []

    def run(self) -> list[Abstract]:
        while self.open:
            count = len(self.found)
            self._split_and_permute()
            self._concat()
            if self.open and len(self.found) == count:
                self._gather(next(iter(self.open)))
        return self.found

    def _split_and_permute(self) -> None:
        while True:
            count = len(self.found)
            self._split()
            while True:
                permuted = len(self.found)
                self._permute()
                if len(self.found) == permuted:
                    break
            if len(self.found) == count:
                return

    def _split(self) -> None:
        for dim, axis in list(self.open.items()):
            wanted = self.after[dim]
            if axis == wanted:
                del self.open[dim]
            elif axis == -1 and wanted not in self.open.values():
                self._add("Split", dim, wanted)
                del self.open[dim]

    def _permute(self) -> None:
        for dim in list(self.open):
            wanted = self.after[dim]
            if self.open[dim] != -1 or wanted == -1 or wanted not in self.open.values():
                continue
            holder = self.before.index(wanted)
            if self.all2all:
                self.found.append(Abstract("AllToAll", dim, wanted, self._size(wanted), holder))
            else:
                self._add("Concat", holder, wanted)
                self._add("Split", dim, wanted)
            del self.open[dim]
            self.open[holder] = -1

    def _concat(self) -> None:
        for dim, axis in list(self.open.items()):
            if axis != -1 and axis not in self.after:
                self._gather(dim)

    def _gather(self, dim: int) -> None:
        self._add("Concat", dim, self.open[dim])
        if self.after[dim] == -1:
            del self.open[dim]
        else:
            self.open[dim] = -1

    def _add(self, name: str, dim: int, axis: int) -> None:
        self.found.append(Abstract(name, dim, axis, self._size(axis)))

    def _size(self, axis: int) -> int:
        return self.matrix[len(self.matrix) - 1 - axis]


def _visited(ndim: int) -> list[int]:
    """The dims in the order in which they are looked at."""
    if not _FEW_DIMS < ndim <= len(_WALK):
        return list(range(ndim))
    return [dim for dim in _WALK if dim < ndim]
