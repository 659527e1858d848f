"""MPIWorld: one process per rank, real collectives on cached sub-communicators of the mesh.

Everything that follows from a step, the rank and the element type is derived once and kept; a repeated call
costs a few microseconds above MPI's. Results live in reused buffers (see ``pool``), are C-contiguous and are
the caller's; only ranks of a step's meshes take part in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from spmdsim.core.elements import contiguous
from spmdsim.core.lockstep import cutting
from spmdsim.core.step import LOCAL_STEPS, Step
from spmdsim.errors import WorldError, many
from spmdsim.layout.element_type import check_reduce
from spmdsim.redistribution.group_steps import EXCLUSIVE_SCAN, Parts, PartsStep, ScanStep
from spmdsim.redistribution.halo import HaloStep, Room, room_around
from spmdsim.redistribution.sparse_lookup import GATHER_ROWS, RowStep
from spmdsim.redistribution.ways.rank_transfers import group_transfers
from spmdsim.redistribution.ways.tuning import tuning
from spmdsim.redistribution.ways.way import Way, has_ways, threshold, ways_of
from spmdsim.redistribution.ways.way_trial import TunedSteps, require_reproducible, tune_mode
from spmdsim.settings import DEADLINE, RECORD
from spmdsim.trace import recorder
from spmdsim.trace.events import Asked
from spmdsim.worlds.emulated import emulation
from spmdsim.worlds.local_steps import Arrived, check_shards, filling, returning_nothing, returning_zero
from spmdsim.worlds.mpi import messages
from spmdsim.worlds.mpi.alike import agreed
from spmdsim.worlds.mpi.boards import board_of, world_ranks
from spmdsim.worlds.mpi.checker import Check, Checker, making, members_of
from spmdsim.worlds.mpi.comms import Comms, Comparison
from spmdsim.worlds.mpi.counted import VENDOR, Counted, Tally
from spmdsim.worlds.mpi.exchanges import (
    exchange_halo,
    exchange_numbered,
    scan,
    send_parts,
    settled,
    sum_directly,
)
from spmdsim.worlds.mpi.forks import several
from spmdsim.worlds.mpi.lookup_messages import RowExchange, RowProgram
from spmdsim.worlds.mpi.messages import broadcast, place, run_schedule
from spmdsim.worlds.mpi.posting import BeginsEarly
from spmdsim.worlds.mpi.reducing import ReduceGroup, reduce_all, reduce_scattered
from spmdsim.worlds.mpi.shared import Shared, gather_shared, reduce_shared
from spmdsim.worlds.mpi.trials import Trials, common_machine, machine_name, tried
from spmdsim.worlds.programs import Moved, Run, StepProgram, check_shard, forget
from spmdsim.worlds.provenance import Provenance
from spmdsim.wrong_calls import explained

#: The way of results that the ranks of a node share, and the collectives that have it.
SHARED = "shared"
SHAREABLE = ("all_gather", "all_reduce")


@dataclass
class MPIStepProgram(StepProgram):
    """A step as this rank runs it, derived once.

    ``run`` compares the call with the other ranks', too, if it communicates and they compare. The shard before may move
    into the ``room``; MPI's types are freed when the program is forgotten.
    """

    step: Step
    shape: tuple[int, ...]
    members: tuple[int, ...] = ()
    check: Check | None = None
    run: Run | None = None
    room: Room | None = None
    types: list[MPI.Datatype] = field(default_factory=list)

    def after(self, shards: list[Any], result: np.ndarray) -> list[Any]:
        """The shards after; the one before moves to where they lie, if that is a copy of it.

        Not while what runs is written down: who writes it knows arrays by their identity.
        """
        if self.room is not None and not recorder.programs and type(shards) is list:
            shards[0] = settled(shards[0], result, self.room)
        return [result]

    def free(self) -> None:
        """Free its types."""
        self.run = None
        while self.types:
            self.types.pop().Free()


def _contiguous_first(run: Run) -> Run:
    """Return a run that takes any array from one that takes C-contiguous arrays."""
    return lambda array: run(contiguous(array))


@explained
class MPIWorld(BeginsEarly):
    """The ranks of a communicator, each in its own process.

    Args:
        comm: the communicator; COMM_WORLD if left out. It stays the caller's.
        check: whether ranks compare what they run; ``SPMDSIM_CHECK`` if left out. ``"auto"`` compares the first
            call of each kind before it runs, and every call before any number leaves the program (see ``calls``);
            ``True`` every call before it runs, and the user's source lines too; ``False`` none. ``"values"`` also
            compares the copies that operators and redistributions read, of large ones samples.
        deadline: seconds that a call waits for other ranks before the job ends; ``SPMDSIM_DEADLINE`` if left out.
        reproducible: whether reductions keep an order that only their sizes decide; if not, other orders are tried, too.

    Attributes:
        comm: the communicator.
        rank: this process's rank in it.
    """

    def __init__(
        self,
        comm: MPI.Comm | None = None,
        check: bool | str | None = None,
        deadline: float | None = None,
        reproducible: bool = True,
    ) -> None:
        self.comm = MPI.COMM_WORLD if comm is None else comm
        self.rank = self.comm.Get_rank()
        super().__init__(self.comm.Get_size(), (self.rank,))
        self.job = world_ranks(self.comm)
        self.provenance = Provenance()  # until the ranks have agreed whether they compare
        self.vendor, self._tally = VENDOR, Tally()
        self._everyone = Counted.of(self.comm, self._tally)
        wanted: dict[str, Callable[[], Any]] = {
            "tuning": lambda: tuning(VENDOR),
            "tune": tune_mode,
            "reproducible": lambda: require_reproducible(reproducible),
            "record": RECORD.read,
        }
        with making(self, self.comm, DEADLINE.default if deadline is None else deadline):
            settings = agreed(self._everyone, check, deadline, wanted)
            self.choices, self._deadline = settings["tuning"], settings["deadline"]
            self.reproducible: bool = settings["reproducible"]
            machine = common_machine(self._everyone) if self.choices.ways.machines else machine_name()
            self._trials = Trials(settings["tune"], self.choices.ways, machine)
            self._comms, self._shared = Comms(self._everyone, self._deadline), Shared()
        mode = settings["check"] if self.size > 1 else False
        self.watches_values, self._checker = mode == "values", None
        if not mode:
            self.provenance = None
        else:
            mode = "auto" if self.watches_values else mode
            board, places = board_of(self._everyone)
            if settings["record"]:
                from spmdsim.worlds.mpi.recording import Recording

                Recording.of(board, settings["record"])
            self._checker = Checker(self, board, places, mode, self._deadline)
        if self.size > 1:
            self._comms.at_end(self._checker)
            several.add(self)

    @classmethod
    def of_launcher(cls, size: int) -> MPIWorld:
        """The world of all processes that the launcher says it started; who asks for it keeps it.

        Raises:
            WorldError: MPI sees another number of processes.
        """
        if (seen := MPI.COMM_WORLD.Get_size()) != size:
            use = f"use the mpirun that belongs to {VENDOR}"
            raise WorldError(
                f"the launcher started {many(size, 'process', 'processes')} but {VENDOR} sees {seen}: {use}"
            )
        return cls()

    def run(self, step: Step, shards: list[Any], algorithm: str | None = None) -> list[Any]:
        """Run one step on this rank's shard; see :meth:`World.run`. Known calls take the short way."""
        if algorithm is None and not self.algorithms and not recorder.open_traces and len(shards) == 1:
            array = shards[0]
            way = SHARED if self.replicated == SHARED and step.collective in SHAREABLE else None
            program = self.cache.get((step.number, array.dtype, way))
            if program is None or program.run is None or array.shape != program.shape:
                return super().run(step, shards)
            if program.step is step or program.step == step:
                return (
                    [program.run(array)]
                    if program.room is None
                    else program.after(shards, program.run(array))
                )
        return super().run(step, shards, algorithm)

    def program(self, step: Step, dtype: np.dtype) -> MPIStepProgram | None:
        """The derived form of a step that runs natively."""
        return (
            None
            if self.algorithms
            else self._cached(step, dtype, self._shared_if(step.collective in SHAREABLE))
        )

    def _cached(self, step: Step, dtype: np.dtype, algorithm: str | None) -> MPIStepProgram | None:
        program: MPIStepProgram | None = self.cache.get((step.number, dtype, algorithm))
        return program if program is not None and program.step == step else None

    def _shared_if(self, possible: bool) -> str | None:
        return SHARED if possible and self.replicated == SHARED else None

    def _run(self, step: Step, shards: list[Any], algorithm: str | None) -> list[Any]:
        if len(shards) != 1:
            raise WorldError(
                f"{many(len(shards), 'shard was', 'shards were')} given to a process that owns one rank"
            )
        algorithm = self._shared_if(step.collective in SHAREABLE) if algorithm is None else algorithm
        array = shards[0]
        self._tally.begin()
        program = self._cached(step, array.dtype, algorithm)
        if program is None:
            program = self._begin(step, array.dtype, algorithm)
        check_shard(step, self.rank, array.shape, program.shape)
        if program.run is not None:
            return program.after(shards, program.run(array))
        # Compared before it is derived: making a communicator is a collective, too, that ranks must agree about.
        check = program.check
        with nullcontext() if check is None else check.inside():
            run = self._derive(program, step, array.dtype, algorithm)
            program.run = _contiguous_first(run) if check is None else check.before(run)
            return program.after(shards, run(contiguous(array)))

    def _run_rows(self, step: RowStep, ids: list[Any], values: list[Any]) -> Arrived:
        self.check_mesh(step.src.mesh)
        self._tally.begin()
        if self.rank not in step.src.mesh:
            return [np.zeros((0,) * (2 if step.goes_back else len(step.shape)), values[0].dtype)], [()]
        check_shards(step, self.rank, ids[0], values[0])
        shared, dtype, these = self._shared_if(True), values[0].dtype, contiguous(ids[0])
        program: RowProgram | None = self.cache.get((step, dtype, shared))
        if program is None:
            check = self._check(step, dtype, shared, step.group(self.rank))
            program = self.cache[step, dtype, shared] = RowProgram(check)
        with program.compared(these):
            if program.exchange is None:
                program.exchange = self._row_exchange(step, dtype)
            run = program.exchange.give_back if step.goes_back else program.exchange.look_up
            result, peers = run(these, contiguous(values[0]))
        return [result], [peers]

    def _row_exchange(self, step: RowStep, dtype: np.dtype) -> RowExchange:
        members, target = tuple(sorted(step.group(self.rank))), step.dst.local_shape(step.shape, self.rank)
        if len(members) == 1:
            alone = Counted.of(MPI.COMM_SELF, self._tally)
            return RowExchange(step, self.rank, alone, dtype, near=False, windows=None)
        comm, windows = self._comms.of(members), None
        near = step.collective == GATHER_ROWS and self._shared.possible(members, comm)
        if self.replicated == SHARED and near and 0 not in target:
            windows = self._shared.windows(members, comm, math.prod(target) * dtype.itemsize)
        return RowExchange(step, self.rank, comm, dtype, near, windows)

    def _run_parts(self, step: PartsStep, dtype: np.dtype, outgoing: Sequence[Parts | None]) -> Arrived:
        self._tally.begin()
        if outgoing[0] is None:
            return [None], [()]
        order = step.group(self.rank)
        if (step, dtype) not in self.cache:
            self.cache[step, dtype] = self._check(step, dtype, None, order)
        check: Check | None = self.cache[step, dtype]
        with nullcontext() if check is None else check.inside():
            return send_parts(self._comms.of(tuple(sorted(order))), order, self.rank, dtype, outgoing[0])

    def _check(self, step: Step, dtype: np.dtype, way: str | None, ranks: Sequence[int]) -> Check | None:
        """What compares a call of these ranks, if they compare their calls and this one is among them."""
        if self._checker is None or self.rank not in ranks or len(ranks) == 1:
            return None
        return self._checker.of(step, dtype, way, ranks)

    def _begin(self, step: Step, dtype: np.dtype, algorithm: str | None) -> MPIStepProgram:
        self.check_step(step)
        program = MPIStepProgram(step, step.src.local_shape(step.shape, self.rank), members_of(step))
        if isinstance(step, HaloStep):
            program.room = room_around(step, self.rank)
        if step.collective not in LOCAL_STEPS:
            program.check = self._check(step, dtype, algorithm, program.members)
        self.cache[step.number, dtype, algorithm] = program
        return program

    def _derive(self, program: MPIStepProgram, step: Step, dtype: np.dtype, algorithm: str | None) -> Run:
        if algorithm is None:
            return self._program(program, step, dtype)
        if algorithm == SHARED:
            return self._shared_way(step, dtype, self._program(program, step, dtype))
        return self._scheduled(step, algorithm, dtype)

    def _scheduled(self, step: Step, algorithm: str, dtype: np.dtype) -> Run:
        if self.rank not in step.src.mesh:
            return returning_nothing(step, dtype)
        part = emulation(step, algorithm, self.rank, dtype)
        return run_schedule(part, self._comms.of(tuple(sorted(part.members))))

    def _program(self, program: MPIStepProgram, step: Step, dtype: np.dtype) -> Run:
        """The step by its only way, or by those that are tried."""
        ways = ways_of(step, self.rank, dtype, self.choices, messages.MAX_COUNT, self.reproducible)

        def make(way: Way) -> Run:
            run = self._by_way(step, dtype, way, program)
            return run if step.shape_after or self.rank in step.dst.mesh else returning_zero(run, dtype)

        if not has_ways(step) or ways[0].name == "nothing":
            return make(ways[0])
        # Of steps that have one way here, too: what is kept must be the same on ranks whose groups differ.
        some, trial = self._trials.of(step, dtype, ways, program.members, program.free)
        if len(some) == 1:
            return make(some[0])
        meet = (lambda: None) if program.check is None else program.check.calls.meet
        group = step.group(self.rank) if step.axes else program.members
        comm = self._comms.of(tuple(sorted(group)))
        return tried(trial, lambda number: make(some[number]), comm, meet)

    def _by_way(self, step: Step, dtype: np.dtype, way: Way, program: MPIStepProgram) -> Run:
        if way.name == "nothing":
            return returning_nothing(step, dtype)
        if step.collective in ("all_reduce", "reduce_scatter", EXCLUSIVE_SCAN):
            check_reduce(step.op, dtype)
        if isinstance(step, HaloStep):
            if step.collective in LOCAL_STEPS:
                return exchange_halo(step, self.rank, None, dtype)
            members, group = self._group(step)
            return exchange_halo(step, self.rank, (members, group.comm), dtype)
        if way.name == "slice":
            return cutting(step.dst.bounds(step.shape, self.rank), step.src.bounds(step.shape, self.rank))
        if way.name == "fill":
            return filling(step, self.rank, dtype)
        target = step.dst.local_shape(step.shape_after, self.rank)
        if way.name in ("reshape", "same"):
            return lambda array: array.reshape(target)
        members = program.members
        if way.name == "numbered":
            return exchange_numbered(step, self.rank, self._comms.of(members), members, dtype)
        if way.name == "summed":
            return sum_directly(step, self.rank, self._comms.of(members), members, dtype)
        if isinstance(step, ScanStep):
            return scan(step, self._group(step)[1], dtype, way)
        if way.traffic is None:
            _, group = self._group(step)
            if step.collective == "reduce_scatter":
                return reduce_scattered(step, group, dtype, way)
            return reduce_all(step, group, dtype, target, way)
        comm = self._comms.of(way.traffic.members)
        if way.name.startswith("schedule "):
            return self._scheduled(step, way.name.removeprefix("schedule "), dtype)
        if way.name == "broadcast":
            root = way.traffic.members.index(step.src.mesh.rank_at(0))
            return broadcast(way.traffic, comm, dtype, root, step.shape)
        return place(way, comm, dtype, program.types)

    def _group(self, step: Step) -> tuple[tuple[int, ...], ReduceGroup]:
        """The ranks that this one reduces with, sorted, and their communicator."""
        order = step.group(self.rank)
        members = tuple(sorted(order))
        numbers = tuple(members.index(rank) for rank in order)
        return members, ReduceGroup(self._comms.of(members), numbers, members.index(self.rank))

    def _moved(self, step: Step, dtype: np.dtype, algorithm: str | None) -> Moved:
        """Counted from the buffers and counts of the calls that were made."""
        tally = self._tally
        return Moved((tally.data.received,), (tally.data.sent,), tally.way(), tally.by_library())

    def _moved_rows(self, step: RowStep | PartsStep, dtype: np.dtype, *_: object) -> Moved:
        return self._moved(step, dtype, None)

    @property
    def tuning(self) -> TunedSteps:
        """Which ways the steps of this process take, and why; see :attr:`World.tuning`."""
        return self._trials.table()

    @property
    def control(self) -> dict[str, Asked]:
        """All control traffic of this process in this world so far, by purpose."""
        return dict(self._tally.control)

    def _shared_way(self, step: Step, dtype: np.dtype, otherwise: Run) -> Run:
        """One copy of the result for all ranks of the node, if the group is on one and has any data."""
        if self.rank not in step.src.mesh or 0 in step.shape or step.src.mesh.axis_size(*step.axes) == 1:
            return otherwise
        members, group = self._group(step)
        if 0 in step.dst.local_shape(step.shape, self.rank) or not self._shared.possible(members, group.comm):
            return otherwise
        if step.collective == "all_gather":
            return gather_shared(group_transfers(step, self.rank), group.comm, dtype, self._shared, otherwise)
        chunk = threshold(self.choices.chunk, len(members))
        return reduce_shared(step, group, members, dtype, self._shared, otherwise, chunk)

    # -- the control plane ----------------------------------------------------------------------------

    def barrier(self) -> None:
        """Wait until all ranks are here; WorldError: some are elsewhere, or do not come before the deadline."""
        with self._together("barrier"):
            self._everyone.Barrier()

    def gather_objects(self, values: Sequence[Any], what: str = "gather_objects") -> list[Any]:
        """Return all ranks' values, pickled; see :meth:`World.gather_objects`. WorldError: as :meth:`barrier`."""
        (value,) = super().gather_objects(values)
        with self._together(what):
            return self._everyone.allgather(value)

    def origin(self, meta: Any) -> int:
        """Which one of the tensors of its kind a new one is; see :meth:`World.origin`."""
        return 0 if self._checker is None else self._checker.origin(meta)

    def settle(self) -> None:
        """Compare what this rank called with what the others called; see :meth:`World.settle`."""
        super().settle()
        if self._checker is not None:
            self._checker.settle()

    def _together(self, what: str, ranks: Sequence[int] | None = None) -> AbstractContextManager[None]:
        return nullcontext() if self._checker is None else self._checker.together(what, ranks)

    def _chosen(self, what: str) -> None:
        if self._checker is not None:
            chosen = ", ".join(f"{name}={way}" for name, way in sorted(self.algorithms.items()))
            self._checker.event(f"{what} ({chosen or 'native'}; replicated={self.replicated})")

    def equal_on(self, ranks: Sequence[int], number: int, what: str) -> bool:
        """Whether these ranks have the same number; see :meth:`World.equal_on`. WorldError: as :meth:`barrier`."""
        members = tuple(sorted(ranks))
        with self._together(what, members):
            return Comparison(self._comms.of(members), number, self._deadline).equal()

    def gather_on(self, ranks: Sequence[int], value: Any, what: str = "") -> dict[int, Any]:
        """Return the values of these ranks; see :meth:`World.gather_on`."""
        members = sorted(ranks)
        with self._together(what, members) if what else nullcontext():
            return dict(zip(members, self._comms.of(tuple(members)).allgather(value)))

    def close(self) -> None:
        """Free communicators and MPI types; collective over the world. Closing it again does nothing."""
        if self._comms.closed:
            return
        told = self._checker is not None and self._checker.told
        try:
            with self._together("close"):
                self.invalidate()
        except WorldError:
            if not told:  # else all ranks know, and somebody decided to go on
                raise
        if self._checker is not None:
            self._checker.close()
        for entry in self.cache.values():
            forget(entry)
        self.cache.clear()
        self.constants.clear()
        self._shared.close()
        self._comms.free()
