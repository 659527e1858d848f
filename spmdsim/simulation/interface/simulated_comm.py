"""Communicators: the state that all ranks share, and the handle of each rank."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from spmdsim.simulation.data import constants as c
from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.engine.collective_calls import CollectiveCall, CollectiveRule
from spmdsim.simulation.engine.mailboxes import Endpoint, Mailbox
from spmdsim.simulation.engine.scheduler import Scheduler, Task
from spmdsim.simulation.findings.problems import ERROR, Problem, place_of, site_of
from spmdsim.simulation.interface.collective_methods import CollectiveMethods, call_collective
from spmdsim.simulation.interface.groups import Group
from spmdsim.simulation.interface.point_to_point import PointToPoint
from spmdsim.simulation.interface.probes import ProbeMethods
from spmdsim.simulation.interface.requests import Request

if TYPE_CHECKING:
    from spmdsim.simulation.interface.process_topology import Cartcomm

_frame = sys._getframe


class CommunicatorState:
    """The state that all ranks of a communicator share.

    Attributes:
        ranks: its ranks as ranks of the program, in order.
        boxes: one mailbox per rank.
        meetings: collective operations that some ranks have not called yet, by number.
        counts: number of collective calls that each rank has made.
        history: operations that ranks called from different lines.
        grid: dims and periods of a Cartesian topology, or None.
        forming: communicators that some ranks have not created yet, by (members, tag); see ``Create_group``.
    """

    def __init__(self, scheduler: Scheduler, ranks: Any, name: str, grid: Any = None) -> None:
        self.scheduler = scheduler
        self.ranks = tuple(ranks)
        self.size = len(self.ranks)
        self.name = name
        self.boxes = [Mailbox() for _ in self.ranks]
        self.meetings: dict[int, Any] = {}
        self.counts = [0] * self.size
        self.history: list[Any] = []
        self.grid = grid
        self.forming: dict[Any, CommunicatorState] = {}
        scheduler.shared.append(self)

    def create_state(self, ranks: Any, call: str, grid: Any = None) -> CommunicatorState:
        """Create the state of a new communicator of some ranks; ``call`` becomes the end of its name."""
        return CommunicatorState(self.scheduler, ranks, f"{self.name}.{call}", grid)


#: Methods of mpi4py's communicators that are not supported.
NOT_SIMULATED = frozenset(
    [
        "Accept",
        "Ack_failed",
        "Agree",
        "Call_errhandler",
        "Cart_map",
        "Connect",
        "Create_dist_graph",
        "Create_dist_graph_adjacent",
        "Create_errhandler",
        "Create_from_group",
        "Create_graph",
        "Create_intercomm",
        "Create_keyval",
        "Dup_with_info",
        "Free_keyval",
        "Get_failed",
        "Get_info",
        "Graph_map",
        "Iagree",
        "Idup_with_info",
        "Isendrecv",
        "Isendrecv_replace",
        "Ishrink",
        "Join",
        "Precv_init",
        "Psend_init",
        "Revoke",
        "Set_info",
        "Shrink",
        "Spawn",
        "Spawn_multiple",
    ]
)


class Comm(PointToPoint, ProbeMethods, CollectiveMethods):
    """The handle of one rank on a communicator."""

    size: int
    _shared: CommunicatorState
    _rank: int
    _end: Endpoint
    _scheduler: Scheduler
    _attributes: dict[int, Any]

    def __new__(cls, comm: Comm | None = None) -> Any:
        """Return another handle of a communicator, as a copy constructor."""
        self = super().__new__(cls)
        if comm is not None:
            self.__dict__.update(comm.__dict__)
        return self

    @classmethod
    def make(cls, shared: CommunicatorState, rank: int, task: Task) -> Any:
        """Return a new handle of a rank on a communicator, without MPI attributes.

        Args:
            shared: the state of the communicator, which all its ranks share.
            rank: the rank in the communicator.
            task: the task that runs the rank's program.
        """
        comm = cls.__new__(cls)
        comm._shared, comm._rank, comm._scheduler = shared, rank, shared.scheduler
        comm._end = Endpoint(shared, rank, task)
        comm._attributes = {}
        comm.size = shared.size
        return comm

    @property
    def _task(self) -> Task:
        """The task of the handle's rank. Raises an error if another rank runs."""
        return self._end.running()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Comm):
            return NotImplemented
        return self.__dict__.get("_shared") is other.__dict__.get("_shared")

    def __hash__(self) -> int:
        return id(self.__dict__.get("_shared"))

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> NoReturn:
        """Raise AttributeError for a name that is not supported, or that mpi4py does not have.

        The text has the nearest name, if there is one and ``name`` does not begin with an underscore.
        """
        from spmdsim.errors import nearest

        if name in NOT_SIMULATED:
            raise AttributeError(f"{name} is not simulated")
        suggestion = None if name.startswith("_") else nearest(name, dir(type(self)))
        raise AttributeError(
            f"a communicator has no {name!r}" + f"; did you mean {suggestion!r}?" * bool(suggestion)
        )

    def Get_rank(self) -> int:
        """Return the caller's rank."""
        self._end.running()
        return self._rank

    rank = property(Get_rank)

    def Get_size(self) -> int:
        """Return the number of ranks."""
        return int(self.size)

    def Get_group(self) -> Group:
        """Return the group of the ranks, in order."""
        return Group(self._shared.ranks)

    group = property(Get_group)

    def Get_name(self) -> str:
        """Return the name: "MPI_COMM_WORLD", "MPI_COMM_SELF", or the name that findings show.

        Findings show the name that the program set, or else one such as "COMM_WORLD.Split".
        """
        name = str(self._shared.name)
        return f"MPI_{name}" if name in ("COMM_WORLD", "COMM_SELF") else name

    def Set_name(self, name: str) -> None:
        """Set the name."""
        self._shared.name = name

    name = property(Get_name, Set_name)

    def Compare(self, comm: Comm) -> int:
        """Return IDENT, CONGRUENT (equal ranks in equal order), SIMILAR (other order) or UNEQUAL."""
        if comm._shared is self._shared:
            return c.IDENT
        group_result = self.Get_group().Compare(comm.Get_group())
        return c.CONGRUENT if group_result == c.IDENT else group_result

    def Is_inter(self) -> bool:
        """Return False: intercommunicators are not simulated."""
        return False

    def Is_intra(self) -> bool:
        """Return True."""
        return True

    is_inter = property(Is_inter)
    is_intra = property(Is_intra)

    def Get_topology(self) -> int:
        """Return CART, or UNDEFINED."""
        return c.UNDEFINED if self._shared.grid is None else c.CART

    topology = property(Get_topology)
    is_topo = property(lambda self: self._shared.grid is not None)

    # ------------------------------------------------------------------ new communicators

    def _agree(
        self,
        name: str,
        value: Any,
        answer: Callable[[list[CollectiveCall]], None],
        frame: Any,
        facts: dict[str, Any] | None = None,
    ) -> Any:
        """Wait for all ranks and return the value that ``answer`` sets in this rank's call.

        Args:
            name: name of the method, such as "Split".
            value: this rank's argument, stored as the ``value`` of its call.
            answer: takes the calls of all ranks, in rank order, and replaces the ``value`` of each by its result.
            frame: the caller's frame, to find the line of the call.
            facts: arguments that must be equal on all ranks, by name; None: none.
        """
        call = CollectiveCall(CollectiveRule(answer, "barrier"), [], None, facts or {})
        call.value = value
        return call_collective(self, call, name, frame)

    def _split_by_color(self, color: int, key: int, name: str, frame: Any) -> Any:
        """Return this rank's communicator of the ranks with equal color; COMM_NULL for UNDEFINED.

        All ranks must call it; it blocks until they have.

        Args:
            color: the color, which is not checked.
            key: ranks are ordered by key, then by old rank.
            name: name of the method, such as "Split".
            frame: the caller's frame, to find the line of the call.
        """
        state = self._agree(name, (color, key), _partition, frame)
        return COMM_NULL if state is None else Intracomm.make(state[0], state[1], self._task)

    def Split(self, color: int = 0, key: int = 0) -> Any:
        """Create a communicator of the ranks with equal color, ordered by key and then by old rank.

        All ranks must call it; it blocks until they have. Ranks with the color UNDEFINED get COMM_NULL.

        Args:
            color: 0 or more, or UNDEFINED.
            key: any integer.

        Raises:
            MPIError: If ``color`` is another negative number.
        """
        if color < 0 and color != c.UNDEFINED:
            raise MPIError("ERR_ARG", f"color must be 0 or more, or UNDEFINED, got {color}")
        return self._split_by_color(color, key, "Split", _frame(1))

    def Split_type(self, split_type: int, key: int = 0, info: Any = None) -> Any:
        """Create a communicator of the ranks that share a node; all ranks must call it.

        Args:
            split_type: COMM_TYPE_SHARED; any other type gives COMM_NULL.
            key: ranks are ordered by key, then by old rank.
            info: not used: mpi4py has it.
        """
        node = int(self._scheduler.nodes.nodes[self._task.rank])
        color = node if split_type == c.COMM_TYPE_SHARED else c.UNDEFINED
        return self._split_by_color(color, key, "Split_type", _frame(1))

    def _copy(self, name: str, frame: Any) -> Any:
        return type(self).make(self._agree(name, None, _duplicate, frame), self._rank, self._task)

    def Dup(self, info: Any = None) -> Any:
        """Create a communicator of all ranks, whose messages are separate; a grid stays a grid.

        All ranks must call it; it blocks until they have. Attributes are not copied. ``info`` is not used.
        """
        return self._copy("Dup", _frame(1))

    def Clone(self) -> Any:
        """Create a communicator as ``Dup`` does."""
        return self._copy("Clone", _frame(1))

    def Idup(self, info: Any = None) -> tuple[Any, Request]:
        """Create a communicator as ``Dup`` does; return it and a null request, which is complete."""
        return self._copy("Idup", _frame(1)), Request()

    def Create(self, group: Group) -> Any:
        """Create a communicator of a group's ranks, in the group's order; return COMM_NULL on other ranks.

        All ranks of this communicator must call it; it blocks until they have. Ranks may pass different groups that
        have no common member; that is not checked.

        Args:
            group: ranks of this communicator.

        Raises:
            MPIError: If the group is null.
        """
        group.Get_size()  # raises the error of a null group before the rank waits
        state = self._agree("Create", group, _create_group_states, _frame(1))
        if state is None:
            return COMM_NULL
        return Intracomm.make(state, group.Get_rank(), self._task)

    @classmethod
    def Get_parent(cls) -> Any:
        """Return COMM_NULL: no rank was spawned by another program."""
        return COMM_NULL

    def Free(self) -> None:
        """Free the communicator: the handle cannot be used any more."""
        self._disable("the communicator has been freed")

    Disconnect = Free

    def _disable(self, reason: str, fatal: bool = False) -> None:
        """Make every further use of this handle fail.

        Args:
            reason: the text of the error.
            fatal: True if a use ends the run with a finding; False if it raises an MPI error and the handle equals
                COMM_NULL.
        """
        self.__dict__["_reason"] = (reason, fatal, self.__class__)
        if not fatal:
            del self.__dict__["_shared"]  # it now equals COMM_NULL
        object.__setattr__(self, "__class__", DisabledComm)

    # ------------------------------------------------------------------ other methods

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """Stop all ranks at once with a finding of kind "abort"; never return.

        When the run closes, the exit exception is raised in this rank, so that its ``finally`` blocks run.

        Args:
            errorcode: becomes the exit code of this rank; 0 becomes 1.
        """
        location = place_of(self._task.rank, "Abort", site_of(_frame(1)))
        self._task.exit_code = errorcode or 1
        text = f"rank {location.rank} calls Abort({errorcode}) at {location.where}"
        problem = Problem("abort", ERROR, text, (location.rank,), (location,))
        raise self._scheduler.fail(problem)

    def Get_attr(self, keyval: int) -> Any:
        """Return a predefined attribute or one of the program; None if it is not set.

        Predefined are TAG_UB, WTIME_IS_GLOBAL and UNIVERSE_SIZE, which is the size of this communicator. ``keyval``
        is the key.
        """
        world = {c.TAG_UB: c.TAG_UB_VALUE, c.WTIME_IS_GLOBAL: True, c.UNIVERSE_SIZE: self.size}
        return self._attributes.get(keyval, world.get(keyval))

    def Set_attr(self, keyval: int, attrval: Any) -> None:
        """Store a value with this handle."""
        self._attributes[keyval] = attrval

    def Delete_attr(self, keyval: int) -> None:
        """Delete an attribute."""
        self._attributes.pop(keyval, None)

    def Get_errhandler(self) -> int:
        """Return the error handler, which always raises exceptions."""
        return 0

    def Set_errhandler(self, errhandler: Any) -> None:
        """Do nothing: errors always raise exceptions."""

    def Attach_buffer(self, buf: Any) -> None:
        """Attach memory for buffered sends of this rank, on all its communicators; see ``MPI.Attach_buffer``."""
        self._task.attach(buf)

    def Detach_buffer(self) -> Any:
        """Detach and return the memory for buffered sends."""
        return self._task.detach()


class Intracomm(Comm):
    """A communicator of one group of ranks."""

    def Create_group(self, group: Group, tag: int = 0) -> Any:
        """Create a communicator of a group's ranks, in the group's order; only these ranks call it.

        It blocks until all members have called it with this tag. A rank that is no member gets COMM_NULL at once.

        Args:
            group: the ranks; equal on all callers.
            tag: separates calls for equal groups that run at the same time.

        Raises:
            MPIError: If the group is null.
        """
        if group.Get_rank() == c.UNDEFINED:
            return COMM_NULL
        shared, key = self._shared, (group.members, tag)
        forming = shared.forming.get(key)
        if forming is None:
            forming = shared.forming[key] = shared.create_state(group.members, "Create_group")
        comm = Intracomm.make(forming, group.Get_rank(), self._task)
        call = CollectiveCall(CollectiveRule(lambda calls: None, "barrier"), [], None, {})
        call_collective(comm, call, "Create_group", _frame(1))
        if shared.forming.get(key) is forming:
            del shared.forming[key]
        return comm

    def Create_cart(self, dims: Any, periods: Any = None, reorder: bool = False) -> Cartcomm:
        """Create a communicator whose ranks form a grid; the last dimension varies fastest.

        All ranks must call it; it blocks until they have. Ranks beyond the grid get COMM_NULL.

        Args:
            dims: the extent of each dimension, or one number for one dimension.
            periods: True for each dimension that wraps around, or one value for all; None for none.
            reorder: not used: ranks keep their order.

        Raises:
            MPIError: If an extent is below 1, the numbers of dims and periods differ, or the grid has too many ranks.
        """
        from spmdsim.simulation.interface.process_topology import create_cart

        result: Cartcomm = create_cart(self, dims, periods, _frame(1))
        return result


class DisabledComm(Intracomm):
    """A handle that must not be used: null, freed, or outside Init and Finalize."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        reason, fatal, _ = self.__dict__.get("_reason", ("the communicator is COMM_NULL", False, None))
        if fatal and not name.startswith("_"):
            task = self.__dict__["_end"].task
            location = place_of(task.rank, name, site_of(_frame(1)))
            text = f"rank {task.rank} uses {location}, but {reason}"
            kind = "not_initialized" if "Init" in reason else "finalized"
            task.scheduler.fail(Problem(kind, ERROR, text, (task.rank,), (location,)))
        raise MPIError("ERR_COMM", reason)

    def __bool__(self) -> bool:
        return False


def enable(comm: Any) -> None:
    """Make a disabled handle usable again; do nothing for other handles."""
    reason = comm.__dict__.pop("_reason", None)
    if reason is not None:
        object.__setattr__(comm, "__class__", reason[2])


COMM_NULL: Any = DisabledComm.__new__(DisabledComm)


# ---------------------------------------------------------------------- answers for new communicators


def _partition(calls: list[CollectiveCall]) -> None:
    """Create one communicator per color (``Split``), and store each rank's new one in its call.

    Ranks of one color are ordered by key, then by old rank. For example, if ranks 0, 1 and 2 pass (color, key) = (5,
    1), (5, 0) and (8, 0), the new communicators have the old ranks (1, 0) and (2).

    Args:
        calls: the calls of all ranks, in rank order. ``call.value`` is (color, key) before. It becomes (state, new
            rank), or None for the color UNDEFINED.
    """
    shared = calls[0].comm
    colors: dict[int, list[tuple[int, int]]] = {}
    for call in calls:
        color, key = call.value
        call.value = None
        if color != c.UNDEFINED:
            colors.setdefault(color, []).append((key, call.rank))
    for members in colors.values():
        order = [rank for _, rank in sorted(members)]
        ranks = [shared.ranks[rank] for rank in order]
        state = shared.create_state(ranks, "Split")
        for position, rank in enumerate(order):
            calls[rank].value = (state, position)


def _duplicate(calls: list[CollectiveCall]) -> None:
    """Set each call's value to the state of a new communicator of all ranks."""
    shared = calls[0].comm
    state = shared.create_state(shared.ranks, "Dup", shared.grid)
    for call in calls:
        call.value = state


def _create_group_states(calls: list[CollectiveCall]) -> None:
    """Create one communicator per group, and store its state in the calls of the group's members.

    Equal groups share one communicator.

    Args:
        calls: the calls of all ranks, in rank order. ``call.value`` is the group before. It becomes the state, or
            None if the rank is no member of its group.
    """
    shared = calls[0].comm
    states: dict[Any, CommunicatorState] = {}
    for call in calls:
        group = call.value
        call.value = None
        if shared.ranks[call.rank] in group.members:
            if group.members not in states:
                states[group.members] = shared.create_state(group.members, "Create")
            call.value = states[group.members]
