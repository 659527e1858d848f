"""Intercommunicators: two groups of ranks that send to each other, and their collectives."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from spmdsim.simulation.data import constants as c
from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.data.message_buffers import (
    OBJECT_TARGET,
    ObjectPayload,
    message_buffer,
    split_by_counts,
    split_by_types,
    split_equally,
)
from spmdsim.simulation.data.open_handles import remove_handle
from spmdsim.simulation.data.reduce_operators import SUM, Op, as_op
from spmdsim.simulation.data.status import Status
from spmdsim.simulation.engine.collective_calls import (
    CollectiveCall,
    CollectiveRule,
    Move,
    move_blocks,
    reduce_operands,
)
from spmdsim.simulation.engine.mailboxes import STANDARD, Endpoint
from spmdsim.simulation.engine.scheduler import Task
from spmdsim.simulation.interface.collective_methods import add_collectives
from spmdsim.simulation.interface.errhandlers import Errhandler
from spmdsim.simulation.interface.groups import Group
from spmdsim.simulation.interface.info import INFO_NULL, Info
from spmdsim.simulation.interface.ports import ports_of
from spmdsim.simulation.interface.simulated_comm import (
    COMM_NULL,
    Comm,
    CommunicatorState,
    Intracomm,
)

_frame = sys._getframe
_Calls = list[CollectiveCall]


class IntercommState(CommunicatorState):
    """The state that all ranks of an intercommunicator share: the ranks of one group, then those of the other one.

    Attributes:
        groups: the ranks of both groups, as ranks of the program.
        sides: the state of each group, for messages to the other one.
    """

    def __init__(self, scheduler: Any, groups: tuple[tuple[int, ...], ...], name: str) -> None:
        super().__init__(scheduler, (*groups[0], *groups[1]), name)
        self.groups = groups
        self.sides = [CommunicatorState(scheduler, groups[1 - side], name) for side in (0, 1)]
        for side, other in (self.sides, self.sides[::-1]):
            side.own_boxes, side.origin = other.boxes, self

    def revoke(self) -> None:
        """Let all further messages and collectives raise an error."""
        super().revoke()
        for side in self.sides:
            side.revoke()

    def create_state(self, ranks: Any, call: str, grid: Any = None) -> CommunicatorState:
        """Create the state of an intercommunicator of some of the ranks."""
        chosen = set(ranks)
        first, second = (tuple(rank for rank in group if rank in chosen) for group in self.groups)
        return IntercommState(self.scheduler, (first, second), f"{self.name}.{call}")

    def side_of(self, rank: int) -> int:
        """Return the number of the group, 0 or 1, that has a rank of the communicator of all ranks."""
        return int(rank >= len(self.groups[0]))


class Intercomm(Comm):
    """A communicator of two groups: messages and collectives go from one group to the other one."""

    _shared: IntercommState
    _side: int
    _both: Endpoint

    @classmethod
    def make(cls, shared: Any, rank: int, task: Task) -> Any:
        """Return a new handle of a rank.

        Args:
            shared: the state of the intercommunicator.
            rank: not used: the task's rank has one position.
            task: the task that runs the rank's program.
        """
        position = shared.ranks.index(task.rank)
        side = shared.side_of(position)
        comm = super().make(shared.sides[side], shared.groups[side].index(task.rank), task)
        comm._shared, comm._side, comm._both = shared, side, Endpoint(shared, position, task)
        return comm

    @classmethod
    def Create_from_groups(
        cls,
        local_group: Group,
        local_leader: int,
        remote_group: Group,
        remote_leader: int,
        stringtag: str = "org.mpi4py",
        info: Info = INFO_NULL,
        errhandler: Errhandler | None = None,
    ) -> Any:
        """Create an intercommunicator of two groups, whose ranks call it.

        Args:
            local_group: the group of the caller.
            local_leader: rank in ``local_group`` of the rank that agrees with the other group.
            remote_group: the other group.
            remote_leader: rank in ``remote_group`` of its leader.
            stringtag: separates calls for equal groups that run at the same time.
            info: not used: mpi4py has it.
            errhandler: the error handler of the communicator; None: ERRORS_RETURN.
        """
        local = Intracomm.Create_from_group(local_group, stringtag, info)
        remove_handle(local)  # the program does not get it
        peer, leader = local._task.world, remote_group.members[remote_leader]
        comm = create_intercomm(
            local, local_leader, peer, leader, 0, f"Create_from_groups {stringtag}", _frame(1)
        )
        if errhandler:
            comm.Set_errhandler(errhandler)
        return comm

    @property
    def _meeting_end(self) -> Endpoint:
        """The rank's end for collectives, which has the ranks of both groups."""
        self._end.running()
        return self._both

    @property
    def _groups(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ranks of the local and of the remote group."""
        groups = self._shared.groups
        return groups[self._side], groups[1 - self._side]

    def Get_size(self) -> int:
        """Return the number of ranks of the local group."""
        return len(self._groups[0])

    size = property(Get_size)

    def Get_group(self) -> Group:
        """Return the local group."""
        return Group.make(self._groups[0])

    group = property(Get_group)

    def Get_remote_size(self) -> int:
        """Return the number of ranks of the remote group."""
        return len(self._groups[1])

    remote_size = property(Get_remote_size)

    def Get_remote_group(self) -> Group:
        """Return the remote group."""
        return Group.make(self._groups[1])

    remote_group = property(Get_remote_group)

    def Compare(self, comm: Comm) -> int:
        """Return IDENT, CONGRUENT (equal groups in equal order), SIMILAR (other order) or UNEQUAL.

        Args:
            comm: another communicator.
        """
        if not isinstance(comm, Intercomm):
            return c.UNEQUAL
        if comm._shared is self._shared:
            return c.IDENT
        results = [
            self.Get_group().Compare(comm.Get_group()),
            self.Get_remote_group().Compare(comm.Get_remote_group()),
        ]
        if c.UNEQUAL in results:
            return c.UNEQUAL
        return c.CONGRUENT if results == [c.IDENT] * 2 else c.SIMILAR

    def Merge(self, high: bool = False) -> Intracomm:
        """Create a communicator of the ranks of both groups; the group with ``high`` comes second.

        All ranks of both groups must call it; it blocks until they have. If both groups pass the same value, the
        order is that of the creation.
        """
        state = self._agree("Merge", bool(high), _merge, _frame(1))
        merged: Intracomm = Intracomm.make(state, state.ranks.index(self._task.rank), self._task)
        return merged

    def _split_by_color(self, color: int, key: int, name: str, frame: Any) -> Any:
        """Return this rank's intercommunicator of the ranks with equal color.

        Args:
            color: the color; it gives COMM_NULL if a group lacks it.
            key: ranks are ordered by key, then by old rank.
            name: name of the method.
            frame: the caller's frame, to find the line of the call.
        """
        state = self._agree(name, (color, key), _split_sides, frame)
        return COMM_NULL if state is None else Intercomm.make(state, 0, self._task)

    def Create(self, group: Group) -> Any:
        """Create an intercommunicator of the ranks of a group of each side; COMM_NULL on other ranks.

        All ranks of both groups must call it; it blocks until they have.

        Args:
            group: some ranks of the local group.
        """
        is_member = group.Get_rank() != c.UNDEFINED
        return self._split_by_color(0 if is_member else c.UNDEFINED, group.Get_rank(), "Create", _frame(1))


def _exchange_ranks(leader: Any, ranks: Any, remote: int, tag: int, name: str, frame: Any) -> Any:
    """Return the ranks of the other group, in exchange for those of this group."""
    payload = ObjectPayload(ranks)
    return leader._exchange(payload, remote, tag, OBJECT_TARGET, remote, tag, None, name, frame)


def create_intercomm(
    local: Intracomm, local_leader: int, peer: Intracomm, remote_leader: int, tag: int, name: str, frame: Any
) -> Intercomm:
    """Return the intercommunicator of the ranks of ``local`` and of those of another communicator.

    The leaders exchange the ranks of their groups over ``peer``; then all ranks of each group continue.

    Args:
        local: the communicator of the local group.
        local_leader: rank in ``local`` of the leader.
        peer: a communicator of both leaders; only used on the leader.
        remote_leader: rank in ``peer`` of the other leader; only used on the leader.
        tag: separates calls with equal leaders.
        name: name of the method.
        frame: the caller's frame, to find the line of the call.

    Raises:
        MPIError: If the leader is no rank, ``peer`` is null on it, or the groups have a common rank.
    """
    if not 0 <= local_leader < local.size:
        raise MPIError("ERR_ARG", f"{name}: local_leader must be 0 to {local.size - 1}, got {local_leader}")
    ranks = local._shared.ranks
    remote: Any = None
    if local._rank == local_leader:
        if not peer:
            raise MPIError("ERR_COMM", f"{name}: peer_comm must not be COMM_NULL on the leader")
        hidden = peer._shared.forming.get(name)
        if hidden is None:
            hidden = peer._shared.forming[name] = CommunicatorState(
                local._scheduler, peer._shared.ranks, name
            )
        leader = Intracomm.make(hidden, peer._rank, local._task)
        remove_handle(leader)  # the program does not get it
        remote = hidden, tag, _exchange_ranks(leader, ranks, remote_leader, tag, name, frame)
    return join_groups(local, local_leader, remote, name, frame)


def join_groups(local: Intracomm, local_leader: int, remote: Any, name: str, frame: Any) -> Intercomm:
    """Return the intercommunicator of the ranks of ``local`` and of a group that its leader knows.

    Args:
        local: the communicator of the local group, whose ranks all call it.
        local_leader: rank in ``local`` of the leader.
        remote: on the leader the state of a communicator of both leaders, a tag, and the ranks of the other group.
        name: name of the method.
        frame: the caller's frame, to find the line of the call.

    Raises:
        MPIError: If the groups have a common rank.
    """
    ranks = local._shared.ranks

    def answer(calls: _Calls) -> None:
        """Create the state on the first side, and use it on the second one."""
        hidden, tag, others = calls[local_leader].value
        groups = tuple(sorted((ranks, tuple(others))))
        if set(ranks) & set(others):
            raise MPIError("ERR_COMM", f"{name}: the groups must have no common rank")
        state = hidden.forming.pop((tag, groups), None)
        if state is None:
            state = hidden.forming[tag, groups] = IntercommState(hidden.scheduler, groups, name)
        for call in calls:
            call.value = state

    return Intercomm.make(local._agree(name, remote, answer, frame), 0, local._task)  # type: ignore[no-any-return]


def _leader_of(task: Task) -> Intracomm:
    """Return the handle of the rank ``task`` of a communicator of all ranks, over which groups meet."""
    ports, tasks = ports_of(task), task.scheduler.tasks
    if ports.state is None:
        ports.state = CommunicatorState(task.scheduler, (), "ports")
    ports.state.extend([other.rank for other in tasks[ports.state.size :]])
    leader: Intracomm = Intracomm.make(ports.state, task.rank, task)
    remove_handle(leader)  # the program does not get it
    return leader


def meet_at_port(comm: Any, port_name: str, root: int, call: str, frame: Any) -> Intercomm:
    """Return the intercommunicator of the ranks that accept at a port and of those that connect.

    The root that accepts receives the ranks of any root that connects, and answers with its own. Ranks that connect
    wait for a root that accepts.

    Args:
        comm: the communicator, whose ranks all call it.
        port_name: the name of the port; only used on the root.
        root: the rank that knows the port.
        call: "Accept" or "Connect".
        frame: the caller's frame, to find the line of the call.

    Raises:
        MPIError: If the root is no rank (ERR_ROOT), or the port is not open or not the root's own (ERR_PORT).
    """
    if not 0 <= root < comm.size:
        raise MPIError("ERR_ROOT", f"{call}: root must be 0 to {comm.size - 1}, got {root}")
    remote: Any = None
    if comm._rank == root:
        task = comm._task
        owner, tag = ports_of(task).find_owner(call, port_name)
        leader, payload = _leader_of(task), ObjectPayload(comm._shared.ranks)
        if call == "Accept":
            if owner != task.rank:
                raise MPIError("ERR_PORT", f"Accept: port_name must be a port of the root, got {port_name!r}")
            status = Status()
            others = leader._receive(OBJECT_TARGET, c.ANY_SOURCE, tag, status, call, frame)
            leader._send(payload, status.source, tag, STANDARD, call, frame)
        else:
            leader._send(payload, owner, tag, STANDARD, call, frame)
            others = leader._receive(OBJECT_TARGET, owner, tag, None, call, frame)
        remote = leader._shared, tag, others
    return join_groups(comm, root, remote, call, frame)


# ---------------------------------------------------------------------- answers for new communicators


def _merge(calls: _Calls) -> None:
    """Set each call's value to the state of a communicator of the ranks of both groups.

    Args:
        calls: the calls of all ranks.
    """
    shared = calls[0].comm
    first, second = shared.groups
    is_first_high, is_second_high = calls[0].value, calls[-1].value
    ranks = (*second, *first) if is_first_high and not is_second_high else (*first, *second)
    state = CommunicatorState(shared.scheduler, ranks, f"{shared.name}.Merge")
    for call in calls:
        call.value = state


def _split_sides(calls: _Calls) -> None:
    """Create an intercommunicator per color that both groups have, and store its state in the calls."""
    shared = calls[0].comm
    colors = {call.value[0] for call in calls} - {c.UNDEFINED}
    states = {}
    for color in colors:
        members = [
            tuple(
                shared.ranks[call.rank]
                for call in sorted(side, key=lambda call: call.value[1])
                if call.value[0] == color
            )
            for side in _sides(calls)
        ]
        if all(members):
            states[color] = IntercommState(shared.scheduler, (members[0], members[1]), f"{shared.name}.Split")
    for call in calls:
        call.value = states.get(call.value[0])


# ---------------------------------------------------------------------- blocks that move


def _sides(calls: _Calls) -> tuple[_Calls, _Calls]:
    """Return the calls of both groups."""
    length = len(calls[0].comm.groups[0])
    return calls[:length], calls[length:]


def _directions(calls: _Calls) -> list[tuple[_Calls, _Calls]]:
    """Return the pairs (sending group, receiving group): each group sends to the other one."""
    first, second = _sides(calls)
    return [(first, second), (second, first)]


def _root_and_others(calls: _Calls) -> tuple[_Calls, _Calls]:
    """Return the call of the root in a list, and the calls of the other group.

    Args:
        calls: the calls of all ranks; without a root both lists are empty.
    """
    for local, remote in _directions(calls):
        roots = [call for call in local if call.root == c.ROOT]
        if roots:
            return roots, remote
    return [], []


def _broadcast_moves(calls: _Calls) -> list[Move]:
    roots, others = _root_and_others(calls)
    return [(root, 0, call, 0) for root in roots for call in others]


def _gather_moves(calls: _Calls) -> list[Move]:
    roots, others = _root_and_others(calls)
    return [(call, 0, root, position) for root in roots for position, call in enumerate(others)]


def _scatter_moves(calls: _Calls) -> list[Move]:
    roots, others = _root_and_others(calls)
    return [(root, number, call, 0) for root in roots for number, call in enumerate(others)]


def _all_gather_moves(calls: _Calls) -> list[Move]:
    return [
        (sender, 0, receiver, position)
        for senders, receivers in _directions(calls)
        for receiver in receivers
        for position, sender in enumerate(senders)
    ]


def _all_to_all_moves(calls: _Calls) -> list[Move]:
    return [
        (sender, number, receiver, position)
        for senders, receivers in _directions(calls)
        for number, receiver in enumerate(receivers)
        for position, sender in enumerate(senders)
    ]


def _reduce(calls: _Calls) -> None:
    """Set the block of the root to the reduction of the operands of the other group."""
    roots, others = _root_and_others(calls)
    for root in roots:
        root.blocks = [reduce_operands(others)]


def _all_reduce(calls: _Calls) -> None:
    """Set the block of each rank to the reduction of the operands of the other group."""
    for senders, receivers in _directions(calls):
        block = reduce_operands(senders)
        for call in receivers:
            call.blocks = [block]


def _reduce_scatter(calls: _Calls) -> None:
    """Reduce the vectors of each group; give each rank of the other one the next block.

    Args:
        calls: the calls of all ranks.
    """
    for senders, receivers in _directions(calls):
        total, start = reduce_operands(senders), 0
        for call in receivers:
            count = call.receive[0].elements  # type: ignore[index]
            call.blocks = [total[start : start + count].copy()]
            start += count


def _moving_rule(moves: Callable[[_Calls], list[Move]], priced_as: str) -> CollectiveRule:
    """Return the rule of a collective that moves blocks; its modelled time is that of a barrier."""
    return CollectiveRule(lambda calls: move_blocks(moves(calls)), priced_as, moves=moves)


_BARRIER = CollectiveRule(lambda calls: None, "barrier")
_BROADCAST = _moving_rule(_broadcast_moves, "barrier")
_GATHER = _moving_rule(_gather_moves, "barrier")
_SCATTER = _moving_rule(_scatter_moves, "barrier")
_ALL_GATHER = _moving_rule(_all_gather_moves, "barrier")
_ALL_TO_ALL = _moving_rule(_all_to_all_moves, "barrier")
_REDUCE = CollectiveRule(_reduce, "barrier")
_ALL_REDUCE = CollectiveRule(_all_reduce, "barrier")
_REDUCE_SCATTER = CollectiveRule(_reduce_scatter, "barrier")


# ---------------------------------------------------------------------- the collectives


def _has_root(self: Any, root: int) -> tuple[bool, bool]:
    """Return True if this rank is the root, and True if it is in the other group.

    Args:
        self: the intercommunicator.
        root: ROOT on the root, PROC_NULL on the other ranks of its group, the root's rank in the other group.

    Raises:
        MPIError: If the root is another number.
    """
    if root in (c.ROOT, c.PROC_NULL):
        return root == c.ROOT, False
    if not 0 <= root < self.remote_size:
        raise MPIError(
            "ERR_ROOT", f"root must be MPI.ROOT, MPI.PROC_NULL, or 0 to {self.remote_size - 1}, got {root}"
        )
    return False, True


def Barrier(self: Any) -> CollectiveCall:
    """Block until all ranks of both groups have called. ``Ibarrier`` returns a request."""
    return CollectiveCall(_BARRIER, [], [], {})


def barrier(self: Any) -> CollectiveCall:
    """Block until all ranks of both groups have called."""
    return CollectiveCall(_BARRIER, [], None, {})


def Bcast(self: Any, buf: Any, root: int = 0) -> CollectiveCall:
    """Send the root's buffer to all ranks of the other group.

    Args:
        self: the intercommunicator.
        buf: the data on the root, overwritten in the other group; not read on the other ranks of the root's group.
        root: ROOT on the root, PROC_NULL on the other ranks of its group, the root's rank in the other group.
    """
    is_root, is_other = _has_root(self, root)
    buffers = [message_buffer(buf)] if is_root or is_other else []
    return CollectiveCall(_BROADCAST, buffers if is_root else [], buffers if is_other else [], {}, root)


def bcast(self: Any, obj: Any, root: int = 0) -> CollectiveCall:
    """Send the root's object to all ranks of the other group, which return it; see ``Bcast`` for ``root``."""
    is_root, _ = _has_root(self, root)
    return CollectiveCall(_BROADCAST, [ObjectPayload(obj)] if is_root else [], None, {}, root)


def _gather_call(self: Any, sendbuf: Any, recvbuf: Any, root: int, split: Any) -> CollectiveCall:
    """Return the call of a gather.

    Args:
        self: the intercommunicator.
        sendbuf: the block of this rank.
        recvbuf: the buffer of the root.
        root: as for ``Bcast``.
        split: function that splits the root's buffer into one block per rank of the other group.
    """
    is_root, is_other = _has_root(self, root)
    send = [message_buffer(sendbuf)] if is_other else []
    return CollectiveCall(_GATHER, send, split(recvbuf, self.remote_size) if is_root else [], {}, root)


def Gather(self: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveCall:
    """Gather equal blocks of the other group to the root; see ``Bcast`` for ``root``."""
    return _gather_call(self, sendbuf, recvbuf, root, split_equally)


def Gatherv(self: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveCall:
    """Gather blocks of any size of the other group to the root; see ``Bcast`` for ``root``."""
    return _gather_call(self, sendbuf, recvbuf, root, split_by_counts)


def gather(self: Any, sendobj: Any, root: int = 0) -> CollectiveCall:
    """Gather the objects of the other group to the root, as a list; see ``Bcast`` for ``root``."""
    is_root, is_other = _has_root(self, root)
    send = [ObjectPayload(sendobj)] if is_other else []
    return CollectiveCall(_GATHER, send, None, {}, root, listed=is_root)


def _scatter_call(self: Any, sendbuf: Any, recvbuf: Any, root: int, split: Any) -> CollectiveCall:
    """Return the call of a scatter.

    Args:
        self: the intercommunicator.
        sendbuf: the buffer of the root.
        recvbuf: the block of this rank.
        root: as for ``Bcast``.
        split: function that splits the root's buffer into one block per rank of the other group.
    """
    is_root, is_other = _has_root(self, root)
    send = split(sendbuf, self.remote_size) if is_root else []
    return CollectiveCall(_SCATTER, send, [message_buffer(recvbuf)] if is_other else [], {}, root)


def Scatter(self: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveCall:
    """Scatter equal blocks of the root's buffer to the other group; see ``Bcast`` for ``root``."""
    return _scatter_call(self, sendbuf, recvbuf, root, split_equally)


def Scatterv(self: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveCall:
    """Scatter blocks of any size of the root's buffer to the other group; see ``Bcast`` for ``root``."""
    return _scatter_call(self, sendbuf, recvbuf, root, split_by_counts)


def _object_per_remote_rank(self: Any, sendobj: Any) -> list[Any]:
    """Return a list of objects to send, one per rank of the other group.

    Args:
        self: the intercommunicator.
        sendobj: the objects; None: None for each rank.

    Raises:
        ValueError: If there is another number of them.
    """
    objects = [None] * self.remote_size if sendobj is None else list(sendobj)
    if len(objects) != self.remote_size:
        raise ValueError(
            f"sendobj must have {self.remote_size} items, one per remote rank, got {len(objects)}"
        )
    return [ObjectPayload(item) for item in objects]


def scatter(self: Any, sendobj: Any, root: int = 0) -> CollectiveCall:
    """Scatter the root's list to the other group, whose ranks return their objects.

    Args:
        self: the intercommunicator.
        sendobj: on the root one object per remote rank.
        root: as for ``Bcast``.
    """
    is_root, _ = _has_root(self, root)
    return CollectiveCall(_SCATTER, _object_per_remote_rank(self, sendobj) if is_root else [], None, {}, root)


def Allgather(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Gather equal blocks of each group to all ranks of the other one."""
    return CollectiveCall(
        _ALL_GATHER, [message_buffer(sendbuf)], split_equally(recvbuf, self.remote_size), {}
    )


def Allgatherv(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Gather blocks of any size of each group to all ranks of the other one."""
    return CollectiveCall(
        _ALL_GATHER, [message_buffer(sendbuf)], split_by_counts(recvbuf, self.remote_size), {}
    )


def allgather(self: Any, sendobj: Any) -> CollectiveCall:
    """Gather the objects of each group to all ranks of the other one, as a list."""
    return CollectiveCall(_ALL_GATHER, [ObjectPayload(sendobj)], None, {}, listed=True)


def Alltoall(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Exchange equal blocks between the groups: block j of rank i becomes block i of remote rank j."""
    split = split_equally
    return CollectiveCall(_ALL_TO_ALL, split(sendbuf, self.remote_size), split(recvbuf, self.remote_size), {})


def Alltoallv(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Exchange blocks of any size between the groups: block j of rank i becomes block i of remote rank j."""
    split = split_by_counts
    return CollectiveCall(_ALL_TO_ALL, split(sendbuf, self.remote_size), split(recvbuf, self.remote_size), {})


def Alltoallw(self: Any, sendbuf: Any, recvbuf: Any) -> CollectiveCall:
    """Exchange blocks of any size and type between the groups."""
    split = split_by_types
    return CollectiveCall(_ALL_TO_ALL, split(sendbuf, self.remote_size), split(recvbuf, self.remote_size), {})


def alltoall(self: Any, sendobj: Any) -> CollectiveCall:
    """Exchange objects between the groups: rank i gets a list of the i-th objects of the remote ranks."""
    return CollectiveCall(_ALL_TO_ALL, _object_per_remote_rank(self, sendobj), None, {}, listed=True)


def _operand(sendbuf: Any, op: Any) -> tuple[Any, Op]:
    """Return the vector to reduce and the operation.

    Args:
        sendbuf: the vector.
        op: the operation.

    Raises:
        MPIError: If the operation is not defined for the dtype.
    """
    vector, operation = message_buffer(sendbuf), as_op(op)
    operation.check(vector.dtype)
    return vector, operation


def Reduce(self: Any, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> CollectiveCall:
    """Reduce the vectors of the other group to the root.

    Args:
        self: the intercommunicator.
        sendbuf: the vector of a rank of the other group.
        recvbuf: room for the result on the root.
        op: the operation.
        root: as for ``Bcast``.
    """
    is_root, is_other = _has_root(self, root)
    send, operation = [], as_op(op)
    if is_other:
        vector, operation = _operand(sendbuf, op)
        send = [vector]
    facts = {"op": operation.comparison_key()}
    return CollectiveCall(_REDUCE, send, [message_buffer(recvbuf)] if is_root else [], facts, root, operation)


def reduce(self: Any, sendobj: Any, op: Any = SUM, root: int = 0) -> CollectiveCall:
    """Reduce the objects of the other group to the root; see ``Bcast`` for ``root``."""
    _, is_other = _has_root(self, root)
    operation = as_op(op)
    send = [ObjectPayload(sendobj)] if is_other else []
    return CollectiveCall(_REDUCE, send, None, {"op": operation.comparison_key()}, root, operation)


def Allreduce(self: Any, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> CollectiveCall:
    """Reduce the vectors of each group to all ranks of the other one."""
    vector, operation = _operand(sendbuf, op)
    facts = {"op": operation.comparison_key()}
    return CollectiveCall(_ALL_REDUCE, [vector], [message_buffer(recvbuf)], facts, op=operation)


def allreduce(self: Any, sendobj: Any, op: Any = SUM) -> CollectiveCall:
    """Reduce the objects of each group to all ranks of the other one."""
    operation = as_op(op)
    return CollectiveCall(
        _ALL_REDUCE, [ObjectPayload(sendobj)], None, {"op": operation.comparison_key()}, op=operation
    )


def Reduce_scatter_block(self: Any, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> CollectiveCall:
    """Reduce the vectors of each group; give each rank of the other one a block of equal size."""
    vector, operation = _operand(sendbuf, op)
    facts = {"op": operation.comparison_key()}
    return CollectiveCall(_REDUCE_SCATTER, [vector], [message_buffer(recvbuf)], facts, op=operation)


def Reduce_scatter(
    self: Any, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Op = SUM
) -> CollectiveCall:
    """Reduce the vectors of each group; give each rank of the other one a block.

    Args:
        self: the intercommunicator.
        sendbuf: this rank's vector.
        recvbuf: room for this rank's block.
        recvcounts: the length of the block of each rank of this group; None: the length of each receive buffer.
        op: the operation.
    """
    vector, operation = _operand(sendbuf, op)
    buffer = message_buffer(recvbuf)
    if recvcounts is not None:
        buffer = buffer.select_elements(0, int(recvcounts[self._rank]))
    facts = {"op": operation.comparison_key()}
    return CollectiveCall(_REDUCE_SCATTER, [vector], [buffer], facts, op=operation)


add_collectives(Intercomm, globals())
