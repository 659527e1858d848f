"""Windows: memory that the ranks of a communicator let each other access (``MPI.Win``)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from spmdsim.simulation.data import constants as c
from spmdsim.simulation.data.array_views import as_bytes
from spmdsim.simulation.data.attributes import AttributeHolder
from spmdsim.simulation.data.buffer_protocol import Exporter
from spmdsim.simulation.data.constants import BOTTOM, MPIError
from spmdsim.simulation.data.handles import Handle
from spmdsim.simulation.data.memory import buffer
from spmdsim.simulation.engine.collective_calls import CollectiveCall, CollectiveRule
from spmdsim.simulation.engine.mailboxes import Endpoint
from spmdsim.simulation.engine.scheduler import current_task
from spmdsim.simulation.engine.timing import are_on_one_node
from spmdsim.simulation.findings.problems import ProgramPlace, describe_call_place, site_of
from spmdsim.simulation.interface.collective_methods import call_collective
from spmdsim.simulation.interface.errhandlers import ErrhandlerHolder
from spmdsim.simulation.interface.groups import Group
from spmdsim.simulation.interface.info import Info
from spmdsim.simulation.interface.window_calls import WindowCalls
from spmdsim.simulation.one_sided.regions import Region
from spmdsim.simulation.one_sided.window_state import Exposed, WindowState

_frame = sys._getframe


class Win(WindowCalls, AttributeHolder, ErrhandlerHolder, Handle, Exporter):  # type: ignore[misc]
    """The handle of one rank on a window."""

    _hints: Mapping[str, str] = MappingProxyType({})

    def __bool__(self) -> bool:
        return self._window is not None

    def _check_usable(self) -> None:
        """Raise an MPI error for a null handle."""
        _ = self._state

    # ------------------------------------------------------------------ new windows

    @classmethod
    def _create(cls, name: str, flavor: int, value: Any, info: Any, comm: Any, frame: Any) -> Any:
        """Return the handle of the running rank on a new window, when all ranks have called.

        Args:
            name: the method, such as "Create".
            flavor: the kind of window, such as WIN_FLAVOR_CREATE.
            value: the memory or its size, and the displacement unit.
            info: hints for ``Get_info``.
            comm: the communicator; None: COMM_SELF.
            frame: the caller's frame.

        Raises:
            MPIError: If the displacement unit is not positive (ERR_DISP).
        """
        if value[1] < 1:
            raise MPIError("ERR_DISP", f"{name}: disp_unit must be 1 or more, got {value[1]}")
        comm = _self_comm() if comm is None else comm
        created = describe_call_place(comm._task.rank, name, site_of(frame))
        rule = CollectiveRule(lambda calls: _answer_creation(calls, flavor, created), "barrier")
        call = CollectiveCall(rule, [], None, {})
        call.value = value
        state = call_collective(comm, call, f"Win.{name}", frame)
        win = cls()
        win._window, win._rank, win._hints, win._attributes = state, comm._rank, dict(info or {}), {}
        win._end = Endpoint(state.shared, comm._rank, comm._task)
        return win

    @classmethod
    def Create(cls, memory: Any, disp_unit: int = 1, info: Any = None, comm: Any = None) -> Any:
        """Create a window of existing memory; all ranks of ``comm`` must call it.

        Args:
            memory: contiguous memory that other ranks may access; None or BOTTOM: no memory.
            disp_unit: bytes of a displacement of 1.
            info: hints, which have no effect.
            comm: the communicator; None: COMM_SELF.

        Raises:
            BufferError: If the memory is read-only or not contiguous.
            MPIError: If ``disp_unit`` is below 1.
        """
        value = (_window_bytes("Create", memory), disp_unit)
        return cls._create("Create", c.WIN_FLAVOR_CREATE, value, info, comm, _frame(1))

    @classmethod
    def Allocate(cls, size: int, disp_unit: int = 1, info: Any = None, comm: Any = None) -> Any:
        """Create a window of new memory; all ranks of ``comm`` must call it.

        Args:
            size: bytes of this rank's memory, which are 0.
            disp_unit: bytes of a displacement of 1.
            info: hints, which have no effect.
            comm: the communicator; None: COMM_SELF.

        Raises:
            MPIError: If ``size`` is negative, or ``disp_unit`` below 1.
        """
        value = (np.zeros(_check_size("Allocate", size), np.uint8), disp_unit)
        return cls._create("Allocate", c.WIN_FLAVOR_ALLOCATE, value, info, comm, _frame(1))

    @classmethod
    def Allocate_shared(cls, size: int, disp_unit: int = 1, info: Any = None, comm: Any = None) -> Any:
        """Create a window of memory to which all its ranks can store; all ranks of ``comm`` must call it.

        Their memory is one block, in rank order. ``Shared_query`` returns the memory of any rank.

        Args:
            size: bytes of this rank's memory, which are 0.
            disp_unit: bytes of a displacement of 1.
            info: hints, which have no effect.
            comm: a communicator of ranks on one node, as of ``Split_type``; None: COMM_SELF.

        Raises:
            MPIError: If ``size`` is negative, ``disp_unit`` below 1, or ranks are on several nodes (ERR_RMA_SHARED).
        """
        comm = _self_comm() if comm is None else comm
        ranks, scheduler = comm._shared.ranks, comm._scheduler
        if scheduler.machine.intra is not None and not are_on_one_node(scheduler.machine, ranks):
            raise MPIError(
                "ERR_RMA_SHARED", "Allocate_shared: the ranks must be on one node; call Split_type before"
            )
        value = (_check_size("Allocate_shared", size), disp_unit)
        return cls._create("Allocate_shared", c.WIN_FLAVOR_SHARED, value, info, comm, _frame(1))

    @classmethod
    def Create_dynamic(cls, info: Any = None, comm: Any = None) -> Any:
        """Create a window without memory, for ``Attach``; all ranks of ``comm`` must call it.

        Displacements of its targets are addresses (``MPI.Get_address``).

        Args:
            info: hints, which have no effect.
            comm: the communicator; None: COMM_SELF.
        """
        return cls._create("Create_dynamic", c.WIN_FLAVOR_DYNAMIC, (None, 1), info, comm, _frame(1))

    def Free(self) -> None:
        """Free the window; all ranks must call it, outside of an epoch. The handle becomes null.

        Raises:
            MPIError: If an epoch is open on this rank (ERR_RMA_SYNC), or the handle is null (ERR_WIN).
        """
        window = self._state
        window.epochs[self._rank].check_closed("Free")
        freed = describe_call_place(self._task.rank, "Free", site_of(_frame(1)))
        rule = CollectiveRule(lambda calls: window.free(freed), "barrier")
        call_collective(self, CollectiveCall(rule, [], None, {"assertion": "none"}), "Free", _frame(1))
        self._delete_attributes()
        self.__dict__.clear()

    # ------------------------------------------------------------------ memory

    def Attach(self, memory: Any) -> None:
        """Let other ranks access memory of this rank in a dynamic window.

        Raises:
            MPIError: If the window is not dynamic (ERR_RMA_FLAVOR), or the memory is attached already
                (ERR_RMA_ATTACH).
        """
        array = _window_bytes("Attach", memory)
        regions = self._attached("Attach")
        address = int(array.__array_interface__["data"][0])
        for region in regions:
            if address < region.address + len(region.memory) and region.address < address + len(array):
                raise MPIError("ERR_RMA_ATTACH", "Attach: memory must be attached once; call Detach before")
        label = f"memory that rank {self._task.rank} has attached"
        regions.append(Region(self._scheduler, array, label, [self._task.rank]))

    def Detach(self, memory: Any) -> None:
        """Take memory back that this rank has attached.

        Raises:
            MPIError: If the window is not dynamic (ERR_RMA_FLAVOR), or the memory is not attached (ERR_RMA_ATTACH).
        """
        address = int(_window_bytes("Detach", memory).__array_interface__["data"][0])
        regions = self._attached("Detach")
        for region in regions:
            if region.address == address:
                region.release()
                regions.remove(region)
                return
        raise MPIError("ERR_RMA_ATTACH", "Detach: the memory must be attached; call Attach before")

    def _attached(self, name: str) -> list[Region]:
        """Return the attached memory of this rank; raise an MPI error if the window is not dynamic."""
        if self._state.flavor != c.WIN_FLAVOR_DYNAMIC:
            raise MPIError("ERR_RMA_FLAVOR", f"{name} needs a window of Create_dynamic")
        return self._state.exposed[self._rank].regions

    def Shared_query(self, rank: int) -> tuple[buffer, int]:
        """Return the memory of a rank in a shared window, and its displacement unit.

        Args:
            rank: the rank; PROC_NULL: the lowest rank with memory.

        Raises:
            MPIError: If the window is not shared (ERR_RMA_FLAVOR), or the rank is not in it (ERR_RANK).
        """
        exposed = self._state.exposed
        if self._state.flavor != c.WIN_FLAVOR_SHARED:
            raise MPIError("ERR_RMA_FLAVOR", "Shared_query needs a window of Allocate_shared")
        if self._check_rank("Shared_query", rank):
            chosen = exposed[rank]
        else:
            chosen = next((each for each in exposed if len(each.memory)), exposed[0])
        return _as_block(chosen.memory), chosen.unit

    def tomemory(self) -> buffer:
        """Return the memory of this rank."""
        return _as_block(self._state.exposed[self._rank].memory)

    def __buffer__(self, flags: int) -> memoryview:
        memory: Any = self.tomemory()
        return memoryview(memory)

    # ------------------------------------------------------------------ attributes

    @property
    def attrs(self) -> tuple[int, int, int]:
        """The address, the bytes and the displacement unit of this rank's memory."""
        memory = self.tomemory()
        return memory.address, memory.nbytes, self._state.exposed[self._rank].unit

    def Get_attr(self, keyval: int) -> Any:
        """Return an attribute of MPI such as WIN_SIZE, or one of the program; None if ``keyval`` has none."""
        base, size, unit = self.attrs
        predefined = {
            c.WIN_BASE: base,
            c.WIN_SIZE: size,
            c.WIN_DISP_UNIT: unit,
            c.WIN_CREATE_FLAVOR: self._state.flavor,
            c.WIN_MODEL: c.WIN_UNIFIED,
        }
        return predefined[keyval] if keyval in predefined else super().Get_attr(keyval)

    def Get_group(self) -> Group:
        """Return the group of the ranks."""
        return Group.make(self._state.ranks)

    def Get_info(self) -> Info:
        """Return a copy of the hints."""
        self._end.running()
        return Info.Create(self._hints)

    def Set_info(self, info: Info) -> None:
        """Replace the hints, which have no effect."""
        self._end.running()
        self._hints = dict(info.items())

    def Get_name(self) -> str:
        """Return the name that the program set, or one that is made of the communicator's."""
        return "MPI_WIN_NULL" if self._window is None else self._state.name

    def Set_name(self, name: str) -> None:
        """Set the name."""
        self._state.name = name

    name = property(Get_name, Set_name)
    info = property(Get_info, Set_info)
    group = property(Get_group)
    group_size = property(lambda self: len(self._state.ranks))
    group_rank = property(lambda self: self._rank)
    flavor = property(lambda self: self._state.flavor)
    model = property(lambda self: self.Get_attr(c.WIN_MODEL))


def _self_comm() -> Any:
    """Return COMM_SELF of the running rank."""
    task = current_task()
    return None if task is None else task.self_comm


def _check_size(name: str, size: int) -> int:
    """Return a number of bytes; raise an MPI error (ERR_SIZE) if it is negative."""
    if size < 0:
        raise MPIError("ERR_SIZE", f"{name}: size must be 0 bytes or more, got {size}")
    return size


def _as_block(memory: Any) -> buffer:
    """Return an array of bytes as a block; an empty block without address for None and for no bytes."""
    return buffer() if memory is None or not len(memory) else buffer.frombuffer(memory)


def _window_bytes(name: str, memory: Any) -> Any:
    """Return the bytes of memory as a 1-D array that shares it.

    Args:
        name: the method, for errors.
        memory: the memory; None and BOTTOM give no bytes.

    Raises:
        BufferError: If the memory is read-only or not contiguous.
    """
    if memory is None or memory is BOTTOM:
        return np.zeros(0, np.uint8)
    array = as_bytes(memory)
    if not array.flags.writeable:
        raise BufferError(f"{name}: the memory must be writeable")
    return array


def _answer_creation(calls: list[CollectiveCall], flavor: int, created: ProgramPlace) -> None:
    """Create the state of a new window of the ranks of a communicator, and store it in each call.

    Args:
        calls: the calls of all ranks, in rank order. ``call.value`` is (memory or its size, displacement unit) before.
        flavor: the kind of window.
        created: the call of one rank.
    """
    parent = calls[0].comm
    state = WindowState(parent.create_state(parent.ranks, "Win"), flavor, created)
    memories, units = zip(*(call.value for call in calls))
    if flavor == c.WIN_FLAVOR_SHARED:
        state.expose_shared(np.zeros(sum(memories), np.uint8), memories, units)
    elif flavor == c.WIN_FLAVOR_DYNAMIC:
        state.exposed = [Exposed(None, 1, []) for _ in calls]
    else:
        state.expose(memories, units)
    for call in calls:
        call.value = state


WIN_NULL: Any = Win()
