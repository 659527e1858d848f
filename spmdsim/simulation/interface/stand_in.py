"""The modules that a simulated program imports as ``mpi4py``."""

from __future__ import annotations

import importlib.machinery
import os
import re
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spmdsim.errors import WorldError
from spmdsim.simulation.data import constants, reduce_operators, type_lookups
from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.data.derived_types import Datatype
from spmdsim.simulation.data.handles import Handle
from spmdsim.simulation.data.memory import buffer, find_address
from spmdsim.simulation.data.pickles import PICKLE, Pickle
from spmdsim.simulation.data.reduce_operators import Op
from spmdsim.simulation.data.status import Status
from spmdsim.simulation.data.type_lookups import C_CODES, FORTRAN_CODES, list_codes, types_by_code
from spmdsim.simulation.engine.rank_clock import TICK, read_clock
from spmdsim.simulation.engine.scheduler import Task, current_task
from spmdsim.simulation.findings.problems import describe_call_place, site_of
from spmdsim.simulation.interface import errhandlers, error_codes, library_internals
from spmdsim.simulation.interface.generalized_requests import Grequest
from spmdsim.simulation.interface.graphs import Distgraphcomm, Graphcomm
from spmdsim.simulation.interface.groups import GROUP_EMPTY, GROUP_NULL, Group
from spmdsim.simulation.interface.info import INFO_ENV, INFO_NULL, Info
from spmdsim.simulation.interface.intercommunicators import Intercomm
from spmdsim.simulation.interface.package_settings import Rc, profile
from spmdsim.simulation.interface.ports import ports_of
from spmdsim.simulation.interface.probes import Matched
from spmdsim.simulation.interface.process_topology import Cartcomm, Compute_dims, Topocomm
from spmdsim.simulation.interface.requests import Prequest, Request
from spmdsim.simulation.interface.sessions import SESSION_NULL, Session
from spmdsim.simulation.interface.shared_files import FILE_NULL, File
from spmdsim.simulation.interface.simulated_comm import COMM_NULL, Comm, Intracomm, enable
from spmdsim.simulation.interface.windows import WIN_NULL, Win

VERSION = "4.1.0"


def _task() -> Task:
    """Return the running rank; raise WorldError if no simulation is running."""
    task = current_task()
    if task is None:
        raise WorldError(
            "MPI needs a running simulation; start the program with simulate(...) or `spmdsim simulate`"
        )
    return task


def _find_users(mpi: Any) -> dict[str, Any]:
    """Return the loaded modules of mpi4py, and all modules that use mpi4py, as {name: module}.

    A module uses mpi4py if one of its attributes is ``mpi``, as after ``from mpi4py import MPI``. The module
    ``__main__`` is left out.

    Args:
        mpi: the module mpi4py.MPI; None: return modules of mpi4py only.
    """

    def uses_mpi(name: str, module: Any) -> bool:
        if name.partition(".")[0] == "mpi4py":
            return True
        names = getattr(module, "__dict__", {})
        return (
            mpi is not None and name != "__main__" and any(attribute is mpi for attribute in names.values())
        )

    return {name: module for name, module in list(sys.modules.items()) if uses_mpi(name, module)}


class _Package(types.ModuleType):
    """The package ``mpi4py`` that ranks share; each rank has its own submodules, such as ``mpi4py.futures``."""

    def __setattr__(self, name: str, value: Any) -> None:
        # Python sets an attribute for each submodule that a rank loads, but other ranks must not see it.
        if f"{self.__name__}.{name}" not in sys.modules:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """Return the running rank's submodule ``name``; raise AttributeError if it has not loaded it."""
        module = sys.modules.get(f"mpi4py.{name}")
        if module is None:
            raise AttributeError(f"module 'mpi4py' has no attribute {name!r}")
        return module


class StandIn:
    """The modules ``mpi4py`` and ``mpi4py.MPI`` of one simulation."""

    def __init__(self) -> None:

        PICKLE.__init__()  # type: ignore[misc]  # forget the functions of the last program
        self._datareps: dict[int, set[str]] = {}
        self.package = _Package("mpi4py", "A stand-in for mpi4py, with virtual ranks.")
        # Submodules in Python, such as mpi4py.util.pkl5, are those of the installed mpi4py.
        spec = importlib.machinery.PathFinder.find_spec("mpi4py")
        self.package.__spec__ = spec or importlib.machinery.ModuleSpec("mpi4py", None, is_package=True)
        self.package.__file__ = self.package.__spec__.origin
        self.package.__path__ = list(self.package.__spec__.submodule_search_locations or [])
        self.MPI = types.ModuleType("mpi4py.MPI", "A stand-in for mpi4py.MPI, with virtual ranks.")
        libraries = [path for folder in self.package.__path__ for path in Path(folder).glob("MPI.*.so")]
        if libraries:  # the last one is that of Open MPI, if mpi4py supports several libraries
            self.MPI.__file__ = str(max(libraries))
        self.rc = Rc()
        vars(self.package).update(
            MPI=self.MPI,
            rc=self.rc,
            Rc=Rc,
            profile=profile,
            __version__=VERSION,
            get_config=dict,
            get_include=lambda: os.path.join(self.package.__path__[0], "include"),
            __spmdsim__=True,
        )
        vars(self.MPI).update(_shared_names())
        vars(self.MPI).update({name: getattr(self, name) for name in _FUNCTIONS})
        vars(self.MPI)["__getattr__"] = self._lookup

    def modules(self) -> dict[str, Any]:
        """Return the entries for ``sys.modules``."""
        return {"mpi4py": self.package, "mpi4py.MPI": self.MPI, "mpi4py.rc": self.rc}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let ``import mpi4py`` give the simulated mpi4py inside a ``with`` block.

        On entry the real mpi4py and the modules that imported it are removed from ``sys.modules``: when the program
        imports them again, they get the simulated one. On exit they are restored, and modules that imported the
        simulated one inside the block are removed. Yields None.
        """
        removed = _find_users(sys.modules.get("mpi4py.MPI"))
        for name in removed:
            del sys.modules[name]
        before = set(sys.modules)
        sys.modules.update(self.modules())
        try:
            yield
        finally:
            for name in _find_users(self.MPI):
                if name not in before:
                    del sys.modules[name]
            sys.modules.update(removed)
            for name, module in removed.items():
                parent, _, child = name.rpartition(".")
                if parent in sys.modules:
                    setattr(sys.modules[parent], child, module)

    def _lookup(self, name: str) -> Any:
        """Return COMM_WORLD or COMM_SELF of the running rank.

        This is the ``__getattr__`` of the module ``mpi4py.MPI``. If ``rc.initialize`` is off and the rank has not
        called Init, its COMM_WORLD is a disabled handle.

        Raises:
            AttributeError: If ``name`` is another name.
            WorldError: If no simulation is running.
        """
        if name == "COMM_WORLD":
            task = _task()
            self._check_initialized(task)
            return task.world
        if name == "COMM_SELF":
            return _task().self_comm
        raise AttributeError(f"module 'mpi4py.MPI' has no attribute {name!r}")

    def _check_initialized(self, task: Task) -> None:
        """Start MPI on the rank ``task``; disable its COMM_WORLD if it must call Init first."""
        if task.thread_level < 0:
            level = self.rc.thread_level if self.rc.threads else "single"
            task.thread_level = getattr(constants, f"THREAD_{level.upper()}")
        if not self.rc.initialize and task.initialized is True:
            task.thread_level = constants.THREAD_SINGLE
            task.initialized = False
            task.world._disable("MPI.Init() has not been called (rc.initialize is off)", fatal=True)

    # ------------------------------------------------------------------ functions of the module

    def Init(self) -> None:
        """Start MPI: COMM_WORLD can be used. Programs need it only if they set ``rc.initialize`` to False.

        Raises MPIError (ERR_OTHER) if MPI has been started or finalised before.
        """
        task = _task()
        self._check_initialized(task)
        if task.initialized is not False or task.finalized:
            raise MPIError(
                "ERR_OTHER",
                "MPI.Init must be called once, but MPI is initialised, as the import of mpi4py.MPI does",
            )
        task.initialized = describe_call_place(task.rank, "Init", site_of(sys._getframe(1)))
        enable(task.world)

    def Init_thread(self, required: int = constants.THREAD_MULTIPLE) -> int:
        """Initialise MPI as ``Init`` does; return the required thread level, which is always provided."""
        self.Init()
        _task().thread_level = required
        return required

    def Finalize(self) -> None:
        """Finalise MPI: communicators cannot be used afterwards. Raises MPIError if MPI is finalised."""
        task = _task()
        if task.finalized:
            raise MPIError("ERR_OTHER", "MPI.Finalize must be called once, but MPI is finalised")
        task.finalized = True
        task.world._disable("MPI.Finalize() has been called", fatal=True)

    def Is_initialized(self) -> bool:
        """Return True if MPI has started."""
        task = _task()
        self._check_initialized(task)
        return task.initialized is not False

    def Is_finalized(self) -> bool:
        """Return True if MPI is finalised."""
        return _task().finalized

    def Query_thread(self) -> int:
        """Return the thread level: of ``Init_thread``, or of ``mpi4py.rc`` at the first use of MPI."""
        task = _task()
        self._check_initialized(task)
        return task.thread_level

    def Is_thread_main(self) -> bool:
        """Return True in the first thread of a rank."""
        task = _task()
        return task.scheduler.current is task

    def Wtime(self) -> float:
        """Return the rank's modelled clock in seconds.

        See :func:`read_clock`. Raises WorldError if no simulation is running.
        """
        return read_clock(_task())

    def Wtick(self) -> float:
        """Return the resolution of the clock."""
        return TICK

    def Get_processor_name(self) -> str:
        """Return the name of the rank's node."""
        task = _task()
        return task.scheduler.nodes.host_of(task.rank)

    def Get_version(self) -> tuple[int, int]:
        """Return the version of the MPI standard."""
        return (4, 0)

    def Get_library_version(self) -> str:
        """Return the name of the simulator."""
        return "spmdsim simulated MPI"

    def Get_abi_version(self) -> tuple[int, int]:
        """Return (-1, -1): the handles are those of no standard ABI."""
        return (-1, -1)

    def Get_abi_info(self) -> Info:
        """Return hints with the bytes of addresses, counts and offsets."""
        return Info.Create({f"mpi_{kind}_size": "8" for kind in ("aint", "count", "offset")})

    def Get_abi_fortran_info(self) -> Info:
        """Return hints with the bytes of Fortran's default types, and on its sized types that exist."""
        names = type_lookups.NAMED
        hints = {
            f"mpi_{name.lower()}_size": str(names[name].Get_size())
            for name in ("LOGICAL", "INTEGER", "REAL", "DOUBLE_PRECISION")
        }
        for name, datatype in names.items():
            if name == "DOUBLE_COMPLEX" or re.fullmatch("(LOGICAL|INTEGER|REAL|COMPLEX)[0-9]+", name):
                hints[f"mpi_{name.lower()}_supported"] = str(bool(datatype)).lower()
        return Info.Create(hints)

    def get_vendor(self) -> tuple[str, tuple[int, int, int]]:
        """Return the name and version of the simulator."""
        return ("spmdsim", (0, 0, 0))

    def Attach_buffer(self, buf: Any) -> None:
        """Attach memory for buffered sends of the running rank.

        Its bytes are a limit for each single send. The memory itself is not used.

        Args:
            buf: an object with memory; None: no limit.
        """
        _task().attach(buf)

    def Detach_buffer(self) -> Any:
        """Detach and return the memory for buffered sends."""
        return _task().detach()

    def Pcontrol(self, level: int) -> None:
        """Do nothing: profiling is not simulated."""

    def Flush_buffer(self) -> None:
        """Wait for buffered sends; none has to wait, because their data was copied."""

    def Iflush_buffer(self) -> Request:
        """Start to wait for buffered sends; return a null request, which is complete."""
        return Request()

    def Alloc_mem(self, size: int, info: Any = None) -> buffer:
        """Return ``size`` bytes of memory; ``info`` is not used."""
        return buffer.allocate(size)

    def Free_mem(self, mem: buffer) -> None:
        """Free memory of ``Alloc_mem``."""
        mem.release()

    def Register_datarep(self, datarep: str, read_fn: Any, write_fn: Any, extent_fn: Any) -> None:
        """Register the name of a data representation; views that use it are refused.

        Args:
            datarep: the name.
            read_fn: not used: mpi4py has it.
            write_fn: not used: mpi4py has it.
            extent_fn: not used: mpi4py has it.

        Raises:
            MPIError: If the name exists.
        """
        names = self._datareps.setdefault(_task().rank, {"native", "internal", "external32"})
        if datarep in names:
            raise MPIError(
                "ERR_DUP_DATAREP", f"Register_datarep: datarep must be a new name, got {datarep!r}"
            )
        names.add(datarep)

    def Open_port(self, info: Info = INFO_NULL) -> str:
        """Open a port, at which other ranks can connect; return its name. ``info`` is not used."""
        task = _task()
        return ports_of(task).open(task.rank)

    def Close_port(self, port_name: str) -> None:
        """Close a port; raise an MPI error (ERR_PORT) if it is not open."""
        ports_of(_task()).close(port_name)

    def Publish_name(self, service_name: str, port_name: str, info: Info = INFO_NULL) -> None:
        """Publish a port under the name of a service.

        Args:
            service_name: the name of the service.
            port_name: the name of the port.
            info: not used: mpi4py has it.

        Raises:
            MPIError: If the service is published (ERR_SERVICE).
        """
        ports_of(_task()).publish(service_name, port_name)

    def Unpublish_name(self, service_name: str, port_name: str, info: Info = INFO_NULL) -> None:
        """Remove a service.

        Args:
            service_name: the name of the service.
            port_name: the name of its port.
            info: not used: mpi4py has it.

        Raises:
            MPIError: If the service is not published with this port (ERR_SERVICE).
        """
        ports_of(_task()).withdraw(service_name, port_name)

    def Lookup_name(self, service_name: str, info: Info = INFO_NULL) -> str:
        """Return the port of a service.

        Other ranks run first, so that a program may repeat the call until the service is published.

        Args:
            service_name: the name of the service.
            info: not used: mpi4py has it.

        Raises:
            MPIError: If the service is not published (ERR_NAME).
        """
        task = _task()
        task.scheduler.yield_turn()
        return ports_of(task).look_up(service_name)

    def Get_hw_resource_info(self) -> Info:
        """Return hints on the hardware: none."""
        return Info.Create()

    def Get_address(self, location: Any) -> int:
        """Return the address of the memory of an object."""
        return find_address(location)

    def Aint_add(self, base: int, disp: int) -> int:
        """Return the address ``disp`` bytes after another one."""
        return base + disp

    def Aint_diff(self, addr1: int, addr2: int) -> int:
        """Return the number of bytes from the second address to the first one."""
        return addr1 - addr2


_FUNCTIONS = [name for name in vars(StandIn) if name[0].isupper() or name == "get_vendor"]


def _predefined_handles() -> dict[str, Any]:
    """Return {name: handle} of the null handles and the other handles that MPI predefines for all ranks."""
    return {
        "COMM_NULL": COMM_NULL,
        "SESSION_NULL": SESSION_NULL,
        "FILE_NULL": FILE_NULL,
        "REQUEST_NULL": Request(),
        "GROUP_EMPTY": GROUP_EMPTY,
        "GROUP_NULL": GROUP_NULL,
        "MESSAGE_NULL": Matched(),
        "MESSAGE_NO_PROC": Matched.from_proc_null(),
        "INFO_NULL": INFO_NULL,
        "INFO_ENV": INFO_ENV,
        "WIN_NULL": WIN_NULL,
        "ERRHANDLER_NULL": errhandlers.ERRHANDLER_NULL,
        "ERRORS_ARE_FATAL": errhandlers.ERRORS_ARE_FATAL,
        "ERRORS_RETURN": errhandlers.ERRORS_RETURN,
        "ERRORS_ABORT": errhandlers.ERRORS_ABORT,
    }


#: Classes that have their own name in ``mpi4py.MPI``.
_CLASSES = (
    Comm,
    Intracomm,
    Topocomm,
    Cartcomm,
    Graphcomm,
    Distgraphcomm,
    Intercomm,
    Group,
    Status,
    Request,
    Prequest,
    Grequest,
    Session,
    File,
    Win,
    Pickle,
    Op,
    Datatype,
    Info,
    errhandlers.Errhandler,
)
_CONSTANT_CLASSES = (constants.InPlaceType, constants.BottomType, constants.BufferAutomaticType)


def _functions_of(module: types.ModuleType, is_private: bool = False) -> dict[str, Any]:
    """Return {name: function} of the public or the private functions that a module defines."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, types.FunctionType)
        and value.__module__ == module.__name__
        and name.startswith("_") == is_private
    }


def _shared_names() -> dict[str, Any]:
    """Return {name: value} of the names in ``mpi4py.MPI`` that have one value for all ranks.

    These are the constants, error codes, datatypes, operations, classes and null handles, such as ``ANY_TAG``,
    ``DOUBLE``, ``SUM``, ``Status`` and ``COMM_NULL``. COMM_WORLD, COMM_SELF and the functions of :class:`StandIn` are
    not among them.
    """
    names: dict[str, Any] = {
        name: value for name, value in vars(constants).items() if name.isupper() and isinstance(value, int)
    }
    names.update(constants.ERROR_CODES)
    names.update(type_lookups.NAMED)
    names.update(reduce_operators.NAMED)
    names.update({cls.__name__: cls for cls in (*_CLASSES, *_CONSTANT_CLASSES)})
    names.update(_functions_of(error_codes))
    names.update(_functions_of(library_internals, is_private=True))
    names.update(
        Message=Matched,
        Exception=MPIError,
        Compute_dims=Compute_dims,
        **_predefined_handles(),
        pickle=PICKLE,
        _typedict=types_by_code(),
        _typedict_c=list_codes(C_CODES),
        _typedict_f=list_codes(FORTRAN_CODES),
        buffer=buffer,
        memory=buffer,
    )
    for name, value in names.items():
        if isinstance(value, Handle):
            value.name_as_predefined(name)
    return names
