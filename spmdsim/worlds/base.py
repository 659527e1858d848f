"""The base class of this package's worlds: exact plans, machines, traces, emulated algorithms, lookups of rows."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

from spmdsim.bounded import Bounded
from spmdsim.core.elements import in_type
from spmdsim.core.layout import Layout
from spmdsim.core.operator import Op
from spmdsim.core.step import Route, Step
from spmdsim.core.tensor import Meta, Node, PlainTensor, follow
from spmdsim.core.world import AbstractWorld
from spmdsim.cost.machine import Machine
from spmdsim.cost.node_map import NodeMap, Nodes
from spmdsim.errors import UsageTypeError, WorldError, one_per_rank
from spmdsim.layout.element_type import accumulator
from spmdsim.worlds.convert_operands import convert_operands
from spmdsim.worlds.machine_planner import MachinePlanner
from spmdsim.worlds.programs import STEP_COLLECTIVES, FastPath, Moved, Posted, Stages, StepProgram, forget
from spmdsim.worlds.provenance import Provenance
from spmdsim.worlds.several_worlds import move_to_larger_world
from spmdsim.worlds.trace import recorder, source_lines
from spmdsim.worlds.trace.events import CollectiveEvent, count_sent_by_rank, group_size, received_counts

if TYPE_CHECKING:
    import numpy as np

    from spmdsim.core.layout import Mesh
    from spmdsim.cost.machine import CostModel
    from spmdsim.redistribution.implementations.trial import TunedSteps
    from spmdsim.redistribution.steps.group_steps import Parts, PartsStep
    from spmdsim.redistribution.steps.row_steps import RowStep
    from spmdsim.worlds.local_steps import Arrived, Peers

V = TypeVar("V")
T = TypeVar("T", bound=PlainTensor)
#: Collectives that can be run by an emulated algorithm instead of the world's own.
EMULATED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


#: Worlds of the ``with`` blocks around the current code, and those that a dialect selected; the last one is current.
entered: list[World] = []


def leave(left_world: World) -> None:
    """Remove the latest entry of a world from :data:`entered`; do nothing if it was not entered."""
    for i in reversed(range(len(entered))):
        if entered[i] is left_world:
            del entered[i]
            break


class World(AbstractWorld):
    """Base of all worlds of this package.

    Attributes:
        job: the number of each rank in the job, for messages of a world that has a part of a job.
        algorithms: the emulated algorithm per collective, as set by :meth:`use`.
        replicated: how ranks of a node store replicated results, ``"own"`` or ``"shared"``, as set by :meth:`use`.
        variant: the choices of :meth:`use` as a value; it is a part of the key of fast paths.
        cache: the latest entries of everything derived for this world: recipes of operators by operator
            and metas, fast paths by meta and layout, programs by step. Equal layouts share an entry.
        constants: the numbers that operators read beside tensors, if this process owns one rank.
        overlap: True to start collectives early, while ranks compute: gradients in buckets, parameters that a split
            optimiser gathers. None: only on meshes of several nodes, where an early start cannot cost time. Equal on
            all ranks. No number depends on it.
    """

    overlap: bool | None = None
    #: Returns the world that replaces this one for a mesh with more ranks, if :func:`spmdsim.world` made it in a process
    #: without a launcher; None for all other worlds.
    grow: Callable[[Mesh], World] | None = None
    #: True if ranks compare the copies that operators read.
    watches_values = False
    collectives = STEP_COLLECTIVES

    def __init__(
        self,
        size: int,
        ranks: Sequence[int],
        *,
        nodes: Nodes | None = None,
        advice: Callable[[int], str] = lambda size: "",
    ) -> None:
        super().__init__(
            size,
            ranks,
            planner=MachinePlanner(None),
            observers=recorder.OBSERVERS,
            advice=advice,
        )
        self._place_ranks(None if nodes is None else NodeMap.of(nodes, size))
        self.provenance: Provenance | None
        self.job: Sequence[int] = range(self.size)
        self.algorithms: dict[str, str] = {}
        self.replicated = "own"
        self.variant: tuple[object, ...] = ()
        self.cache: Bounded[Any, Any] = Bounded(free=forget)
        self.constants: Bounded[Any, Any] = Bounded(1024)

    @property
    def nodes(self) -> NodeMap:
        """Node of each rank: as the ranks found it, or as it was passed; one node for all ranks otherwise.

        >>> from spmdsim import LockStep
        >>> print(LockStep(4, nodes="a:2,b:2").nodes)
        a: ranks 0, 1; b: ranks 2, 3
        """
        return NodeMap.consecutive(self.size, self.size) if self._node_map is None else self._node_map

    def _place_ranks(self, nodes: NodeMap | None) -> None:
        """Set the node of each rank; ranks on several nodes get the cost model of a cluster."""
        self._node_map = nodes
        self.planner = MachinePlanner(self._place_machine(None))

    def _place_machine(self, model: CostModel | None) -> CostModel | None:
        """Return a cost model with the ranks on the nodes of this world.

        It is returned unchanged if the world knows no nodes, or if the model is no `Machine` or has nodes already.

        Args:
            model: the cost model; None for the default: ``Machine.cluster()`` on several nodes, else None.
        """
        if self._node_map is None or (isinstance(model, Machine) and model.nodes is not None):
            return model
        if model is None and self._node_map.count > 1:
            model = Machine.cluster()
        return model.placed(self._node_map) if isinstance(model, Machine) else model

    @property
    def machine(self) -> CostModel | None:
        """Cost model by which plans and strategies are chosen.

        - A machine with nodes has its ranks on the nodes of this world, if the world knows them and the machine has no
          map of its own.
        - On several nodes the default is :meth:`Machine.cluster() <spmdsim.cost.Machine.cluster>`.
        - On one node the default is None: plans with the fewest bytes are chosen.

        >>> from spmdsim import LockStep
        >>> LockStep(4).machine, LockStep(4, nodes="a:2,b:2").machine.name
        (None, 'cluster')
        """
        return self.planner.machine  # type: ignore[attr-defined,no-any-return]

    @machine.setter
    def machine(self, model: CostModel | None) -> None:
        """Set the cost model of all ranks, and drop choices made with another model.

        All ranks must set it; they compare it.

        Args:
            model: the cost model; None for the default.

        Raises:
            DisagreementError: If ranks set different models; here or in a later call, when they are compared. All
                numbers of the models count.
        """
        model = self._place_machine(model)
        self.planner = MachinePlanner(model)
        self.invalidate()
        # All numbers of the model are compared: ranks may have measured different ones under one name.
        checksum_text = ""
        if is_dataclass(model):
            values = [(item.name, getattr(model, item.name)) for item in fields(model) if item.repr]
            checksum_text = f" {crc32(repr(values).encode()):08x}"
        name = getattr(model, "name", type(model).__name__)
        self._compare_choice(f"world.machine = {name}{checksum_text}")

    @property
    def compares(self) -> bool:
        """True if ranks compare what they call, by the provenance of tensors."""
        return self.provenance is not None

    def number_tensor(self, meta: Any) -> int:
        """Return the provenance number of a tensor that all ranks create now; 0 if no rank compares.

        Args:
            meta: the tensor's kind; tensors of one kind are counted, so each call gives another number.
        """
        return 0 if self.provenance is None else self.provenance.number_tensor(meta)

    def invalidate(self) -> None:
        """Drop cached choices: recipes and fast paths. Programs follow from their steps, and stay."""
        for key in [key for key in self.cache if isinstance(key[0], (Op, Meta))]:
            del self.cache[key]

    @property
    def tuning(self) -> TunedSteps:
        """The implementations of this process's steps, the reasons, and the measured times.

        Under MPI, a repeated step measures its implementations. ``SPMDSIM_TUNE`` is ``off``, ``first`` (measure those
        that the model prices near the best), ``full`` (measure all) or a file of earlier results. No number depends on
        it.

        >>> from spmdsim import LockStep
        >>> print(LockStep(2).tuning)
        SPMDSIM_TUNE=off, on no machine: nothing is sent in this world
        """
        from spmdsim.redistribution.implementations.trial import TunedSteps

        return TunedSteps()

    # -- tensors ------------------------------------------------------------------------------------

    def move(self, tensor: T, layout: Layout) -> T:
        """Return a tensor of this world in another layout, by the planner's cheapest steps.

        All ranks of the world must call it. A tensor that has the layout already is returned itself. The plan is
        cached for later tensors with equal meta (shape, element type and layout), as long as the choices of
        :meth:`use` are the same. If the plan is one step and this process owns one rank, a later call runs the cached
        program of the step directly, unless the tensor needs a gradient or moves are traced or watched.

        Args:
            tensor: the tensor; it is not changed.
            layout: the new layout. If a process without a launcher plays too few ranks for its mesh, the result is in
                a larger world.

        Raises:
            UsageTypeError: If ``layout`` is not a layout.
            WorldError: If the mesh has ranks that the world lacks.
            PlanError: If no steps lead to the layout.
        """
        try:
            path = self.cache.get((tensor.meta, layout._hash, self.variant))
        except AttributeError:  # no layout
            path = None
        if path is None or (path.layout is not layout and path.layout != layout):
            return _move_first(tensor, layout)
        run = None if path.program is None else path.program.run
        if run is None or tensor.requires_grad or recorder.open_traces or self.observers.watchers:
            return follow_watched(tensor, path.route)
        self.call_provenance = tensor.provenance_number
        try:
            return type(tensor)(
                self, path.meta, [run(tensor.stored_shards[0])], False, "", tensor.provenance_number
            )
        finally:
            self.call_provenance = 0

    def operands(self, name: str, values: Sequence[Any], like: PlainTensor) -> Sequence[PlainTensor]:
        """Return the operands of an operator as tensors of one world; see :func:`convert_operands`.

        Args:
            name: the operator's name, for errors.
            values: tensors, parameters, numbers and arrays.
            like: the tensor on whose mesh numbers and arrays are replicated.
        """
        return convert_operands(name, values, like)

    # -- running ------------------------------------------------------------------------------------

    def run(self, step: Step, shards: list[Any], algorithm: str | None = None) -> list[Any]:
        """Run one step of a plan on the shards of the owned ranks, and record it if a trace is open.

        All ranks of the world must call it. If an emulated algorithm reduces 16-bit numbers, the shards are widened
        first, and the results are rounded once at the end: in 16 bits, each message would round its sum. While a
        program is recorded (``recorder.programs``), the recording runs the step itself or leaves it to this method.

        Args:
            step: the collective and its two layouts.
            shards: one array per owned rank, see :meth:`spmdsim.core.world.AbstractWorld.run`.
            algorithm: the algorithm of this call:
                - the name of an emulated algorithm, such as ``"ring"``;
                - ``"auto"`` for the cheapest one in the cost model;
                - ``"native"`` for the world's own collective;
                - None for the choice of :meth:`use`.

        Returns:
            One array per owned rank, laid out as ``step.dst``; without elements for a rank outside the mesh.

        Raises:
            ScheduleError: If the collective does not have the algorithm.
            WorldError: If the mesh does not fit in the world, shards do not fit the source layout, the reduction is
                undefined for the element type, or ranks disagree about the step.
        """
        if recorder.programs and (cached := recorder.programs[-1].moving(self, step, shards)):
            results: list[Any] = cached[0]
            return results
        if algorithm is None and self.algorithms:
            algorithm = self.algorithms.get(step.collective)
        if algorithm is not None:
            dtype = shards[0].dtype
            algorithm, kind = self._algorithm(step, dtype, algorithm), accumulator(step.op, dtype)
            if algorithm is not None and kind != dtype:  # In 16 bits each message would round its sum.
                return in_type(self.run(step, in_type(shards, kind), algorithm), dtype)
        if not recorder.open_traces:
            return self._run(step, shards, algorithm)
        start = time.perf_counter()
        results = self._run(step, shards, algorithm)
        seconds, dtype = time.perf_counter() - start, shards[0].dtype
        moved, planned = self._count_moved(step, dtype, algorithm), received_counts(step, self.ranks)
        self._event(step, dtype, algorithm, start, planned, moved, seconds)
        return results

    @abstractmethod
    def _run(self, step: Step, shards: list[Any], algorithm: str | None) -> list[Any]:
        """Run a step on the owned ranks' shards, and return their new shards; see :meth:`run`.

        ``algorithm`` is the name of an emulated algorithm; None for the world's own collective.
        """

    def program(self, step: Step, dtype: np.dtype) -> StepProgram | None:
        """Return the program of a step on the only owned rank's shard.

        Return None if the step has no fast path. This class has none.

        Args:
            step: the step.
            dtype: the element type.
        """
        return None

    def run_rows(self, step: RowStep, ids: list[Any], values: list[Any]) -> list[Any]:
        """Look ids up in a table split by rows.

        Each rank receives the wanted rows that it does not own. For a step ``return_rows``, it is the reverse:
        gradients of the looked-up rows go to the owners of the rows and are added up. All ranks of the world must call
        it. The step is recorded if a trace is open.

        Args:
            step: the lookup, with the layouts before and after.
            ids: the ids of every owned rank, laid out as ``step.src`` without its last dim; equal in a group.
            values: every owned rank's shard of the table; to return gradients, the gradients laid out as ``step.dst``.

        Returns:
            One array per owned rank, laid out as ``step.dst``; for returned gradients, as the table.

        Raises:
            InputError: If an id names no row.
            WorldError: If shards do not fit the layouts, or ranks of a group have different ids.
        """
        start = time.perf_counter()
        results, peers = self._run_rows(step, ids, values)
        self._emit_peers(step, values[0].dtype, start, peers)
        return results

    def run_parts(self, step: PartsStep, dtype: np.dtype, outgoing: Sequence[Parts | None]) -> list[Any]:
        """Send an array of any length from each rank of a group to each other rank of the group.

        All ranks of the world must call it. The step is recorded if a trace is open.

        Args:
            step: the groups, and the layout of the tensor that all arrays form.
            dtype: the element type.
            outgoing: for each owned rank its `Parts`: one flat array for each member of its group, and the number of
                elements that it receives from each member. None for a rank outside the mesh, and in a world without
                data.

        Returns:
            For each owned rank a list of the arrays received, one from each member of its group, in the group's order and
            with its own one; None where ``outgoing`` has None.

        Raises:
            WorldError: If the mesh has ranks that the world lacks.
        """
        start = time.perf_counter()
        self.check_mesh(step.src.mesh)
        results, peers = self._run_parts(step, dtype, outgoing)
        self._emit_peers(step, dtype, start, peers)
        return results

    @abstractmethod
    def _run_parts(self, step: PartsStep, dtype: np.dtype, outgoing: Sequence[Parts | None]) -> Arrived:
        """Send arrays; return the arrived ones, and the elements from each other rank.

        Both results are lists with an item per owned rank; see :meth:`run_parts`.
        """

    def _emit_peers(
        self, step: RowStep | PartsStep, dtype: np.dtype, start: float, peers: Sequence[Peers]
    ) -> None:
        """Record a step whose transfers depend on data, if a trace is open.

        Args:
            step: the step.
            dtype: the element type.
            start: the start, as seconds of ``time.perf_counter``.
            peers: for each owned rank, pairs ``(sender, elements)`` of what it received.
        """
        if recorder.recording():
            planned = tuple(sum(count for _, count in peers_of_rank) for peers_of_rank in peers)
            moved = self._count_moved_rows(step, dtype, planned, peers)
            self._event(step, dtype, None, start, planned, moved, peers=tuple(peers))

    @abstractmethod
    def _run_rows(self, step: RowStep, ids: list[Any], values: list[Any]) -> Arrived:
        """Run a step of rows; return its results, and the elements from each other rank.

        Both results are lists with an item per owned rank; see :meth:`run_rows`.
        """

    def _event(
        self,
        step: Step,
        dtype: np.dtype,
        algorithm: str | None,
        start: float,
        planned: Sequence[int],
        moved: Moved,
        seconds: float | None = None,
        peers: tuple[Peers, ...] | None = None,
        source: str | None = None,
        exposed: float | None = None,
    ) -> None:
        """Build the event of a step that has run, and pass it to the open traces.

        Args:
            step: the step.
            dtype: the element type.
            algorithm: the emulated algorithm; None for the world's own collective.
            start: the start, as seconds of ``time.perf_counter``.
            planned: the elements that each owned rank receives by the convention of plans: a reduction counts as a
                bandwidth-optimal algorithm moves it.
            moved: the bytes that were moved.
            seconds: the duration; None for the time since ``start``.
            peers: for each owned rank the elements from each other rank, if they depend on data; else None.
            source: the user's line; None for the current one.
            exposed: for a step that was started early, the seconds spent in starting and waiting; else None.
        """
        event = CollectiveEvent(
            operator=recorder.current_operator(),
            collective=step.collective,
            axes=step.axes,
            group_size=group_size(step),
            dtype=dtype.name,
            ranks=self.ranks,
            nbytes=tuple(moved.received),
            sent=tuple(moved.sent),
            planned=tuple(count * dtype.itemsize for count in planned),
            algorithm=algorithm,
            seconds=time.perf_counter() - start if seconds is None else seconds,
            start=start,
            source=source or source_lines.source_line(),
            step=step,
            expected=peers is not None and not self.has_data,
            peers=peers,
            way=moved.mpi_calls,
            library=moved.library,
            exposed=exposed,
        )
        recorder.emit(event, self._node_map)

    def _algorithm(self, step: Step, dtype: np.dtype, algorithm: str) -> str | None:
        """Return the name of the emulated algorithm that runs a step, or None for the world's own.

        For each ``algorithm``:

        - "native": None. None also for every choice in groups of one rank, and for collectives that are not in
          :data:`EMULATED`.
        - "auto": the algorithm that takes the fewest seconds in the world's cost model, for the largest shard. A
          world without a cost model takes a typical machine.
        - another name, such as "ring": the name itself. Whether it can run the step is not checked here.

        Args:
            step: the step.
            dtype: the element type.
            algorithm: the user's choice.
        """
        size = step.src.mesh.axis_size(*step.axes)
        if algorithm == "native" or step.collective not in EMULATED or size == 1:
            return None
        if algorithm != "auto":
            return algorithm
        from spmdsim.worlds.emulated import choose_cheapest, step_message_bytes

        # Rank 0 of the mesh has the largest shard: all ranks must decide by the same size.
        nbytes = step_message_bytes(step, step.src.mesh.rank_at(0), dtype.itemsize)
        machine: Any = self.machine
        if isinstance(machine, Machine):
            machine = machine.of_group(step.src.mesh, step.axes)
        return choose_cheapest(step.collective, size, nbytes, machine)

    def _count_moved(self, step: Step, dtype: np.dtype, algorithm: str | None) -> Moved:
        """Return the bytes that each owned rank receives and sends in a step, as calculated.

        - For the world's own collective, they are counted as plans do, as if the best algorithm moved them: in an
          all_reduce of 8 float32 on 4 ranks each rank receives 48 bytes.
        - For an emulated algorithm, they are the bytes of its messages; a rank outside the mesh has none.

        Worlds of processes count real messages instead.

        Args:
            step: the step.
            dtype: the element type.
            algorithm: the emulated algorithm, or None for the world's own collective.
        """
        if algorithm is None:
            received, sent = received_counts(step, self.ranks), count_sent_by_rank(step, self.ranks)
        else:
            from spmdsim.worlds.emulated import emulation

            mesh = step.src.mesh
            parts = [emulation(step, algorithm, r, dtype).program if r in mesh else None for r in self.ranks]
            received = tuple(program.received_elements if program else 0 for program in parts)
            sent = tuple(program.sent_elements if program else 0 for program in parts)
        size = dtype.itemsize
        return Moved([count * size for count in received], [count * size for count in sent])

    def _count_moved_rows(
        self, step: RowStep | PartsStep, dtype: np.dtype, planned: Sequence[int], peers: Sequence[Peers]
    ) -> Moved:
        """Return the bytes that the owned ranks received and sent in a step of rows.

        Both are in the order of ``ranks``. Sent bytes are counted from what the owned ranks received, so they are
        complete only if this process owns all ranks.

        Args:
            step: not used: methods of subclasses use it.
            dtype: the element type.
            planned: the elements that each owned rank received from other ranks.
            peers: for each owned rank, pairs ``(sender, elements)`` of other ranks.
        """
        sent = dict.fromkeys(self.ranks, 0)
        for peers_of_rank in peers:
            for peer, count in peers_of_rank:
                sent[peer] = sent.get(peer, 0) + count
        size = dtype.itemsize
        return Moved([count * size for count in planned], [sent[rank] * size for rank in self.ranks])

    # -- begun early ----------------------------------------------------------------------------------

    def post(self, step: Step, shards: list[Any]) -> Posted:
        """Start a step; its :meth:`Posted.wait` returns what :meth:`run` would return.

        All ranks of the world must call it, in one order with their other steps. A rank may wait at any time. The
        exception is an all_reduce: it sends again after its first stage, so all ranks must wait for it in one order,
        too. A world without processes runs the step at once. Traces record the step when it has been waited for.

        Args:
            step: the step.
            shards: one array per owned rank, as in :meth:`run`. The caller must not write to them before the end.

        Raises:
            WorldError: As in :meth:`run`.
        """
        dtype = shards[0].dtype
        count, emit = partial(self._count_moved, step, dtype, None), partial(self._emit_posted, step, dtype)
        return Posted(self._stages(step, shards), count, emit)

    def _emit_posted(
        self,
        step: Step,
        dtype: np.dtype,
        start: float,
        moved: Moved,
        seconds: float,
        source: str | None,
        exposed: float,
    ) -> None:
        """Report a step that was started early to the open traces; see :meth:`_event` for the arguments."""
        planned = received_counts(step, self.ranks)
        self._event(step, dtype, None, start, planned, moved, seconds, source=source, exposed=exposed)

    def _stages(self, step: Step, shards: list[Any]) -> Stages:
        """Run the step at once: this generator never waits."""
        return self._run(step, shards, None)
        yield  # makes the method a generator, although it never waits

    def overlaps(self, mesh: Mesh) -> bool:
        """Return True if collectives on this mesh start before their results are needed.

        Return False if algorithms or shared results are chosen (:meth:`use`), or if a program is recorded or replayed.
        Otherwise return :attr:`overlap`; if it is None, return True if the mesh's ranks are on several nodes. The
        result is equal on all ranks.
        """
        if self.algorithms or self.replicated != "own" or recorder.programs:
            return False
        return self._distant(mesh) if self.overlap is None else self.overlap

    def _distant(self, mesh: Mesh) -> bool:
        """Return True if the ranks of a mesh are on several nodes.

        Then the network moves data while the processors compute. This class has no nodes: always False.
        """
        return False

    def proceed(self) -> None:
        """Let MPI make progress on collectives that were started early."""

    # -- choices ------------------------------------------------------------------------------------

    def use(
        self, *, algorithm: str | None = None, replicated: str | None = None, **algorithms: str | None
    ) -> Restore:
        """Choose the algorithms that run collectives from now on; all ranks must call it.

        Examples are ``world.use(all_reduce="ring")`` and ``world.use(algorithm="auto")``. As a context manager,
        ``with world.use(...):``, the choice holds only inside the block. The algorithm of a collective is

        - the name of an emulated algorithm, with its options after a colon, as in ``"hierarchical_leader:group=4"``;
        - ``"auto"``: for each call the cheapest one in the world's cost model;
        - ``"native"``: the world's own collective, as without a choice.

        After an error, the choice has not changed.

        Args:
            algorithm: the algorithm of every collective that is not named; None changes none of them. A collective
                that does not have it raises ScheduleError when it runs.
            replicated: ``"shared"`` to let all ranks of a node share one read-only copy of the result of an
                all_gather or all_reduce (in shared memory, if the world has processes); ``"own"`` to give each rank
                its own copy. None leaves it as it is.
            **algorithms: the algorithm of one collective; None means ``"native"``, unlike ``algorithm=None``.

        Returns:
            A context manager that restores the earlier choice when its block ends.

        Raises:
            WorldError: If a collective cannot be emulated, or ``replicated`` is another text.
            ScheduleError: If a collective does not have the algorithm, or no collective has ``algorithm``.
            DisagreementError: If ranks choose differently; here or in a later call, when they are compared.
        """
        before = dict(self.algorithms), self.replicated
        if replicated not in (None, "own", "shared"):
            raise WorldError(f"world.use: replicated must be 'own' or 'shared', got {replicated!r:.60}")
        for_all = {} if algorithm is None else dict.fromkeys(EMULATED, algorithm)
        for collective in algorithms:
            if collective not in EMULATED:
                names = ", ".join(EMULATED)
                raise WorldError(f"no algorithm can be chosen for {collective!r}; there are {names}")
        # Refuse unknown algorithms now, not when the first collective runs.
        named = [((collective,), name) for collective, name in algorithms.items()]
        for collectives, name in [*named, (EMULATED, algorithm)]:
            if name not in (None, "native", "auto"):
                from spmdsim.worlds.emulated import check_name

                check_name(str(name), collectives)
        for collective, name in (for_all | algorithms).items():
            if name is None or name == "native":
                self.algorithms.pop(collective, None)
            else:
                self.algorithms[collective] = name
        self._use(self.algorithms, replicated or self.replicated)
        try:
            self._compare_choice("world.use")
        except BaseException:
            self._use(*before)
            raise
        return Restore(self, before)

    def _use(self, algorithms: dict[str, str], replicated: str) -> None:
        """Store the choices of :meth:`use`, and update ``variant``.

        Args:
            algorithms: the algorithm per collective.
            replicated: "own" or "shared".
        """
        self.algorithms, self.replicated = algorithms, replicated
        self.variant = (*sorted(algorithms.items()), replicated)

    def _compare_choice(self, what: str) -> None:
        """Have ranks compare a call that changed algorithms, shared results or the machine.

        All ranks must call it. ``what`` are the words for the call. This class compares nothing.
        """

    # -- the control plane and memory ---------------------------------------------------------------

    def barrier(self) -> None:
        """Wait until all ranks have called it."""

    def gather_objects(self, values: Sequence[V], what: str = "gather_objects") -> list[V]:
        """Return all ranks' values by rank. All ranks call it at the same time. Not traced.

        Args:
            values: a list with one value per owned rank.
            what: the words for the call that needs the values; not used in this class.

        Raises:
            UsageTypeError: If ``values`` has another length.
        """
        return one_per_rank(values, len(self.ranks))

    def equal_on(self, ranks: Sequence[int], number: int, what: str) -> bool:
        """Return True if these ranks, among them this process, have equal numbers.

        All of them must call it. In a world that owns all ranks, return True at once.

        Args:
            ranks: the ranks.
            number: this process's number.
            what: the words for the call that compares.
        """
        return True

    def gather_on(self, ranks: Sequence[int], value: Any, what: str = "") -> Mapping[int, Any]:
        """Return these ranks' values by rank; all of them must call it. Not traced.

        Args:
            ranks: the ranks.
            value: this process's value; in a world that owns all ranks, the value of each of them.
            what: the words for the call that needs the values.
        """
        return dict.fromkeys(ranks, value)

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """Return an uninitialised C-ordered array from this process's pool of unused buffers."""
        from spmdsim.worlds.pool import take_buffer

        return take_buffer(tuple(shape), dtype)

    def close(self) -> None:
        """Free the communicators and buffers of the world."""

    def __enter__(self) -> World:
        """Make this the world that :func:`world` returns, until the ``with`` block ends.

        The end of the block closes the world, unless an error ends it.
        """
        entered.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        leave(self)
        has_failed = any(exc)
        # After an error other ranks may be in other calls; the error must be reported first.
        if not has_failed:
            self.close()


def _move_first(tensor: T, layout: Layout) -> T:
    """Return a tensor in another layout by a new plan; cache the plan for tensors of equal meta.

    The meta is the tensor's shape, element type and layout. A tensor that has the new layout already is returned
    itself, and nothing is cached.

    Args:
        tensor: a tensor for which no plan to the layout is cached.
        layout: the new layout. If a process without a launcher plays too few ranks for its mesh, the tensor moves to
            a larger world.

    Raises:
        UsageTypeError: If ``layout`` is not a layout.
        WorldError: If the mesh has ranks that the world lacks and the world does not grow.
        PlanError: If no steps lead to the layout.
    """
    if not isinstance(layout, Layout):
        raise UsageTypeError(
            f"Tensor.to: layout must be a layout, such as mesh('dp', None), got {layout!r:.60}"
        )
    meta = tensor.meta
    if layout == meta.layout:
        return tensor
    tensor = move_to_larger_world(tensor, layout.mesh)
    world: Any = tensor.world
    route = world.planner.plan(meta.layout, layout, meta.shape, meta.dtype)
    result = follow_watched(tensor, route)
    is_stored_as_is = meta.storage_dtype is meta.dtype and result.meta.storage_dtype is meta.dtype
    program = world.program(route.steps[0], meta.dtype) if len(route.steps) == 1 and is_stored_as_is else None
    world.cache[meta, hash(layout), world.variant] = FastPath(layout, route, result.meta, program)
    return result


def follow_watched(tensor: T, route: Route, node: type[Node] | None = None) -> T:
    """Run the steps of a route on a tensor, call the last watcher, and return the moved tensor.

    A watcher (:class:`spmdsim.core.world.Observers`) is called with each tensor before and after its move. Only the
    watcher that was added last is called.

    Args:
        tensor: the tensor.
        route: the plan from the tensor's layout to another one.
        node: the class of the tape's record of the move; None for the default, see :func:`spmdsim.core.tensor.follow`.
    """
    result = follow(tensor, route, node)
    watchers = tensor.world.observers.watchers
    if watchers:
        watchers[-1].moved(tensor, result)
    return result


class Restore:
    """Result of :meth:`World.use`: leaving its ``with`` block restores the earlier choice."""

    def __init__(self, owner: World, before: tuple[dict[str, str], str]) -> None:
        self._owner, self._before = owner, before

    def __enter__(self) -> World:
        return self._owner

    def __exit__(self, *exc: object) -> None:
        self._owner._use(*self._before)
        self._owner._compare_choice("the end of world.use")
