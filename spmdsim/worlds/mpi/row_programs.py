"""The steps of rows of an MPIWorld: derived once each, their calls compared, the ids among them."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from zlib import crc32

import numpy as np
from mpi4py import MPI

from spmdsim.core.lockstep import contiguous
from spmdsim.redistribution.sparse_lookup import GATHER_ROWS, RowStep
from spmdsim.worlds.local_lookup import Peers, check_shards
from spmdsim.worlds.mpi.checker import Check, Checker, NewCall
from spmdsim.worlds.mpi.comms import Comms
from spmdsim.worlds.mpi.counted import Counted
from spmdsim.worlds.mpi.fingerprint import Record, digest
from spmdsim.worlds.mpi.lookup_messages import RowExchange
from spmdsim.worlds.mpi.shared import Shared
from spmdsim.worlds.programs import StepProgram


class RowProgram(StepProgram):
    """A step of rows as this rank runs it: what compares its calls, and what sends its rows."""

    check: Check | None = None
    exchange: RowExchange | None = None

    def free(self) -> None:
        """Free MPI's types."""
        if self.exchange is not None:
            self.exchange.free()
            self.exchange = None


class RowPrograms:
    """What a rank derived of steps of rows, and the checks of its calls.

    Args:
        rank: this rank.
        comms: where the groups' communicators come from.
        shared: the shared memory of the groups.
        checker: compares the ranks' calls, if they are to be compared.
        cache: where the world keeps what was derived.
    """

    def __init__(
        self, rank: int, comms: Comms, shared: Shared, checker: Checker | None, cache: dict[Any, Any]
    ) -> None:
        self.rank, self.comms, self.shared, self.checker = rank, comms, shared, checker
        self._cache = cache

    def run(
        self, step: RowStep, ids: np.ndarray, values: np.ndarray, shared: bool
    ) -> tuple[np.ndarray, Peers]:
        """The rank's part of a step; see :meth:`World.run_rows`."""
        back = step.goes_back
        if self.rank not in step.src.mesh:
            return np.zeros((0,) * (2 if back else len(step.shape)), values.dtype), ()
        check_shards(step, self.rank, ids, values)
        program: RowProgram | None = self._cache.get((step, values.dtype, shared))
        if program is None:
            program = self._cache[step, values.dtype, shared] = RowProgram()
        compared: AbstractContextManager[None] = nullcontext()
        if self.checker is not None and step.src.mesh.axis_size(*step.axes) > 1:
            if program.check is None:
                program.check = self._check(self.checker, step, values.dtype, shared)
            compared = program.check.inside(
                f"{ids.size} {ids.dtype.name} ids with checksum {crc32(contiguous(ids).data):08x}"
            )
        with compared:
            exchange = program.exchange
            if exchange is None:
                exchange = program.exchange = self._derive(step, values.dtype, shared)
            return (exchange.give_back if back else exchange.look_up)(contiguous(ids), contiguous(values))

    def _check(self, checker: Checker, step: RowStep, dtype: np.dtype, shared: bool) -> Check:
        members = tuple(sorted(step.group(self.rank)))
        way = "shared" if shared else None
        call = NewCall(Record.of(step, dtype.name, way), members, digest(step, dtype.name, way))
        return checker.of(call)

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
