"""The steps of rows of an MPIWorld: derived once each, their calls compared, the ids among them."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from zlib import crc32

import numpy as np
from mpi4py import MPI

from spmdsim.bounded import Bounded
from spmdsim.core.lockstep import contiguous
from spmdsim.redistribution.sparse_lookup import GATHER_ROWS, RowStep
from spmdsim.worlds.local_lookup import Peers, check_shards
from spmdsim.worlds.mpi.check import Call, Check, Checker
from spmdsim.worlds.mpi.comms import Comms
from spmdsim.worlds.mpi.counted import Counted
from spmdsim.worlds.mpi.fingerprint import Record, digest
from spmdsim.worlds.mpi.lookup_messages import RowExchange
from spmdsim.worlds.mpi.shared import Shared

#: Steps whose derived form is kept.
KEPT = 256


class RowPrograms:
    """What a rank derived of steps of rows, and the checks of its calls.

    Args:
        rank: this rank.
        comms: where the groups' communicators come from.
        shared: the shared memory of the groups.
        checker: compares the ranks' calls, if they are to be compared.
    """

    def __init__(self, rank: int, comms: Comms, shared: Shared, checker: Checker | None) -> None:
        self.rank, self.comms, self.shared, self.checker = rank, comms, shared, checker
        self._made: Bounded[tuple[RowStep, np.dtype, bool], RowExchange] = Bounded(KEPT, RowExchange.free)
        self._checks: Bounded[tuple[RowStep, np.dtype, bool], Check] = Bounded(KEPT)

    def run(
        self, step: RowStep, ids: np.ndarray, values: np.ndarray, shared: bool
    ) -> tuple[np.ndarray, Peers]:
        """The rank's part of a step; see :meth:`World.run_rows`."""
        back = step.goes_back
        if self.rank not in step.src.mesh:
            return np.zeros((0,) * (2 if back else len(step.shape)), values.dtype), ()
        check_shards(step, self.rank, ids, values)
        key = (step, values.dtype, shared)
        compared: AbstractContextManager[None] = nullcontext()
        if self.checker is not None and step.src.mesh.axis_size(*step.axes) > 1:
            compared = self._compare(self.checker, key, ids)
        with compared:
            found = self._made.get(key)
            if found is None:
                found = self._made[key] = self._derive(*key)
            return (found.give_back if back else found.look_up)(contiguous(ids), contiguous(values))

    def _compare(
        self, checker: Checker, key: tuple[RowStep, np.dtype, bool], ids: np.ndarray
    ) -> AbstractContextManager[None]:
        check = self._checks.get(key)
        if check is None:
            step, dtype, shared = key
            members = tuple(sorted(step.group(self.rank)))
            way = "shared" if shared else None
            call = Call(Record.of(step, dtype.name, way), members, digest(step, dtype.name, way))
            check = self._checks[key] = checker.of(call)
        return check.inside(
            f"{ids.size} {ids.dtype.name} ids with checksum {crc32(contiguous(ids).data):08x}"
        )

    def _derive(self, step: RowStep, dtype: np.dtype, shared: bool) -> RowExchange:
        members = tuple(sorted(step.group(self.rank)))
        comm = (
            self.comms.of(members) if len(members) > 1 else Counted.of(MPI.COMM_SELF, self.comms.comm.tally)
        )
        alike, target = step.collective == GATHER_ROWS, step.dst.local_shape(step.shape, self.rank)
        windows, near = None, alike and len(members) > 1 and self.shared.possible(members, comm)
        if shared and near and 0 not in target:
            windows = self.shared.windows(members, comm, math.prod(target) * dtype.itemsize)
        return RowExchange(step, self.rank, comm, dtype, near, windows)

    def clear(self) -> None:
        """Free MPI's types."""
        for made in self._made.values():
            made.free()
        self._made.clear()
        self._checks.clear()
