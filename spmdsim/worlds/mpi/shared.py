"""Replicated results in shared memory: one read-only copy for all ranks of a node.

A world uses it after ``world.use(replicated="shared")``. Every rank writes its own block of the result into a window of
the group, and all ranks get one array. The group reuses a window when no rank refers to an array in it. The ranks agree
about free windows in a small all_reduce before each use. It also ensures that all ranks have finished reading.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from spmdsim.core.step import Index, Step
from spmdsim.cost.node_map import NodeMap
from spmdsim.redistribution.implementations.rank_transfers import RankTransfers
from spmdsim.worlds.mpi.counted import Counted
from spmdsim.worlds.mpi.reducing import ReduceGroup, reduce_own_block
from spmdsim.worlds.pool import ArrayOwner
from spmdsim.worlds.programs import Run
from spmdsim.worlds.trace.events import SHARED_MEMORY

#: Windows of one size and group at most. Further results are made as without shared memory.
MOST = 60
#: Windows of one group at most, of all sizes. The sizes used least recently are freed first.
KEPT = 256

#: Windows of closed worlds that this process still reads.
_orphans: list[SharedWindow] = []


class SharedWindow:
    """Shared memory of a group, and whether this process refers to an array in it."""

    def __init__(self, handle: MPI.Win, nbytes: int) -> None:
        memory: Any = handle.Shared_query(0)[0]
        self._handle = handle
        self._memory = np.frombuffer(memory, np.uint8, nbytes)
        self.is_used = False

    def open(self) -> np.ndarray:
        """Return the bytes as an array. The window is used until no view of the array exists."""
        self.is_used = True
        return np.asarray(ArrayOwner(self._memory, self._memory.__array_interface__, self._release))

    def _release(self, *_: object) -> None:
        self.is_used = False

    def free(self) -> None:
        """Free the memory. Collective."""
        self._handle.Free()


class Windows:
    """The windows of one group for results of one size. All ranks of the group are on one node.

    Args:
        comm: the communicator of the group.
        nbytes: bytes of a result.
        group: all windows of the group by size, the size used last at the end. It contains this object.
    """

    def __init__(self, comm: Counted, nbytes: int, group: dict[int, Windows]) -> None:
        self.comm, self.nbytes, self._group = comm, nbytes, group
        self._windows: list[SharedWindow] = []

    def __len__(self) -> int:
        return len(self._windows)

    def _free_mask(self) -> int:
        """Return the windows that no rank uses, as a bit mask; all ranks must call it.

        Bit ``k`` stands for window ``k``.
        """
        mask, common = np.zeros(1, np.uint64), np.empty(1, np.uint64)
        mask[0] = sum(1 << k for k, window in enumerate(self._windows) if not window.is_used)
        self.comm.agree(mask, common, MPI.BAND)
        return int(common[0])

    def memory(self) -> np.ndarray | None:
        """Return the bytes of a window, for a result that all ranks of the group share in memory.

        A window is memory that all ranks see. The ranks agree on the first window that none of them uses. If there is
        none, rank 0 of the group allocates one more. A window is used as long as a view of the returned array exists on
        some rank. All ranks must call it, and get the same window.

        Returns:
            An array of ``nbytes`` bytes. None if all windows of ``nbytes`` bytes are in use and no more may be added:
            the group has :data:`MOST` (60) windows of this size, or :data:`KEPT` (256) windows of all sizes.
        """
        # Make this size the one used last. The order of calls is equal on all ranks, so they free equal windows.
        self._group[self.nbytes] = self._group.pop(self.nbytes, self)
        mask = self._free_mask()
        if not mask and (len(self) >= MOST or not self._can_add()):
            return None
        # The trace names shared memory among the calls of MPI. No call is counted, because none moves the result.
        self.comm.tally.calls[SHARED_MEMORY] = 0
        if mask:
            lowest = (mask & -mask).bit_length() - 1  # the number of the lowest bit that is set
            return self._windows[lowest].open()
        handle = self.comm.window(self.nbytes if self.comm.Get_rank() == 0 else 0)
        self._windows.append(SharedWindow(handle, self.nbytes))
        return self._windows[-1].open()

    def _can_add(self) -> bool:
        """Return True if the group may have one more window.

        If the group has :data:`KEPT` (256) windows, first free unused ones of other sizes, the size used least recently
        first, until it has fewer. All ranks must call it then, because freeing is collective. The limit per size,
        :data:`MOST` (60), is not checked.
        """
        group = list(self._group.values())
        for other_windows in group:
            if other_windows is not self and len(other_windows) and sum(map(len, group)) >= KEPT:
                other_windows.free_unused()
        return sum(map(len, group)) < KEPT

    def free_unused(self) -> None:
        """Free those windows of this object, which have one size, that no rank uses; keep the others.

        All ranks of the group must call it.
        """
        mask = self._free_mask()
        unused = [window for k, window in enumerate(self._windows) if mask >> k & 1]
        self._windows = [window for k, window in enumerate(self._windows) if not mask >> k & 1]
        for window in unused:
            window.free()

    def close(self) -> None:
        """Free the unused windows; used windows stay until the process ends.

        All ranks of the group must call it.
        """
        self.free_unused()
        _orphans.extend(self._windows)
        self._windows.clear()


class Shared:
    """The windows of a world, by group and size; ``nodes`` has the node of each rank."""

    def __init__(self, nodes: NodeMap) -> None:
        self._windows: dict[tuple[int, ...], dict[int, Windows]] = {}
        self._nodes = nodes

    def possible(self, members: tuple[int, ...]) -> bool:
        """Return True if all members, ranks of the world, are on one node."""
        return self._nodes.share_node(members)

    def windows(self, members: tuple[int, ...], comm: Counted, nbytes: int) -> Windows:
        """Return the windows for results of one size in a group; created without communication.

        Args:
            members: the ranks of the group.
            comm: the communicator of the group.
            nbytes: bytes of a result.
        """
        group = self._windows.setdefault(members, {})
        if nbytes not in group:
            group[nbytes] = Windows(comm, nbytes, group)
        return group[nbytes]

    def close(self) -> None:
        """Free the windows that no rank uses; collective over each group."""
        for group in self._windows.values():
            for windows in group.values():
                windows.close()
        self._windows.clear()


def derive_shared_gather(
    traffic: RankTransfers, comm: Counted, dtype: np.dtype, shared: Shared, otherwise: Run
) -> Run:
    """Return the function that runs an all_gather in memory that all ranks share.

    Each rank copies its shard to the result, which is read-only. All ranks must call the function.

    Args:
        traffic: the positions of all shards in the result.
        comm: the communicator of the group.
        dtype: the element type.
        shared: the world's windows.
        otherwise: the function without shared memory. It is used if no window is free, and returned if members are
            replicas of others.
    """
    if traffic.gathered is None:  # some members are replicas of others
        return otherwise
    index: Index | None = traffic.gathered[traffic.me]
    windows = shared.windows(traffic.members, comm, math.prod(traffic.target) * dtype.itemsize)

    def fill(out: np.ndarray, array: np.ndarray) -> None:
        if index is not None:
            out[index] = array

    return _derive_shared_fill(windows, traffic.target, dtype, fill, otherwise)


def derive_shared_all_reduce(
    step: Step,
    group: ReduceGroup,
    members: tuple[int, ...],
    dtype: np.dtype,
    shared: Shared,
    otherwise: Run,
    chunk: int,
) -> Run:
    """Return the function that runs an all_reduce in memory that all ranks share.

    Each rank reduces its block of the result, which is read-only. All ranks must call the function.

    Args:
        step: the all_reduce.
        group: the ranks that reduce, and this rank's block.
        members: the ranks of the group.
        dtype: the element type.
        shared: the world's windows.
        otherwise: the function without shared memory, which runs if no window is free.
        chunk: the bytes that are reduced at a time.
    """
    target = step.dst.local_shape(step.shape, members[group.me])
    windows = shared.windows(members, group.comm, math.prod(target) * dtype.itemsize)

    def fill(out: np.ndarray, array: np.ndarray) -> None:
        reduce_own_block(str(step.op), group, array.reshape(-1), out.reshape(-1), chunk)

    return _derive_shared_fill(windows, target, dtype, fill, otherwise)


def _derive_shared_fill(
    windows: Windows,
    shape: tuple[int, ...],
    dtype: np.dtype,
    fill: Callable[[np.ndarray, np.ndarray], None],
    otherwise: Run,
) -> Run:
    """Return a function by which ranks fill one result that they share in memory.

    The function takes this rank's shard. It takes a free window, lets ``fill`` write this rank's part, waits until all
    ranks have written theirs, and returns the result, which is read-only. If no window is free, it returns
    ``otherwise(shard)``.

    Args:
        windows: the memory for results of the size that ``shape`` and ``dtype`` give.
        shape: the shape of the result.
        dtype: the element type of the result.
        fill: writes this rank's part: takes the result and the rank's shard, returns None.
        otherwise: the function that runs the step without shared memory.
    """

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
