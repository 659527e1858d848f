"""Communicators: the state that all ranks share, and the handle of each rank."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import and_
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from spmdsim.simulation.data import constants as c
from spmdsim.simulation.data.attributes import AttributeHolder
from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.data.handles import Handle
from spmdsim.simulation.data.open_handles import add_handle, remove_handle
from spmdsim.simulation.data.reduce_operators import NAMED as OPERATIONS
from spmdsim.simulation.data.type_lookups import NAMED
from spmdsim.simulation.engine.collective_calls import CollectiveCall, CollectiveRule
from spmdsim.simulation.engine.mailboxes import Endpoint, Mailbox
from spmdsim.simulation.engine.scheduler import Scheduler, Task, current_task
from spmdsim.simulation.findings.problems import ERROR, Problem, describe_call_place, place_in_stack, site_of
from spmdsim.simulation.interface.collective_methods import CollectiveMethods, call_collective
from spmdsim.simulation.interface.errhandlers import Errhandler, ErrhandlerHolder
from spmdsim.simulation.interface.groups import Group
from spmdsim.simulation.interface.info import INFO_NULL, Info
from spmdsim.simulation.interface.partitioned import PartitionedMethods
from spmdsim.simulation.interface.point_to_point import PointToPoint
from spmdsim.simulation.interface.probes import ProbeMethods
from spmdsim.simulation.interface.requests import Request

if TYPE_CHECKING:
    from spmdsim.simulation.interface.graphs import Distgraphcomm, Graphcomm
    from spmdsim.simulation.interface.intercommunicators import Intercomm
    from spmdsim.simulation.interface.process_topology import Cartcomm

_frame = sys._getframe
INT = NAMED["INT"]


class CommunicatorState:
    """The state that all ranks of a communicator share.

    Attributes:
        ranks: its ranks as ranks of the program, in order.
        boxes: the mailboxes to which its ranks send, one per receiver.
        own_boxes: the mailboxes from which its ranks receive. Only an intercommunicator has others than ``boxes``.
        origin: the state that the program knows; it differs for one side of an intercommunicator.
        meetings: collective operations that some ranks have not called yet, by number.
        counts: number of collective calls that each rank has made.
        history: operations that ranks called from different lines.
        is_predefined: True for COMM_WORLD and COMM_SELF.
        groups: the local and the remote ranks of an intercommunicator; empty for others.
        grid: dims and periods of a Cartesian topology, or None.
        edges: the edges of each rank of a graph; empty for other communicators.
        forming: communicators that some ranks have not created yet, by (members, tag); see ``Create_group``.
        is_revoked: True if a rank has called ``Revoke``: messages and collectives raise an error.
    """

    def __init__(self, scheduler: Scheduler, ranks: Any, name: str, grid: Any = None) -> None:
        self.scheduler = scheduler
        self.ranks = tuple(ranks)
        self.size = len(self.ranks)
        self.name = name
        self.is_predefined = name in ("COMM_WORLD", "COMM_SELF")
        self.groups: tuple[tuple[int, ...], ...] = ()
        self.boxes = self.own_boxes = [Mailbox() for _ in self.ranks]
        self.origin = self
        self.meetings: dict[int, Any] = {}
        self.counts = [0] * self.size
        self.history: list[Any] = []
        self.grid = grid
        self.edges: list[Any] = []
        self.forming: dict[Any, CommunicatorState] = {}
        self.is_revoked = False
        scheduler.shared.append(self)

    def revoke(self) -> None:
        """Let all further messages and collectives raise an error."""
        self.is_revoked = True

    def extend(self, ranks: Sequence[int]) -> None:
        """Add ranks at the end, which the program has spawned."""
        self.ranks += tuple(ranks)
        self.size = len(self.ranks)
        self.boxes.extend(Mailbox() for _ in ranks)
        self.counts.extend(0 for _ in ranks)

    def create_state(self, ranks: Any, call: str, grid: Any = None) -> CommunicatorState:
        """Create the state of a new communicator of some ranks; ``call`` becomes the end of its name."""
        return CommunicatorState(self.scheduler, ranks, f"{self.name}.{call}", grid)


#: Attributes of a handle that can be used.
_STATE = ("_shared", "_rank", "_scheduler", "_end", "_attributes")


class Comm(
    PointToPoint,
    PartitionedMethods,
    ProbeMethods,
    CollectiveMethods,
    AttributeHolder,
    ErrhandlerHolder,
    Handle,
):
    """The handle of one rank on a communicator."""

    _shared: CommunicatorState
    _rank: int
    _end: Endpoint
    _scheduler: Scheduler
    _hints: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def make(cls, shared: CommunicatorState, rank: int, task: Task) -> Any:
        """Return a new handle of a rank on a communicator, without MPI attributes.

        Args:
            shared: the state of the communicator, which all its ranks share.
            rank: the rank in the communicator.
            task: the task that runs the rank's program.
        """
        comm = cls()
        comm._shared, comm._rank, comm._scheduler = shared, rank, shared.scheduler
        comm._end = Endpoint(shared, rank, task)
        comm._attributes = {}
        add_handle(comm, "communicator")
        return comm

    @property
    def _meeting_end(self) -> Endpoint:
        """The rank's end for collectives."""
        return self._end

    @property
    def _task(self) -> Task:
        """The task of the handle's rank. Raises an error if another rank runs."""
        return self._end.running()

    def __bool__(self) -> bool:
        return "_end" in self.__dict__

    def __getattr__(self, name: str) -> NoReturn:
        """Raise the error for a handle that must not be used, or for a name that does not exist.

        The text has the nearest name, if there is one and ``name`` does not begin with an underscore.
        """
        from spmdsim.errors import nearest

        if name in _STATE:
            self._refuse_use()
        suggestion = None if name.startswith("_") else nearest(name, dir(type(self)))
        raise AttributeError(
            f"a communicator has no {name!r}" + f"; did you mean {suggestion!r}?" * bool(suggestion)
        )

    def _check_usable(self) -> None:
        """Raise an MPI error for a null handle."""
        self._end.running()

    def Get_rank(self) -> int:
        """Return the caller's rank."""
        self._end.running()
        return self._rank

    rank = property(Get_rank)

    def Get_size(self) -> int:
        """Return the number of ranks."""
        return self._shared.size

    size = property(Get_size)

    def Get_group(self) -> Group:
        """Return the group of the ranks, in order."""
        return Group.make(self._shared.ranks)

    group = property(Get_group)

    def Get_name(self) -> str:
        """Return the name: "MPI_COMM_WORLD", "MPI_COMM_SELF", or the name that findings show.

        Findings show the name that the program set, or else one such as "COMM_WORLD.Split".
        """
        if not self and "_reason" not in self.__dict__:
            return "MPI_COMM_NULL"
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
        """Return True for an intercommunicator."""
        return bool(self._shared.groups)

    def Is_intra(self) -> bool:
        """Return True unless this is an intercommunicator."""
        return not self.Is_inter()

    is_inter = property(Is_inter)
    is_intra = property(Is_intra)

    def Get_topology(self) -> int:
        """Return CART, GRAPH, DIST_GRAPH, or UNDEFINED."""
        kinds = {"Cartcomm": c.CART, "Graphcomm": c.GRAPH, "Distgraphcomm": c.DIST_GRAPH}
        self._end.running()
        return next((kinds[cls.__name__] for cls in type(self).__mro__ if cls.__name__ in kinds), c.UNDEFINED)

    topology = property(Get_topology)
    is_topo = property(lambda self: self.Get_topology() != c.UNDEFINED)

    def _hidden(self, purpose: str) -> Any:
        """Return a communicator of all ranks for messages of the simulator, one per purpose."""
        shared = self._shared
        state = shared.forming.get(purpose)
        if state is None:
            state = shared.forming[purpose] = CommunicatorState(
                shared.scheduler, shared.ranks, f"{shared.name}.{purpose}"
            )
        hidden = Intracomm.make(state, shared.ranks.index(self._task.rank), self._task)
        remove_handle(hidden)  # the program does not get it
        return hidden

    def Agree(self, flag: int) -> int:
        """Return the bitwise AND of the flags of all ranks, which all must call it."""
        return int(self._agree("Agree", int(flag), _and_flags, _frame(1)))

    def Iagree(self, flag: Any) -> Request:
        """Start to replace a flag, a buffer of one C int, by the bitwise AND of the flags of all ranks."""
        if memoryview(flag).nbytes != INT.Get_size():
            raise ValueError(f"Iagree: flag must have {INT.Get_size()} bytes, got {memoryview(flag).nbytes}")
        request: Request = self._hidden("Iagree").Iallreduce(c.IN_PLACE, [flag, 1, INT], OPERATIONS["BAND"])
        return request

    def Get_failed(self) -> Group:
        """Return the group of failed ranks: none."""
        self._end.running()
        return Group.make()

    def Ack_failed(self, num_to_ack: int | None = None) -> int:
        """Return the number of failed ranks that are acknowledged: 0."""
        self._end.running()
        return 0

    def Revoke(self) -> None:
        """Let further messages and collectives of all ranks raise ERR_REVOKED.

        ``Agree`` and ``Shrink`` still work. Calls in which ranks wait already are not interrupted.
        """
        self._end.running()
        self._shared.revoke()

    def Is_revoked(self) -> bool:
        """Return True if a rank has revoked the communicator."""
        self._end.running()
        return self._shared.is_revoked

    def Shrink(self) -> Any:
        """Create a communicator of the ranks that have not failed: of all ranks."""
        return self._copy("Shrink", _frame(1))

    def Ishrink(self) -> tuple[Any, Request]:
        """Create a communicator as ``Shrink`` does; return it and a request, which is complete."""
        shrunk = self._copy("Ishrink", _frame(1))
        return shrunk, shrunk._hidden("Ishrink").Ibarrier()

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

    def _copy(self, name: str, frame: Any, info: Info | None = None) -> Any:
        """Return a copy of the communicator, with the attributes that are copied and with hints."""
        copied = type(self).make(self._agree(name, None, _duplicate, frame), self._rank, self._task)
        self._copy_attributes(copied)
        copied._errhandler, copied._hints = self._errhandler, dict(info or {})
        return copied

    def Dup(self, info: Info | None = None) -> Any:
        """Create a communicator of all ranks, whose messages are separate; a topology stays.

        All ranks must call it; it blocks until they have. The copy functions of the keys decide which attributes are
        copied. ``info`` has hints, which have no effect.
        """
        return self._copy("Dup", _frame(1), info)

    def Dup_with_info(self, info: Info) -> Any:
        """Create a communicator as ``Dup`` does."""
        return self._copy("Dup_with_info", _frame(1), info)

    def Clone(self) -> Any:
        """Create a communicator as ``Dup`` does."""
        return self._copy("Clone", _frame(1))

    def Idup(self, info: Info | None = None) -> tuple[Any, Request]:
        """Create a communicator as ``Dup`` does; return it and a null request, which is complete."""
        return self._copy("Idup", _frame(1), info), Request()

    def Idup_with_info(self, info: Info) -> tuple[Any, Request]:
        """Create a communicator as ``Idup`` does."""
        return self._copy("Idup_with_info", _frame(1), info), Request()

    def Set_info(self, info: Info) -> None:
        """Replace the hints, which have no effect."""
        self._end.running()
        self._hints = dict(info.items())

    def Get_info(self) -> Info:
        """Return a copy of the hints."""
        self._end.running()
        return Info.Create(self._hints)

    info = property(Get_info, Set_info)

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
        """Return the intercommunicator to the ranks that spawned this one; a null one if no rank did."""
        from spmdsim.simulation.interface.intercommunicators import Intercomm

        task = current_task()
        return Intercomm() if task is None or task.parent is None else task.parent

    @classmethod
    def Join(cls, fd: int) -> NoReturn:
        """Raise NotImplementedError: a rank that waits at a socket stops all ranks, which share one thread.

        Args:
            fd: not used: mpi4py has it.
        """
        raise NotImplementedError(
            "Join: virtual ranks share one thread, so none can wait at a socket; use Open_port, Accept and Connect"
        )

    def Free(self) -> None:
        """Free the communicator: the handle becomes null. Attributes are deleted.

        Raises an MPI error for COMM_WORLD and COMM_SELF.
        """
        if self._shared.is_predefined:
            raise MPIError("ERR_COMM", f"{self.Get_name()} cannot be freed")
        self._delete_attributes()
        self._disable("the communicator has been freed")

    def Disconnect(self) -> None:
        """Free the communicator when all its communication is complete."""
        self.Free()

    def free(self) -> None:
        """Make the handle null; COMM_WORLD, COMM_SELF and COMM_NULL stay as they are."""
        if self and "_predefined_name" not in self.__dict__:
            self._disable("the communicator has been freed")

    def _disable(self, reason: str, fatal: bool = False) -> None:
        """Make every further use of this handle fail.

        Args:
            reason: the text of the error.
            fatal: True if a use ends the run with a finding; False if it raises an MPI error.
        """
        remove_handle(self)
        state = {name: self.__dict__.pop(name) for name in _STATE if name in self.__dict__}
        self.__dict__.update(_reason=reason, _fatal_state=state if fatal else None)

    def _refuse_use(self) -> NoReturn:
        """Raise the error of a null handle; end the run with a finding outside of Init and Finalize."""
        reason = self.__dict__.get("_reason", "the communicator is COMM_NULL")
        state = self.__dict__.get("_fatal_state")
        if state is None:
            raise MPIError("ERR_COMM", reason)
        task = state["_end"].task
        location = place_in_stack(task.rank, _frame(2))
        text = f"rank {task.rank} uses {location}, but {reason}"
        kind = "not_initialized" if "Init" in reason else "finalized"
        raise task.scheduler.fail(Problem(kind, ERROR, text, (task.rank,), (location,)))

    # ------------------------------------------------------------------ other methods

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """Stop all ranks at once with a finding of kind "abort"; never return.

        When the run closes, the exit exception is raised in this rank, so that its ``finally`` blocks run.

        Args:
            errorcode: becomes the exit code of this rank; 0 becomes 1.
        """
        location = describe_call_place(self._task.rank, "Abort", site_of(_frame(1)))
        self._task.exit_code = errorcode or 1
        text = f"rank {location.rank} calls Abort({errorcode}) at {location.where}"
        problem = Problem("abort", ERROR, text, (location.rank,), (location,))
        raise self._scheduler.fail(problem)

    def Get_attr(self, keyval: int) -> Any:
        """Return a predefined attribute or one of the program; None if it is not set.

        Predefined are TAG_UB, WTIME_IS_GLOBAL, LASTUSEDCODE, APPNUM, and UNIVERSE_SIZE, which is the size of the world.
        ``keyval`` is the key.
        """
        predefined = {
            c.TAG_UB: c.TAG_UB_VALUE,
            c.WTIME_IS_GLOBAL: True,
            c.UNIVERSE_SIZE: self._task.world._shared.size,
            c.APPNUM: self._task.application,
            c.LASTUSEDCODE: c.last_used_code(),
        }
        return predefined[keyval] if keyval in predefined else super().Get_attr(keyval)

    def Attach_buffer(self, buf: Any) -> None:
        """Attach memory for buffered sends of this rank, on all its communicators; see ``MPI.Attach_buffer``."""
        self._task.attach(buf)

    def Detach_buffer(self) -> Any:
        """Detach and return the memory for buffered sends."""
        return self._task.detach()

    def Flush_buffer(self) -> None:
        """Wait for buffered sends; none has to wait, because their data was copied."""

    def Iflush_buffer(self) -> Request:
        """Start to wait for buffered sends; return a null request, which is complete."""
        return Request()


class Intracomm(Comm):
    """A communicator of one group of ranks."""

    def Create_group(self, group: Group, tag: int | str = 0) -> Any:
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

    @classmethod
    def Create_from_group(
        cls,
        group: Group,
        stringtag: str = "org.mpi4py",
        info: Info = INFO_NULL,
        errhandler: Errhandler | None = None,
    ) -> Any:
        """Create a communicator of a group's ranks, in the group's order; only these ranks call it.

        Args:
            group: the ranks; equal on all callers.
            stringtag: separates calls for equal groups that run at the same time.
            info: not used: mpi4py has it.
            errhandler: the error handler of the communicator; None: ERRORS_RETURN.
        """
        task = current_task()
        assert task is not None
        comm = task.world._hidden("Create_from_group").Create_group(group, stringtag)
        if errhandler:
            comm.Set_errhandler(errhandler)
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

    def Cart_map(self, dims: Any, periods: Any = None) -> int:
        """Return the rank that ``Create_cart`` gives this rank, or UNDEFINED."""
        from spmdsim.simulation.interface.process_topology import map_cart

        return map_cart(self, dims, periods)

    def Create_graph(self, index: Sequence[int], edges: Sequence[int], reorder: bool = False) -> Graphcomm:
        """Create a communicator whose ranks form a graph; ranks beyond it get COMM_NULL.

        All ranks must call it with equal arguments; it blocks until they have.

        Args:
            index: the end of each rank's neighbours in ``edges``; a 0 before them is accepted.
            edges: the neighbours of all ranks, one after another.
            reorder: not used: ranks keep their order.
        """
        from spmdsim.simulation.interface.graphs import create_graph

        result: Graphcomm = create_graph(self, index, edges, _frame(1))
        return result

    def Graph_map(self, index: Sequence[int], edges: Sequence[int]) -> int:
        """Return the rank that ``Create_graph`` gives this rank, or UNDEFINED."""
        from spmdsim.simulation.interface.graphs import map_graph

        return map_graph(self, index, edges)

    def Create_dist_graph_adjacent(
        self,
        sources: Sequence[int],
        destinations: Sequence[int],
        sourceweights: Sequence[int] | None = None,
        destweights: Sequence[int] | None = None,
        info: Info = INFO_NULL,
        reorder: bool = False,
    ) -> Distgraphcomm:
        """Create a communicator whose ranks form a graph; each rank passes its own edges.

        All ranks must call it; it blocks until they have.

        Args:
            sources: the ranks that send to this one; None for none.
            destinations: the ranks to which this one sends; None for none.
            sourceweights: one weight per source; None, UNWEIGHTED or WEIGHTS_EMPTY.
            destweights: one weight per destination; None, UNWEIGHTED or WEIGHTS_EMPTY.
            info: not used: mpi4py has it.
            reorder: not used: ranks keep their order.

        Raises:
            MPIError: If a neighbour is no rank.
            ValueError: If the number of weights is not the number of edges.
        """
        from spmdsim.simulation.interface.graphs import create_adjacent, edges_of_rank

        edges = edges_of_rank(sources, destinations, sourceweights, destweights)
        result: Distgraphcomm = create_adjacent(self, edges, "Create_dist_graph_adjacent", _frame(1))
        return result

    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        weights: Sequence[int] | None = None,
        info: Info = INFO_NULL,
        reorder: bool = False,
    ) -> Distgraphcomm:
        """Create a communicator whose ranks form a graph; each rank passes any edges of it.

        All ranks must call it; it blocks until they have.

        Args:
            sources: the ranks from which the edges of this call lead.
            degrees: the number of edges of each source.
            destinations: the ranks to which the edges lead, one source after another.
            weights: one weight per edge; None or UNWEIGHTED for none.
            info: not used: mpi4py has it.
            reorder: not used: ranks keep their order.

        Raises:
            MPIError: If a neighbour is no rank.
            ValueError: If the number of weights is not the number of edges.
        """
        from spmdsim.simulation.interface.graphs import create_dist_graph

        result: Distgraphcomm = create_dist_graph(self, sources, degrees, destinations, weights, _frame(1))
        return result

    def Create_intercomm(
        self, local_leader: int, peer_comm: Intracomm, remote_leader: int, tag: int = 0
    ) -> Intercomm:
        """Create a communicator of the ranks of this one and of another one, which send to each other.

        All ranks of both communicators must call it; it blocks until they have.

        Args:
            local_leader: the rank of this communicator that agrees with the other one.
            peer_comm: a communicator of both leaders; used on the leaders only.
            remote_leader: rank of the other leader in ``peer_comm``; used on the leaders only.
            tag: separates calls with equal leaders.

        Raises:
            MPIError: If ``local_leader`` is no rank, or the groups have a common rank.
        """
        from spmdsim.simulation.interface.intercommunicators import create_intercomm

        name = "Create_intercomm"
        result: Intercomm = create_intercomm(
            self, local_leader, peer_comm, remote_leader, tag, name, _frame(1)
        )
        return result

    def Accept(self, port_name: str, info: Info = INFO_NULL, root: int = 0) -> Intercomm:
        """Create an intercommunicator with the ranks that call ``Connect`` for a port.

        All ranks must call it; it blocks until the other ranks connect.

        Args:
            port_name: the name of a port that the root has opened; only used on the root.
            info: not used: mpi4py has it.
            root: the rank that knows the port.

        Raises:
            MPIError: If the root is no rank, or the port is not open or not the root's own.
        """
        from spmdsim.simulation.interface.intercommunicators import meet_at_port

        return meet_at_port(self, port_name, root, "Accept", _frame(1))

    def Connect(self, port_name: str, info: Info = INFO_NULL, root: int = 0) -> Intercomm:
        """Create an intercommunicator with the ranks that call ``Accept`` for a port.

        All ranks must call it; it blocks until the other ranks accept.

        Args:
            port_name: the name of a port that is open; only used on the root.
            info: not used: mpi4py has it.
            root: the rank that knows the port.

        Raises:
            MPIError: If the root is no rank, or the port is not open.
        """
        from spmdsim.simulation.interface.intercommunicators import meet_at_port

        return meet_at_port(self, port_name, root, "Connect", _frame(1))

    def Spawn(
        self,
        command: Any,
        args: Sequence[str] | None = None,
        maxprocs: int = 1,
        info: Info = INFO_NULL,
        root: int = 0,
        errcodes: list[int] | None = None,
    ) -> Intercomm:
        """Start virtual ranks that run another program; return the intercommunicator to them.

        All ranks must call it; it blocks until they have. The program must be in Python: a script that begins with
        ``#!``, or an interpreter with a script, ``-m`` and a module, or ``-c`` and a text. The new ranks have the
        next numbers in the report.

        Args:
            command: the script or interpreter; only used on the root, as are ``args`` and ``maxprocs``.
            args: arguments of the command; None for none.
            maxprocs: number of ranks, 1 to 4,096.
            info: not used: mpi4py has it.
            root: the rank whose arguments count.
            errcodes: list that gets SUCCESS for each new rank.

        Raises:
            MPIError: If the root is no rank, or the root's command runs no Python program (ERR_SPAWN).
        """
        from spmdsim.simulation.interface import spawning

        def programs() -> Any:
            return spawning.read_commands("Spawn", [command], [args], [maxprocs])

        comm, counts = spawning.spawn(self, programs, root, "Spawn", _frame(1))
        if errcodes is not None:
            errcodes[:] = [c.SUCCESS] * sum(counts)
        return comm

    def Spawn_multiple(
        self,
        command: Sequence[Any],
        args: Sequence[Sequence[str]] | None = None,
        maxprocs: Sequence[int] | int | None = None,
        info: Sequence[Info] | Info = INFO_NULL,
        root: int = 0,
        errcodes: list[list[int]] | None = None,
    ) -> Intercomm:
        """Start virtual ranks that run several programs and share one COMM_WORLD; see ``Spawn``.

        The attribute APPNUM of a new rank is the number of its command.

        Args:
            command: the commands; only used on the root, as are ``args`` and ``maxprocs``.
            args: arguments of each command; None for none.
            maxprocs: number of ranks of each command, or one number for all; None: 1.
            info: hints of each command, or of all; they have no effect.
            root: the rank whose arguments count.
            errcodes: list that gets a list of SUCCESS per command.

        Raises:
            MPIError: If the root is no rank, or a command of the root runs no Python program (ERR_SPAWN).
            ValueError: If there are more or fewer arguments, numbers or hints than commands.
        """
        from spmdsim.simulation.interface import spawning

        def programs() -> Any:
            spawning.check_hints(command, info)
            return spawning.read_commands("Spawn_multiple", command, args, maxprocs)

        comm, counts = spawning.spawn(self, programs, root, "Spawn_multiple", _frame(1))
        if errcodes is not None:
            errcodes[:] = [[c.SUCCESS] * count for count in counts]
        return comm


def enable(comm: Any) -> None:
    """Make a disabled handle usable again; do nothing for other handles."""
    comm.__dict__.update(comm.__dict__.pop("_fatal_state", None) or {})


COMM_NULL: Any = Comm()


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
    """Set each call's value to the state of a new communicator of all ranks.

    Args:
        calls: the calls of all ranks.
    """
    shared = calls[0].comm
    state = shared.create_state(shared.ranks, "Dup", shared.grid)
    state.edges = shared.edges
    for call in calls:
        call.value = state


def _and_flags(calls: list[CollectiveCall]) -> None:
    """Set each call's value to the bitwise AND of the values of all calls."""
    flags = reduce(and_, (call.value for call in calls))
    for call in calls:
        call.value = flags


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
