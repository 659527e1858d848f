"""One copy per node: replicated results in shared memory that all ranks of a group read.

Asked for by ``world.use(replicated="shared")``. Every rank writes its own part of the result into a window of
the group, and all get the same read-only array: the copies that each rank would receive are neither made nor
kept. Windows are used again once no rank has an array in them; which ones are free, the ranks agree before each
use, in the all_reduce that also lets nobody write before all have finished reading.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from spmdsim.core.step import Index, Step
from spmdsim.redistribution.ways.rank_transfers import RankTransfers
from spmdsim.settings import RANKS_PER_NODE
from spmdsim.trace.events import SHARED_MEMORY
from spmdsim.worlds.mpi.counted import Counted
from spmdsim.worlds.mpi.reducing import ReduceGroup, scatter_into
from spmdsim.worlds.programs import Run

#: Windows of one size and group at most; more results than this alive at once are made the usual way.
MOST = 60
#: Windows of one group at most, of all sizes: those of the sizes not used for longest are freed for new ones.
KEPT = 256

#: Windows of closed worlds in which somebody still has an array.
_orphans: list[object] = []


class Windows:
    """The shared memory of one group, all of its ranks on one node, for results of one size.

    ``group`` are the windows of the group by size, this one's among them, those used last at the end.
    """

    def __init__(self, comm: Counted, nbytes: int, group: dict[int, Windows]) -> None:
        self.comm, self.nbytes, self._group = comm, nbytes, group
        self._mapped: list[tuple[MPI.Win, np.ndarray]] = []
        self._mine, self._common = np.empty(1, np.uint64), np.empty(1, np.uint64)
        probe = [(None, np.empty(1, np.uint8))]
        self._alone = sys.getrefcount(probe[0][1])

    def free_ones(self) -> int:
        """The windows in which no rank has an array, as a bit mask; collective."""
        mask = 0
        for number in range(len(self._mapped)):
            mask |= (sys.getrefcount(self._mapped[number][1]) == self._alone) << number
        self._mine[0] = mask
        self.comm.agree(self._mine, self._common, MPI.BAND)
        return int(self._common[0])

    def memory(self) -> np.ndarray | None:
        """A free window's bytes, the same on all ranks; None if there are too many in use. Collective."""
        # In the order of calls, which is the same on all ranks.
        self._group[self.nbytes] = self._group.pop(self.nbytes, self)
        mask = self.free_ones()
        if not mask and (len(self._mapped) >= MOST or not self._room()):
            return None
        self.comm.tally.calls[SHARED_MEMORY] = 0
        if mask:
            return self._mapped[(mask & -mask).bit_length() - 1][1]
        mine = self.nbytes if self.comm.Get_rank() == 0 else 0
        window = self.comm.window(mine)
        memory: Any = window.Shared_query(0)[0]
        self._mapped.append((window, np.frombuffer(memory, np.uint8, self.nbytes)))
        return self._mapped[-1][1]

    def _room(self) -> bool:
        """Whether the group may have one more window, after freeing some of other sizes if need be. Collective."""
        group = list(self._group.values())
        for other in [one for one in group if one is not self and one._mapped]:
            if sum(len(one._mapped) for one in group) >= KEPT:
                other.free()
        return sum(len(one._mapped) for one in group) < KEPT

    def free(self) -> None:
        """Free the windows in which no rank has an array. Collective."""
        mask = self.free_ones()
        windows, self._mapped = self._mapped, []
        for number, (window, memory) in enumerate(windows):
            if mask >> number & 1:
                window.Free()
            else:
                self._mapped.append((window, memory))

    def close(self) -> None:
        """The same at the end; the others live on until the process ends."""
        self.free()
        _orphans.extend(self._mapped)
        self._mapped.clear()


class Shared:
    """The windows of a world, by group and size."""

    def __init__(self) -> None:
        self._windows: dict[tuple[int, ...], dict[int, Windows]] = {}
        self._on_one_node: dict[tuple[int, ...], bool] = {}

    def possible(self, members: tuple[int, ...], comm: Counted) -> bool:
        """Whether all members are on one node; collective when first asked."""
        together = self._on_one_node.get(members)
        if together is None:
            node, each = comm.Split_type(MPI.COMM_TYPE_SHARED), RANKS_PER_NODE.read()
            part = 0 if each is None else MPI.COMM_WORLD.Get_rank() // each
            sizes = np.array([node.Get_size(), part, -part]), np.empty(3, np.int64)
            comm.agree(*sizes, MPI.MIN)
            node.Free()
            least, first, last = sizes[1].tolist()
            together = self._on_one_node[members] = least == comm.Get_size() and first == -last
        return together

    def windows(self, members: tuple[int, ...], comm: Counted, nbytes: int) -> Windows:
        """The windows for results of this size."""
        group = self._windows.setdefault(members, {})
        if nbytes not in group:
            group[nbytes] = Windows(comm, nbytes, group)
        return group[nbytes]

    def close(self) -> None:
        """Free what can be freed; collective over each group."""
        for group in self._windows.values():
            for windows in group.values():
                windows.close()
        self._windows.clear()


def gather_shared(
    traffic: RankTransfers, comm: Counted, dtype: np.dtype, shared: Shared, otherwise: Run
) -> Run:
    """all_gather: every rank copies its piece into the group's result."""
    if traffic.gathered is None:  # some members are replicas of others
        return otherwise
    index: Index | None = traffic.gathered[traffic.me]
    windows = shared.windows(traffic.members, comm, math.prod(traffic.target) * dtype.itemsize)

    def fill(out: np.ndarray, array: np.ndarray) -> None:
        if index is not None:
            out[index] = array

    return _together(windows, traffic.target, dtype, fill, otherwise)


def reduce_shared(
    step: Step,
    group: ReduceGroup,
    members: tuple[int, ...],
    dtype: np.dtype,
    shared: Shared,
    otherwise: Run,
    chunk: int,
) -> Run:
    """all_reduce: every rank reduces its block of the group's result, and nobody gathers the blocks."""
    target = step.dst.local_shape(step.shape, members[group.me])
    windows = shared.windows(members, group.comm, math.prod(target) * dtype.itemsize)

    def fill(out: np.ndarray, array: np.ndarray) -> None:
        scatter_into(str(step.op), group, array.reshape(-1), out.reshape(-1), chunk)

    return _together(windows, target, dtype, fill, otherwise)


def _together(
    windows: Windows,
    shape: tuple[int, ...],
    dtype: np.dtype,
    fill: Callable[[np.ndarray, np.ndarray], None],
    otherwise: Run,
) -> Run:
    """Have every rank fill its part of a result that all share, if there is memory for it."""

    def run(array: np.ndarray) -> np.ndarray:
        memory = windows.memory()
        if memory is None:
            return otherwise(array)
        out = memory.view(dtype).reshape(shape)
        fill(out, array)
        windows.comm.Barrier()
        out.flags.writeable = False
        return out

    return run
