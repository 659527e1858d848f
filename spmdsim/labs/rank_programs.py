"""A student's per-rank function, each rank in a process of its own, and its calls of mpi4py made by the judge.

The ranks' processes have no mpi4py: what they import is a stand-in whose calls travel to the judge as plain data. The judge
makes them in its simulation, at the line where the function makes them, and sends back what they return. So the messages
and their order are the judge's, and a rank knows of other ranks only what messages bring.

Arrays that calls read or fill lie in blocks of memory. The judge has a copy of each block; both sides send the blocks that have
changed with every call, so that the copies are equal whenever the judge looks.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from spmdsim.collectives.foreign import Other
from spmdsim.errors import InputError, NoAnswer
from spmdsim.labs.plain_data import ELEMENTS, decode, encode
from spmdsim.launch.limits import describe_mistake
from spmdsim.simulation.data import constants
from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.data.derived_types import Datatype
from spmdsim.simulation.data.reduce_operators import Op
from spmdsim.simulation.data.status import Status
from spmdsim.simulation.engine.scheduler import load_greenlet
from spmdsim.simulation.interface.groups import Group
from spmdsim.simulation.interface.probes import Matched
from spmdsim.simulation.interface.requests import Request
from spmdsim.simulation.interface.simulated_comm import Comm

#: Bytes of all arrays that a rank's calls read or fill, and characters of texts that stand in messages.
MOST_BYTES, MOST_WORDS = 1 << 22, 300
#: What a rank may have of the judge's objects.
HANDLES = (Comm, Request, Status, Datatype, Op, Group, Matched)
#: Functions of ``MPI`` that a rank may call.
FUNCTIONS = (
    "Wtime",
    "Wtick",
    "Get_processor_name",
    "Get_version",
    "Is_initialized",
    "Compute_dims",
    "Attach_buffer",
    "Detach_buffer",
)


# -- where the function is judged -----------------------------------------------------------------------


class RankAnswer:
    """A student's per-rank function whose ranks are processes; it is called on a rank of a simulation.

    Args:
        processes: per rank what asks its process a question.
    """

    def __init__(self, processes: Sequence[Callable[..., Any]]) -> None:
        self._processes = processes

    def __call__(self, comm: Any, *arguments: Any) -> Any:
        """Call the function on this rank and return its result, read as plain data."""
        ask, objects = self._processes[comm.rank], _JudgeObjects()
        reply = ask("start", [encode(each, special=objects.encode) for each in (comm, *arguments)])
        try:
            while reply[0] == "call":
                reply = ask(*objects.answer(*reply[1:]))
            if reply[0] == "done":
                return decode(reply[1])
            _, name, text, file, line = reply
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
            raise NoAnswer("the user's code writes what is no answer") from None
        _at(file, line, _raise)(_error_of(str(name)[:MOST_WORDS], str(text)[:MOST_WORDS]))
        return None


def _error_of(name: str, text: str) -> BaseException:
    """Return the error that the function has raised, of a type of that name."""
    if name == "SystemExit":
        return SystemExit(int(text) if text.isdecimal() else text)
    error: BaseException = type(name, (Exception,), {})(text)
    return error


# Both have one line, below the first.
def _call(function: Any, args: Any, named: Any) -> Any:
    return function(*args, **named)


def _raise(error: Any) -> Any:
    raise error


def _at(file: Any, line: Any, function: Any) -> Callable[..., Any]:
    """Return a function of one line that tracebacks and stacks show at a line of the user's file."""
    name, number = str(file)[:MOST_WORDS], min(max(int(line), 1), 1 << 20)
    code = function.__code__.replace(co_filename=name, co_firstlineno=number - 1)
    return types.FunctionType(code, {})


class _JudgeObjects:
    """The judge's objects and arrays that a rank knows by number, for one run of the function."""

    def __init__(self) -> None:
        self._objects: list[Any] = []
        self._blocks: dict[int, np.ndarray] = {}
        self._sent: dict[int, bytes] = {}

    def encode(self, value: Any) -> Any:
        """Return a handle's or a given function's kind and number; None for other values."""
        if isinstance(value, (HANDLES, types.FunctionType)):
            self._objects.append(value)
            return ["handle", [len(self._objects) - 1]]
        return None

    def answer(
        self, target: Any, name: str, args: Any, kwargs: Any, blocks: Any, file: str, line: int
    ) -> list[Any]:
        """Make a call, or look an attribute up if ``args`` is None; return what the rank is to be told.

        Args:
            target: the object, ``["handle", [number]]`` or ``["path", [name in MPI]]``.
            name: of the method or attribute; empty for a call of the object itself.
            args: encoded arguments.
            kwargs: encoded arguments with names.
            blocks: blocks of memory that are new or have changed, as pairs of number and bytes in hexadecimal digits.
            file: of the user's line that makes the call.
            line: its number.
        """
        try:
            for number, data in blocks:
                self._fill(number, bytes.fromhex(data))
            decoders: dict[str, Callable[..., Any]] = {
                "handle": self._objects.__getitem__,
                "path": _look_up,
                "memory": self._view,
            }
            one = decode(target, decoders)
            if name.startswith("_") or (name and isinstance(one, types.FunctionType)):
                raise AttributeError(f"{name} is not available here")
            value = getattr(one, name) if name else one
            if args is None:
                is_method = callable(value) and not isinstance(value, HANDLES)
                return ["return", None, True, []] if is_method else ["return", self._plain(value), False, []]
            positional = [decode(each, decoders) for each in args]
            named = {str(key): decode(each, decoders) for key, each in kwargs}
            value = self._plain(_at(file, line, _call)(value, positional, named))
        except MPIError as error:
            return ["raise", "MPI", error.error_name, error.reason]
        except Exception as error:
            return ["raise", type(error).__name__, str(error)[:MOST_WORDS], ""]
        return ["return", value, False, self._changed()]

    def _plain(self, value: Any) -> Any:
        """Encode the result of a call; raise AttributeError if it is neither plain data nor a handle."""
        data = encode(value, special=self.encode)
        if isinstance(data, list) and data[0] == "other":
            raise AttributeError(f"{type(value).__name__} is not available here")
        return data

    def _fill(self, number: int, data: bytes) -> None:
        if number not in self._blocks:
            if len(data) + sum(block.nbytes for block in self._blocks.values()) > MOST_BYTES:
                raise InputError(f"arrays in messages have at most {MOST_BYTES:,} bytes here")
            self._blocks[number] = np.zeros(len(data), np.uint8)
        self._blocks[number][:] = np.frombuffer(data, np.uint8)
        self._sent[number] = data

    def _view(self, number: int, offset: int, shape: list[int], strides: list[int], dtype: str) -> np.ndarray:
        kind = np.dtype(dtype)
        if kind.kind not in f"{ELEMENTS}c":
            raise ValueError(f"an array of {dtype}")
        return np.ndarray(tuple(shape), kind, self._blocks[number].data, offset, tuple(strides))

    def _changed(self) -> list[Any]:
        changed = [number for number, block in self._blocks.items() if block.tobytes() != self._sent[number]]
        self._sent.update({number: self._blocks[number].tobytes() for number in changed})
        return [[number, self._sent[number].hex()] for number in changed]


def _look_up(name: str) -> Any:
    """Return the number, handle, class of handles or function of MPI that has this name, if ranks may use it."""
    value = getattr(sys.modules["mpi4py.MPI"], name)
    if (
        isinstance(value, HANDLES)
        or name in FUNCTIONS
        or (isinstance(value, type) and issubclass(value, HANDLES))
    ):
        return value
    if type(value) in (int, constants._InPlace):
        return value
    raise AttributeError(f"MPI.{name} is not available here")


# -- where the function runs ----------------------------------------------------------------------------


def play_rank(load: Callable[[], Callable[..., Any]]) -> Callable[[list[Any]], Any]:
    """Return the function that answers the judge's questions in the process of a rank.

    Args:
        load: runs the student's program, which finds the stand-in for mpi4py, and returns the function.
    """
    player = _Player()
    stand_in = _StandIn(player)
    sys.modules.update({"mpi4py": stand_in.package, "mpi4py.MPI": stand_in})
    function = load()
    names = getattr(function, "__globals__", {})
    for name, value in list(names.items()):
        if isinstance(value, types.ModuleType) and value.__name__ in ("mpi4py", "mpi4py.MPI"):
            names[name] = sys.modules[value.__name__]  # imported before this process began
    player.function = function
    return player.serve


class _Player:
    """A runner of the function until its next call, which continues with the result of the call."""

    def __init__(self) -> None:
        self.function: Callable[..., Any] = len
        self._greenlet: Any = None
        self._switch: Callable[..., Any] | None = None
        self._blocks: list[list[Any]] = []

    def serve(self, question: list[Any]) -> Any:
        """Start with the judge's arguments or continue; return the next call, the result or the error."""
        if question[0] == "start":
            library = load_greenlet()
            self._blocks, judge = [], library.getcurrent()
            self._switch = judge.switch
            self._greenlet = library.greenlet(self._run, judge)
            return self._greenlet.switch(question[1])
        return self._greenlet.switch(question)

    def _run(self, arguments: list[Any]) -> list[Any]:
        try:
            value = self.function(*[self._decode(each) for each in arguments])
            return ["done", encode(value)]
        except SystemExit as error:
            code = error.code if error.code is not None else 0
            return ["raised", "SystemExit", str(code), *_innermost(error)]
        except MemoryError as error:
            return ["raised", "MemoryError", describe_mistake(error), *_innermost(error)]
        except Exception as error:
            name = "" if isinstance(error, MPIError) else type(error).__name__
            return ["raised", name, str(error), *_innermost(error)]

    def call(self, target: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """Let the judge make a call; raise what it raises."""
        special = partial(self._special, name[:1].isupper())
        positional = [encode(each, special=special) for each in args]
        named = [[key, encode(each, special=special)] for key, each in kwargs.items()]
        return self._exchange(target, name, positional, named)[0]

    def look_up(self, target: Any, name: str) -> Any:
        """Return an attribute of one of the judge's objects; of a method, what calls it."""
        value, is_method = self._exchange(target, name, None, None)
        return partial(self.call, target, name) if is_method else value

    def _exchange(self, target: Any, name: str, args: Any, kwargs: Any) -> tuple[Any, bool]:
        if self._switch is None:
            raise RuntimeError("MPI is used outside of the function: use it inside, on the ranks")
        changed = [[k, block[1].hex()] for k, block in enumerate(self._blocks) if self._has_changed(block)]
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename == __file__ and frame.f_back is not None:
            frame = frame.f_back
        kind, *facts = self._switch(
            ["call", target, name, args, kwargs, changed, frame.f_code.co_filename, frame.f_lineno]
        )
        if kind == "raise":
            raise _error(*facts)
        value, is_method, blocks = facts
        for number, data in blocks:
            _bytes_of(self._blocks[number][0])[:] = np.frombuffer(bytes.fromhex(data), np.uint8)
            self._blocks[number][1] = bytes.fromhex(data)
        return self._decode(value), is_method

    def _decode(self, data: Any) -> Any:
        return decode(data, {"handle": lambda number: RemoteObject(self, ["handle", [number]])})

    def _special(self, in_memory: bool, value: Any) -> Any:
        """Encode handles, and arrays of calls that read or fill memory (names with a capital letter)."""
        if type(value) is RemoteObject:
            return object.__getattribute__(value, "_target")
        if in_memory and isinstance(value, np.ndarray):
            return ["memory", self._place(value)]
        plain = (bool, int, float, str, tuple, list, set, frozenset, dict, np.ndarray)
        if not isinstance(value, plain) or (
            isinstance(value, np.ndarray) and value.dtype.kind not in ELEMENTS
        ):
            raise TypeError(
                f"numbers, texts, lists and arrays are sent here, not {Other(repr(value)[:MOST_WORDS])!r}"
            )
        return None

    def _place(self, array: np.ndarray) -> list[Any]:
        """Return where an array lies: the number of its block, the offset there, its shape, strides and element type."""
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        number = next((k for k, block in enumerate(self._blocks) if block[0] is root), len(self._blocks))
        if number == len(self._blocks):
            self._blocks.append([root, None])
        first = root.__array_interface__["data"][0]
        offset = array.__array_interface__["data"][0] - first
        return [number, offset, list(array.shape), list(array.strides), array.dtype.str]

    def _has_changed(self, block: list[Any]) -> bool:
        now = _bytes_of(block[0]).tobytes()
        changed, block[1] = bool(now != block[1]), now
        return changed


def _bytes_of(root: np.ndarray) -> np.ndarray:
    """Return the memory of an array that owns it."""
    flat = root.reshape(-1, order="A")
    if not np.shares_memory(flat, root) and root.size:
        raise InputError("an array in a message lies in one piece of memory: take a copy of it")
    return flat.view(np.uint8)


def _error(kind: str, text: str, reason: str) -> BaseException:
    """Return the error that a call raised at the judge's."""
    if kind == "MPI":
        return MPIError(text, reason)
    error_type = getattr(builtins, kind, None)
    is_error = isinstance(error_type, type) and issubclass(error_type, Exception)
    return error_type(text) if is_error and error_type is not None else RuntimeError(text)


def _innermost(error: BaseException) -> tuple[str, int]:
    """Return file and line of the innermost frame of the user's that an error passed."""
    place, trace = ("?", 1), error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename != __file__:
            place = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return place


class RemoteObject:
    """A proxy of one of the judge's objects: the judge looks attributes up and calls methods."""

    __slots__ = ("_player", "_target")

    def __init__(self, player: _Player, target: Any) -> None:
        object.__setattr__(self, "_player", player)
        object.__setattr__(self, "_target", target)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._player.look_up(self._target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} cannot be set here")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the object itself."""
        return self._player.call(self._target, "", *args, **kwargs)


class _StandIn(types.ModuleType):
    """The module that a rank imports as ``mpi4py.MPI``: it has the numbers, and the judge everything else."""

    def __init__(self, player: _Player) -> None:
        super().__init__("mpi4py.MPI")
        numbers = {
            key: value for key, value in vars(constants).items() if key.isupper() and type(value) is int
        }
        vars(self).update(numbers, **constants.ERROR_CODES, Exception=MPIError, _player=player)
        self.package = types.ModuleType("mpi4py")
        vars(self.package).update(MPI=self, __path__=[])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return RemoteObject(vars(self)["_player"], ["path", [name]])
