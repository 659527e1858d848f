"""MPIWorld: one process per rank, real collectives on cached sub-communicators of the mesh.

Everything that follows from a step, the rank and the element type is derived once and cached; a repeated call
takes a few microseconds more than MPI's. Results are in reused buffers (see ``pool``), are C-contiguous and belong to
the caller. Only ranks of a step's meshes take part in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from mpi4py import MPI

from spmdsim.core.elements import contiguous
from spmdsim.core.lockstep import make_cutter
from spmdsim.core.step import LOCAL_STEPS, Step
from spmdsim.errors import WorldError, many
from spmdsim.launcher import Launched, detect
from spmdsim.layout.element_type import check_reduce
from spmdsim.redistribution.implementations.implementation import (
    Implementation,
    find_threshold,
    has_implementations,
    implementations_of,
)
from spmdsim.redistribution.implementations.rank_transfers import group_transfers
from spmdsim.redistribution.implementations.trial import TunedSteps, require_reproducible, tune_mode
from spmdsim.redistribution.implementations.tuning import tuning
from spmdsim.redistribution.steps.group_steps import EXCLUSIVE_SCAN, Parts, PartsStep, ScanStep
from spmdsim.redistribution.steps.halo import HaloStep, padded_buffer
from spmdsim.redistribution.steps.row_steps import GATHER_ROWS, RowStep
from spmdsim.settings import DEADLINE, RECORD
from spmdsim.shutdown.phase_watch import check_size
from spmdsim.worlds.agreement.board_agreement import make_agreement, making_world
from spmdsim.worlds.agreement.call import Call
from spmdsim.worlds.agreement.comparison import Comparison
from spmdsim.worlds.agreement.interface import CallAgreement, CallScope
from spmdsim.worlds.agreement.node_memory import find_near_processes, gather_places, world_ranks
from spmdsim.worlds.agreement.process_state import map_nodes
from spmdsim.worlds.agreement.rank_hosts import add_hosts
from spmdsim.worlds.agreement.start_agreement import agree_on_start
from spmdsim.worlds.emulated import emulation
from spmdsim.worlds.local_steps import Arrived, check_local_shapes, derive_fill, make_empty_run, make_zero_run
from spmdsim.worlds.mpi import messages
from spmdsim.worlds.mpi.comms import Comms
from spmdsim.worlds.mpi.counted import VENDOR, Counted, Tally
from spmdsim.worlds.mpi.exchanges import (
    derive_direct_reduction,
    derive_halo_exchange,
    derive_numbered_exchange,
    derive_scan,
    send_parts,
)
from spmdsim.worlds.mpi.forks import several
from spmdsim.worlds.mpi.lookup_messages import RowExchange, RowProgram
from spmdsim.worlds.mpi.messages import derive_broadcast, derive_placement, derive_schedule_run
from spmdsim.worlds.mpi.nonblocking import BeginsEarly
from spmdsim.worlds.mpi.reducing import ReduceGroup, derive_all_reduce, derive_reduce_scatter
from spmdsim.worlds.mpi.shared import Shared, derive_shared_all_reduce, derive_shared_gather
from spmdsim.worlds.mpi.step_runs import ComparedRun, ContiguousRun, MPIStepProgram
from spmdsim.worlds.mpi.trials import Trials, common_machine, machine_name, run_trial
from spmdsim.worlds.programs import Moved, Run, check_mode, check_shard, forget
from spmdsim.worlds.provenance import Provenance
from spmdsim.worlds.trace import recorder
from spmdsim.worlds.trace.events import CallCounts
from spmdsim.wrong_calls import explained

#: The variant in which the ranks of a node share results, and the collectives that support it.
SHARED = "shared"
SHAREABLE = ("all_gather", "all_reduce")


@explained
class MPIWorld(BeginsEarly):
    """World of the ranks of a communicator, each in its own process.

    Args:
        comm: the communicator; COMM_WORLD by default. It stays the caller's.
        check: how ranks compare what they run; ``SPMDSIM_CHECK`` by default. ``"auto"`` compares the first call of each
            kind before it runs, and every call before any number leaves the program (see
            :mod:`spmdsim.worlds.agreement`). ``True`` compares every call before it runs, and the user's source lines,
            too. ``False`` compares none. ``"values"`` also compares the copies that operators and redistributions read,
            and samples of large ones.
        deadline: seconds that a call waits for other ranks before the job ends; ``SPMDSIM_DEADLINE`` by default.
        reproducible: True if reductions have an order that only sizes and nodes decide; False to try other orders, too.
        agreement: compares the ranks' calls; made from ``check`` by default. ``CallAgreement()`` compares nothing.

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
        agreement: CallAgreement | None = None,
    ) -> None:
        if comm is None and MPI.COMM_WORLD.Get_size() == 1 and (job := detect()) and job.launcher == "Slurm":
            check_size(1, VENDOR, job)
        self.comm = MPI.COMM_WORLD if comm is None else comm
        self.rank = self.comm.Get_rank()
        super().__init__(self.comm.Get_size(), (self.rank,))
        self.job = world_ranks(self.comm)
        self.vendor, self._tally = VENDOR, Tally()
        self._everyone = Counted.of(self.comm, self._tally)
        wanted: dict[str, Callable[[], Any]] = {
            "check": lambda: check_mode(check),
            "tuning": lambda: tuning(VENDOR),
            "tune": tune_mode,
            "reproducible": lambda: require_reproducible(reproducible),
            "record": RECORD.read,
        }
        history, patience = Provenance(), DEADLINE.default if deadline is None else deadline
        with making_world(self.comm, history, patience) if agreement is None else nullcontext():
            settings = agree_on_start(self._everyone, deadline, wanted)
            self.choices, self._deadline = settings["tuning"], settings["deadline"]
            self.reproducible: bool = settings["reproducible"]
            machine = (
                common_machine(self._everyone) if self.choices.implementations.machines else machine_name()
            )
            self._trials = Trials(settings["tune"], self.choices.implementations, machine)
            processes = gather_places(self._everyone)
            self._place_ranks(map_nodes(processes))
            add_hosts(world_ranks(self.comm), [process.host for process in processes])
            self._comms, self._shared = Comms(self._everyone, self._deadline), Shared(self.nodes)
        mode = settings["check"] if self.size > 1 else False
        if agreement is None and mode:
            agreement = make_agreement(
                self._everyone, processes, history, self._deadline, mode is True, settings["record"]
            )
            history.add_read = agreement.add_read
        elif agreement is None:
            agreement = CallAgreement(find_near_processes(processes, self.rank))
        self.agreement, self.provenance = agreement, history if agreement.compares else None
        self.watches_values = self.compares and mode == "values"
        self.remote_ranks = frozenset(r for r in range(self.size) if agreement.describe(r).is_remote)
        if self.size > 1:
            self._comms.at_end(agreement, bool(self.remote_ranks))
            several.add(self)

    @classmethod
    def of_launcher(cls, job: Launched) -> MPIWorld:
        """Return the world of all processes that the launcher started; all of them must call it.

        Args:
            job: the job, as the launcher describes it.

        Raises:
            LauncherError: If MPI sees another number of processes than the launcher started.
        """
        check_size(MPI.COMM_WORLD.Get_size(), VENDOR, job)
        return cls()

    def run(self, step: Step, shards: list[Any], algorithm: str | None = None) -> list[Any]:
        """Run one step on this rank's shard; see :meth:`World.run` for arguments and errors.

        A repeated call runs the cached program directly, unless a trace is open or an algorithm is chosen.

        Args:
            step: the collective and its two layouts.
            shards: a list of one array, this rank's. After a halo exchange it may have an equal copy instead.
            algorithm: an emulated algorithm for this call; None for the choice of :meth:`use`.
        """
        if algorithm is None and not self.algorithms and not recorder.open_traces and len(shards) == 1:
            array = shards[0]
            variant = SHARED if self.replicated == SHARED and step.collective in SHAREABLE else None
            program = self.cache.get((step.number, array.dtype, variant))
            if program is None or program.run is None or array.shape != program.shape:
                return super().run(step, shards)
            if program.step is step or program.step == step:
                result = program.run(array)
                return [result] if program.room is None else program.after(shards, result)
        return super().run(step, shards, algorithm)

    def program(self, step: Step, dtype: np.dtype) -> MPIStepProgram | None:
        """Return the cached program of a step for an element type, or None.

        Return None before the step's first run, and if any algorithm was chosen (:meth:`use`).
        """
        if self.algorithms:
            return None
        return self._cached(step, dtype, self._shared_if(step.collective in SHAREABLE))

    def _cached(self, step: Step, dtype: np.dtype, algorithm: str | None) -> MPIStepProgram | None:
        """Return the cached program of a step, or None."""
        program: MPIStepProgram | None = self.cache.get((step.number, dtype, algorithm))
        return program if program is not None and program.step == step else None

    def _shared_if(self, possible: bool) -> str | None:
        """Return :data:`SHARED` if ``possible`` and ranks share replicated results, else None."""
        return SHARED if possible and self.replicated == SHARED else None

    def _run(self, step: Step, shards: list[Any], algorithm: str | None) -> list[Any]:
        """Run a step on this rank's shard, and return a list with the new shard.

        The first call of a step compares the call with those of all ranks, derives the function that runs it, and
        caches the function. Further calls only run it.

        Args:
            step: the step.
            shards: a list of one array, this rank's.
            algorithm: the name of an emulated algorithm, such as "ring". None: MPI's collectives, or results that ranks
                share in memory if this world is set so (:meth:`use`).

        Raises:
            WorldError: If ``shards`` has another length, the shard does not fit its layout, or this world cannot run
                the step.
            DisagreementError: If ranks make other calls, or do not come before the deadline.
        """
        if len(shards) != 1:
            raise WorldError(
                f"{many(len(shards), 'shard was', 'shards were')} given to a process that owns one rank"
            )
        algorithm = self._shared_if(step.collective in SHAREABLE) if algorithm is None else algorithm
        array = shards[0]
        self._tally.begin()
        program = self._cached(step, array.dtype, algorithm)
        if program is None:
            program = self._start_program(step, array.dtype, algorithm)
        check_shard(step, self.rank, array.shape, program.shape)
        if program.run is not None:
            return program.after(shards, program.run(array))
        # Compare before deriving the run: making a communicator is a collective, too, that ranks must agree about.
        call = program.call
        with CallScope(self.agreement, call, self.call_provenance):
            run = self._derive(program, step, array.dtype, algorithm)
            program.run = (ContiguousRun(run) if call is None else ComparedRun(run, call, self)).run
            return program.after(shards, run(contiguous(array)))

    def _run_rows(self, step: RowStep, ids: list[Any], values: list[Any]) -> Arrived:
        """Look rows up in a table that is split over ranks, or return their gradients.

        See :meth:`World.run_rows`. The first call of a step derives the exchange of rows. All ranks of the group must
        call it.

        Args:
            step: the step; it returns gradients if ``step.goes_back``.
            ids: a list of one array, this rank's ids: the numbers of the wanted rows.
            values: a list of one array, this rank's shard of the table, or the gradients of the rows that it looked up.

        Returns:
            ``([result], [peers])``, two lists of one item.
            ``result``: the rows, or the gradient of this rank's shard of the table. An array without elements if this
            rank is outside the mesh.
            ``peers``: ``(peer, elements)`` for each other rank: how many elements this rank received from it.

        Raises:
            InputError: If ids are no integers, or an id is neither a row nor the padding (an id that names no row).
            WorldError: If the mesh has ranks that the world lacks, or shards do not fit the layouts.
            DisagreementError: If ranks make other calls or have different ids, or do not come before the deadline.
        """
        self.check_mesh(step.src.mesh)
        self._tally.begin()
        if self.rank not in step.src.mesh:
            return [np.zeros((0,) * (2 if step.goes_back else len(step.shape)), values[0].dtype)], [()]
        check_local_shapes(step, self.rank, ids[0], values[0])
        shared, dtype, own_ids = self._shared_if(True), values[0].dtype, contiguous(ids[0])
        program: RowProgram | None = self.cache.get((step, dtype, shared))
        if program is None:
            call = self._call(step, dtype, shared, step.group(self.rank), has_any_length=True)
            program = self.cache[step, dtype, shared] = RowProgram(call)
        with CallScope(self.agreement, program.call_for(own_ids), self.call_provenance):
            if program.exchange is None:
                program.exchange = self._row_exchange(step, dtype)
            run = program.exchange.give_back if step.goes_back else program.exchange.look_up
            result, peers = run(own_ids, contiguous(values[0]))
        return [result], [peers]

    def _row_exchange(self, step: RowStep, dtype: np.dtype) -> RowExchange:
        """Return a new exchange of the rows of a step.

        All ranks of the group must call it, because it may create their communicator. The result is in shared memory if
        ranks share results, all want equal rows, and all are on one node.

        Args:
            step: the step; this rank is in its mesh.
            dtype: the element type.
        """
        members, target = tuple(sorted(step.group(self.rank))), step.dst.local_shape(step.shape, self.rank)
        if len(members) == 1:
            alone = Counted.of(MPI.COMM_SELF, self._tally)
            return RowExchange(step, self.rank, alone, dtype, near=False, windows=None)
        comm, windows = self._comms.of(members), None
        near = step.collective == GATHER_ROWS and self._shared.possible(members)
        if self.replicated == SHARED and near and 0 not in target:
            windows = self._shared.windows(members, comm, math.prod(target) * dtype.itemsize)
        return RowExchange(step, self.rank, comm, dtype, near, windows)

    def _run_parts(self, step: PartsStep, dtype: np.dtype, outgoing: Sequence[Parts | None]) -> Arrived:
        """Exchange arrays in this rank's group; see :meth:`World.run_parts`.

        All ranks of the group must call it.

        Args:
            step: the groups.
            dtype: the element type.
            outgoing: a list of one item: the arrays that this rank sends and the lengths that it receives, or None if
                the rank is outside the mesh.

        Returns:
            Two lists of one item each. The first holds this rank's list of received arrays, or None outside the mesh.
            The second holds a tuple of pairs ``(peer, elements)``, which is empty outside the mesh.
        """
        self._tally.begin()
        if outgoing[0] is None:
            return [None], [()]
        order = step.group(self.rank)
        if (step, dtype) not in self.cache:
            self.cache[step, dtype] = self._call(step, dtype, None, order, has_any_length=True)
        with CallScope(self.agreement, self.cache[step, dtype], self.call_provenance):
            return send_parts(self._comms.of(tuple(sorted(order))), order, self.rank, dtype, outgoing[0])

    def _call(
        self,
        step: Step,
        dtype: np.dtype,
        algorithm: str | None,
        ranks: Sequence[int],
        has_any_length: bool = False,
    ) -> Call | None:
        """Return the call that ranks compare for a step, or None.

        Return None if the world compares nothing, this rank is not among ``ranks``, or ``ranks`` has one rank only.

        Args:
            step: the step.
            dtype: the element type.
            algorithm: the emulated algorithm, or None.
            ranks: the ranks that make the call.
            has_any_length: True if the lengths of messages depend on the data.
        """
        if not self.compares or self.rank not in ranks or len(ranks) == 1:
            return None
        return Call.of_step(step, dtype, algorithm, ranks, has_any_length)

    def _start_program(self, step: Step, dtype: np.dtype, algorithm: str | None) -> MPIStepProgram:
        """Make the program of a step, put it into the cache, and return it.

        An earlier entry is replaced; the caller looks into the cache first. The program has no ``run`` yet: it is
        derived later.

        Args:
            step: the step.
            dtype: the element type.
            algorithm: as in :meth:`_derive`.

        Raises:
            WorldError: If this world cannot run the step.
        """
        self.check_step(step)
        members = tuple(sorted({*step.src.mesh.rank_list, *step.dst.mesh.rank_list}))
        program = MPIStepProgram(step, step.src.local_shape(step.shape, self.rank), members)
        if isinstance(step, HaloStep):
            program.room = padded_buffer(step, self.rank)
        if step.collective not in LOCAL_STEPS:
            program.call = self._call(step, dtype, algorithm, members)
        self.cache[step.number, dtype, algorithm] = program
        return program

    def _derive(self, program: MPIStepProgram, step: Step, dtype: np.dtype, algorithm: str | None) -> Run:
        """Return the function that runs a step on this rank's shard.

        All ranks of the step must call it, because it may create communicators.

        Args:
            program: the program of the step, which keeps the MPI types.
            step: the step.
            dtype: the element type.
            algorithm: None for MPI's collectives, :data:`SHARED` for a result that ranks share, or the name of an
                emulated algorithm.

        Raises:
            ScheduleError: If the collective does not have the algorithm.
            WorldError: If the reduction is undefined for the element type.
        """
        if algorithm is None:
            return self._program(program, step, dtype)
        if algorithm == SHARED:
            return self._derive_shared_run(step, dtype, self._program(program, step, dtype))
        return self._scheduled(step, algorithm, dtype)

    def _scheduled(self, step: Step, algorithm: str, dtype: np.dtype) -> Run:
        """Return the function that runs a step by an emulated algorithm.

        A rank outside the mesh gets a function that returns an array without elements.
        """
        if self.rank not in step.src.mesh:
            return make_empty_run(step, dtype)
        schedule = emulation(step, algorithm, self.rank, dtype)
        return derive_schedule_run(schedule, self._comms.of(tuple(sorted(schedule.members))))

    def _program(self, program: MPIStepProgram, step: Step, dtype: np.dtype) -> Run:
        """Return the function that runs a step by MPI.

        A step may have several implementations, such as one Alltoallv of packed boxes, or single messages. If the mode
        of trials leaves one of them, or there is only one, the function runs it. Otherwise the function is a trial: its
        first calls measure the implementations in turn, and the fastest runs in later calls (:func:`run_trial`).

        Args:
            program: the program of the step, which keeps the MPI types.
            step: the step.
            dtype: the element type.
        """
        implementations = implementations_of(
            step, self.rank, dtype, self.choices, messages.MAX_COUNT, self.reproducible, self.nodes
        )

        def make(implementation: Implementation) -> Run:
            run = self._by_implementation(step, dtype, implementation, program)
            return run if step.shape_after or self.rank in step.dst.mesh else make_zero_run(run, dtype)

        if not has_implementations(step) or implementations[0].name == "nothing":
            return make(implementations[0])
        # Register steps with one implementation too, because ranks whose groups differ must forget equal trials.
        tried, trial = self._trials.of(step, dtype, implementations, program.members, program.free)
        if len(tried) == 1:
            return make(tried[0])
        group = step.group(self.rank) if step.axes else program.members
        comm = self._comms.of(tuple(sorted(group)))

        def meet() -> None:
            if program.call is not None:
                self.agreement.wait(program.call)

        return run_trial(trial, lambda number: make(tried[number]), comm, meet)

    def _by_implementation(
        self, step: Step, dtype: np.dtype, implementation: Implementation, program: MPIStepProgram
    ) -> Run:
        """Return the function that runs a step by one of the step's implementations.

        The implementation's name decides. For example, "slice" cuts the new shard out of the old one without messages,
        and "broadcast" calls MPI's Bcast. All ranks of the step must call this method, because it may create
        communicators.

        Args:
            step: the step.
            dtype: the element type.
            implementation: one of the step's implementations on this rank.
            program: the program of the step; MPI types that are created are appended to ``program.types``.

        Raises:
            WorldError: If the reduction is undefined for the element type.
        """
        if implementation.name == "nothing":
            return make_empty_run(step, dtype)
        if step.collective in ("all_reduce", "reduce_scatter", EXCLUSIVE_SCAN):
            check_reduce(step.op, dtype)
        if isinstance(step, HaloStep):
            if step.collective in LOCAL_STEPS:
                return derive_halo_exchange(step, self.rank, None, dtype)
            members, group = self._group(step)
            return derive_halo_exchange(step, self.rank, (members, group.comm), dtype)
        if implementation.name == "slice":
            return make_cutter(step.dst.bounds(step.shape, self.rank), step.src.bounds(step.shape, self.rank))
        if implementation.name == "fill":
            return derive_fill(step, self.rank, dtype)
        target = step.dst.local_shape(step.shape_after, self.rank)
        if implementation.name in ("reshape", "same"):
            return lambda array: array.reshape(target)
        members = program.members
        if implementation.name == "numbered":
            return derive_numbered_exchange(step, self.rank, self._comms.of(members), members, dtype)
        if implementation.name == "summed":
            return derive_direct_reduction(step, self.rank, self._comms.of(members), members, dtype)
        if isinstance(step, ScanStep):
            return derive_scan(step, self._group(step)[1], dtype, implementation)
        if implementation.traffic is None:
            _, group = self._group(step)
            if step.collective == "reduce_scatter":
                return derive_reduce_scatter(step, group, dtype, implementation)
            return derive_all_reduce(step, group, dtype, target, implementation)
        comm = self._comms.of(implementation.traffic.members)
        if implementation.name == "broadcast":
            root = implementation.traffic.members.index(step.src.mesh.rank_at(0))
            return derive_broadcast(implementation.traffic, comm, dtype, root, step.shape)
        return derive_placement(implementation, comm, dtype, program.types)

    def _group(self, step: Step) -> tuple[tuple[int, ...], ReduceGroup]:
        """Return the ranks with which this rank reduces, sorted, and their communicator.

        All these ranks must call it, because it may create the communicator.
        """
        order = step.group(self.rank)
        members = tuple(sorted(order))
        numbers = tuple(members.index(rank) for rank in order)
        return members, ReduceGroup(self._comms.of(members), numbers, members.index(self.rank))

    def _count_moved(self, step: Step, dtype: np.dtype, algorithm: str | None) -> Moved:
        """Return the bytes that were moved, counted from the buffers and counts of the calls of MPI.

        They are those since the last step began on this rank.

        Args:
            step: not used: the calls are counted, whatever the step.
            dtype: not used.
            algorithm: not used.
        """
        tally = self._tally
        return Moved((tally.data.received,), (tally.data.sent,), tally.describe_calls(), tally.by_library())

    def _count_moved_rows(self, step: RowStep | PartsStep, dtype: np.dtype, *_: object) -> Moved:
        return self._count_moved(step, dtype, None)

    @property
    def tuning(self) -> TunedSteps:
        """Implementations of the steps of this process; see :attr:`World.tuning`."""
        return self._trials.table()

    @property
    def control(self) -> dict[str, CallCounts]:
        """Control traffic of this process in this world so far, by purpose."""
        return dict(self._tally.control)

    def _derive_shared_run(self, step: Step, dtype: np.dtype, otherwise: Run) -> Run:
        """Return the function that runs a step into one result that ranks share in memory.

        In some cases no result can be shared, and ``otherwise`` is returned:

        - This rank is outside the mesh.
        - The group has one rank, or is on several nodes.
        - The result has no elements.

        Args:
            step: an all_gather or all_reduce, after which all ranks of a group own equal shards.
            dtype: the element type.
            otherwise: the function that runs the step without shared memory.
        """
        if self.rank not in step.src.mesh or 0 in step.shape or step.src.mesh.axis_size(*step.axes) == 1:
            return otherwise
        members, group = self._group(step)
        if 0 in step.dst.local_shape(step.shape, self.rank) or not self._shared.possible(members):
            return otherwise
        if step.collective == "all_gather":
            return derive_shared_gather(
                group_transfers(step, self.rank), group.comm, dtype, self._shared, otherwise
            )
        chunk = find_threshold(self.choices.chunk, len(members))
        return derive_shared_all_reduce(step, group, members, dtype, self._shared, otherwise, chunk)

    # -- the control plane ----------------------------------------------------------------------------

    def barrier(self) -> None:
        """Wait until all ranks have called it.

        Raises:
            DisagreementError: If some make other calls or do not come before the deadline.
        """
        with self._enter_together("barrier"):
            self._everyone.Barrier()

    def gather_objects(self, values: Sequence[Any], what: str = "gather_objects") -> list[Any]:
        """Return all ranks' values by rank, pickled; see :meth:`World.gather_objects`.

        Args:
            values: a list of one value, this rank's.
            what: the words for the call that needs the values.

        Raises:
            UsageTypeError: If ``values`` has another length.
            DisagreementError: If some ranks make other calls or do not come before the deadline.
        """
        (value,) = super().gather_objects(values)
        with self._enter_together(what):
            return self._everyone.allgather(value)

    def _enter_together(self, what: str, ranks: Sequence[int] | None = None) -> CallScope:
        """Return a context that all ranks of the world, or those of ``ranks``, enter together.

        On entry it waits for them and raises DisagreementError if they differ or do not come. It does nothing if the
        world compares nothing.

        Args:
            what: the words for the call.
            ranks: the ranks; None for all.
        """
        call = Call.from_words(what, range(self.size) if ranks is None else ranks) if self.compares else None
        return CallScope(self.agreement, call, self.call_provenance, meets=True)

    def _compare_choice(self, what: str) -> None:
        """Log a call that states the chosen algorithms, so that the ranks compare them later.

        The call does not wait. All ranks of the world must make it. Its words also have the setting ``replicated``. Do
        nothing if the world compares nothing.

        Args:
            what: the words for the call that changed a choice.

        Raises:
            DisagreementError: If an earlier comparison is due and ranks differ.
        """
        if self.compares:
            chosen = ", ".join(f"{name}={algorithm}" for name, algorithm in sorted(self.algorithms.items()))
            words = f"{what} ({chosen or 'native'}; replicated={self.replicated})"
            # Entering and leaving the scope logs the call.
            with CallScope(
                self.agreement, Call.from_words(words, range(self.size), is_local=True), self.call_provenance
            ):
                pass

    def equal_on(self, ranks: Sequence[int], number: int, what: str) -> bool:
        """Return True if these ranks have equal numbers; see :meth:`World.equal_on`.

        Raises:
            DisagreementError: If some make other calls or do not come before the deadline.
        """
        members = tuple(sorted(ranks))
        with self._enter_together(what, members):
            return Comparison(self._comms.of(members), number, self._deadline).equal()

    def gather_on(self, ranks: Sequence[int], value: Any, what: str = "") -> dict[int, Any]:
        """Return the values of these ranks by rank; see :meth:`World.gather_on`.

        With an empty ``what``, the call itself is not compared.

        Raises:
            DisagreementError: If some make other calls or do not come before the deadline.
        """
        members = sorted(ranks)
        with self._enter_together(what, members) if what else nullcontext():
            return dict(zip(members, self._comms.of(tuple(members)).allgather(value)))

    def close(self) -> None:
        """Free the communicators and MPI types of this world; all its ranks must call it.

        The ranks first compare that all of them close the world. With ranks on several nodes, it returns when all ranks
        have seen that the others came. Later steps raise WorldError. Closing the world again does nothing.

        Raises:
            DisagreementError: If ranks make other calls, or do not come. If this rank has raised such an error before,
                the world is closed without an error.
        """
        if self._comms.closed:
            return
        has_reported = self.agreement.has_reported
        try:
            with self._enter_together("close"):
                self.invalidate()
            if self.remote_ranks:
                self._comms.meet_at_end()  # A process that ends answers no requests.
        except WorldError:
            if not has_reported:  # Otherwise the program caught the error and continued on purpose.
                raise
        self.agreement.close()
        for entry in self.cache.values():
            forget(entry)
        self.cache.clear()
        self.constants.clear()
        self._shared.close()
        self._comms.free()
