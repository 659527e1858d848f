"""Run a student's per-rank function, each rank in its own process, with its MPI calls made by the judging process.

The processes have no mpi4py. They import a stand-in whose calls travel to the judge (the judging process) as plain
data. The judge makes the calls in its simulation, at the source line of the function, and sends back the results. So
the judge owns all messages and their order, and a rank knows of other ranks only through messages.

Arrays that calls read or fill are in blocks of memory. The judge has a copy of each block. Both sides send the
changed blocks with every call, so that the copies are equal whenever the judge reads them.
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

#: Largest number of bytes of all arrays that a rank's calls read or fill, and of characters of texts.
MOST_BYTES, MOST_WORDS = 1 << 22, 300
#: Classes of the judge's objects that a rank may use.
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
    """A student's per-rank function that runs in one process per rank; call it on a rank of a simulation.

    Args:
        processes: for each rank, the function that asks its process.
    """

    def __init__(self, processes: Sequence[Callable[..., Any]]) -> None:
        self._processes = processes

    def __call__(self, comm: Any, *arguments: Any) -> Any:
        """Call the function on this rank; return its result, read as plain data.

        An error of the function is raised again at its line in the user's file. NoAnswer is raised if the process
        writes invalid data.
        """
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
        _place_at_line(file, line, _raise_error)(_build_error(str(name)[:MOST_WORDS], str(text)[:MOST_WORDS]))
        return None


def _build_error(name: str, text: str) -> BaseException:
    """Return an error with the type name and text that the function raised."""
    if name == "SystemExit":
        return SystemExit(int(text) if text.isdecimal() else text)
    error: BaseException = type(name, (Exception,), {})(text)
    return error


# The body of these two functions is one line below the `def`, as `_place_at_line` assumes. So they have no docstrings.
def _call_function(function: Any, args: Any, keywords: Any) -> Any:
    return function(*args, **keywords)


def _raise_error(error: Any) -> Any:
    raise error


def _place_at_line(file: Any, line: Any, function: Any) -> Callable[..., Any]:
    """Return a copy of a function that tracebacks show at a line of the user's file.

    ``function`` is ``_call_function`` or ``_raise_error``.
    """
    name, number = str(file)[:MOST_WORDS], min(max(int(line), 1), 1 << 20)
    code = function.__code__.replace(co_filename=name, co_firstlineno=number - 1)
    return types.FunctionType(code, {})


class _JudgeObjects:
    """The judge's objects and arrays that a rank uses by number, for one call of the function."""

    def __init__(self) -> None:
        self._objects: list[Any] = []
        self._blocks: dict[int, np.ndarray] = {}
        self._sent: dict[int, bytes] = {}

    def encode(self, value: Any) -> Any:
        """Store a handle or a function and return ``["handle", [number]]``; return None for other values."""
        if isinstance(value, (HANDLES, types.FunctionType)):
            self._objects.append(value)
            return ["handle", [len(self._objects) - 1]]
        return None

    def answer(
        self, target: Any, name: str, args: Any, kwargs: Any, blocks: Any, file: str, line: int
    ) -> list[Any]:
        """Make a call that the student's rank asks for, or look up an attribute; return the reply.

        The rank runs in another process, and its MPI objects live here. A call may wait for other ranks of the simulation.
        Errors become replies. Attributes that begin with "_" are not available.

        Args:
            target: the object: ``["handle", [number]]`` for one that the rank got, ``["path", [name in MPI]]`` for one of the
                module MPI, such as ``["path", ["SUM"]]``.
            name: name of the method or attribute; empty to call the object itself.
            args: encoded arguments; None to look up an attribute.
            kwargs: encoded keyword arguments as pairs of name and value; not used if ``args`` is None.
            blocks: new and changed blocks of the rank's memory, as pairs of number and bytes in hexadecimal digits.
            file: file of the user's line that makes the call.
            line: number of the line.

        Returns:
            ``["return", value, is_method, changed blocks]``. A looked up method has value None and ``is_method`` True, and
            the rank calls it by its name. For an error ``["raise", type, text, reason]``.
        """
        try:
            for number, data in blocks:
                self._store_block(number, bytes.fromhex(data))
            decoders: dict[str, Callable[..., Any]] = {
                "handle": self._objects.__getitem__,
                "path": _look_up,
                "memory": self._view_block,
            }
            subject = decode(target, decoders)
            if name.startswith("_") or (name and isinstance(subject, types.FunctionType)):
                raise AttributeError(f"{name} is not available here")
            value = getattr(subject, name) if name else subject
            if args is None:
                if callable(value) and not isinstance(value, HANDLES):  # a method
                    return ["return", None, True, []]
                return ["return", self._encode_result(value), False, []]
            positional = [decode(item, decoders) for item in args]
            keywords = {str(key): decode(item, decoders) for key, item in kwargs}
            value = self._encode_result(
                _place_at_line(file, line, _call_function)(value, positional, keywords)
            )
        except MPIError as error:
            return ["raise", "MPI", error.error_name, error.reason]
        except Exception as error:
            return ["raise", type(error).__name__, str(error)[:MOST_WORDS], ""]
        return ["return", value, False, self._take_changed()]

    def _encode_result(self, value: Any) -> Any:
        """Encode the result of a call; raise AttributeError if it is neither plain data nor a handle."""
        data = encode(value, special=self.encode)
        if isinstance(data, list) and data[0] == "other":
            raise AttributeError(f"{type(value).__name__} is not available here")
        return data

    def _store_block(self, number: int, data: bytes) -> None:
        """Store the bytes that a block of the player's memory has now; the block may be new.

        Remember them also as the bytes that the player has. Later only blocks that differ from them are sent back.
        """
        if number not in self._blocks:
            if len(data) + sum(block.nbytes for block in self._blocks.values()) > MOST_BYTES:
                raise InputError(
                    f"arrays in messages must have at most {MOST_BYTES:,} bytes together in a lab"
                )
            self._blocks[number] = np.zeros(len(data), np.uint8)
        self._blocks[number][:] = np.frombuffer(data, np.uint8)
        self._sent[number] = data

    def _view_block(
        self, number: int, offset: int, shape: list[int], strides: list[int], dtype: str
    ) -> np.ndarray:
        """Return an array in the memory of block ``number``."""
        kind = np.dtype(dtype)
        if kind.kind not in f"{ELEMENTS}c":
            raise ValueError(f"an array of {dtype}")
        return np.ndarray(tuple(shape), kind, self._blocks[number].data, offset, tuple(strides))

    def _take_changed(self) -> list[Any]:
        """Return the blocks that changed since they were sent, as number and hexadecimal digits."""
        changed = [number for number, block in self._blocks.items() if block.tobytes() != self._sent[number]]
        self._sent.update({number: self._blocks[number].tobytes() for number in changed})
        return [[number, self._sent[number].hex()] for number in changed]


def _look_up(name: str) -> Any:
    """Return the value of a name of MPI that ranks may use, such as ``SUM`` or ``Wtime``.

    Integers, ``IN_PLACE``, handles, classes of handles and :data:`FUNCTIONS` are allowed.
    """
    value = getattr(sys.modules["mpi4py.MPI"], name)
    is_handle = isinstance(value, HANDLES) or (isinstance(value, type) and issubclass(value, HANDLES))
    if is_handle or name in FUNCTIONS or type(value) in (int, constants.InPlaceType):
        return value
    raise AttributeError(f"MPI.{name} is not available here")


# -- where the function runs ----------------------------------------------------------------------------


def play_rank(load: Callable[[], Callable[..., Any]]) -> Callable[[list[Any]], Any]:
    """Run a student's program in a rank's process; return a function that answers questions.

    The judge asks the questions; see :meth:`_Player.serve`. From now on imports of mpi4py give a stand-in in this
    process, and the program's names for mpi4py are replaced by it. Errors of the program are not caught.

    Args:
        load: function that runs the student's program and returns the function of the task.
    """
    player = _Player()
    stand_in = _StandIn(player)
    sys.modules.update({"mpi4py": stand_in.package, "mpi4py.MPI": stand_in})
    function = load()
    names = getattr(function, "__globals__", {})
    for name, value in list(names.items()):
        if isinstance(value, types.ModuleType) and value.__name__ in ("mpi4py", "mpi4py.MPI"):
            names[name] = sys.modules[value.__name__]  # imported before this process started
    player.function = function
    return player.serve


class _Player:
    """A runner of the student's function, which stops at each MPI call and continues with its result."""

    def __init__(self) -> None:
        self.function: Callable[..., Any] = len
        self._greenlet: Any = None
        self._switch: Callable[..., Any] | None = None
        self._blocks: list[list[Any]] = []

    def serve(self, question: list[Any]) -> Any:
        """Start the function with the judge's arguments, or continue it with the result of a call.

        It then runs to its next call of MPI, or to its end. A start drops a function that still waits, and its blocks
        of memory.

        Args:
            question: ``["start", encoded arguments]``, or a reply of :meth:`_JudgeObjects.answer`.

        Returns:
            The next call as ``["call", …]`` with the arguments of :meth:`_JudgeObjects.answer`, or the end of the
            function as :meth:`_run` returns it.
        """
        if question[0] == "start":
            library = load_greenlet()
            self._blocks, judge = [], library.getcurrent()
            self._switch = judge.switch
            self._greenlet = library.greenlet(self._run, judge)
            return self._greenlet.switch(question[1])
        return self._greenlet.switch(question)

    def _run(self, arguments: list[Any]) -> list[Any]:
        """Run the student's function to its end, and return the encoded result, or its error.

        Args:
            arguments: the encoded arguments; the first one is the communicator.

        Returns:
            ``["done", encoded result]``, or ``["raised", type, text, file, line]`` with the name of the error's class and the
            user's line. The name is "" for an error of MPI. ``SystemExit`` counts as raised; its text is the exit code.
        """
        try:
            value = self.function(*[self._decode(argument) for argument in arguments])
            return ["done", encode(value)]
        except SystemExit as error:
            code = error.code if error.code is not None else 0
            return ["raised", "SystemExit", str(code), *_innermost_place(error)]
        except MemoryError as error:
            return ["raised", "MemoryError", describe_mistake(error), *_innermost_place(error)]
        except Exception as error:
            name = "" if isinstance(error, MPIError) else type(error).__name__
            return ["raised", name, str(error), *_innermost_place(error)]

    def call(self, target: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """Let the judge make a call; return its result or raise its error."""
        special = partial(self._encode_special, name[:1].isupper())
        positional = [encode(each, special=special) for each in args]
        named = [[key, encode(each, special=special)] for key, each in kwargs.items()]
        return self._exchange(target, name, positional, named)[0]

    def look_up(self, target: Any, name: str) -> Any:
        """Return an attribute of one of the judge's objects; a method becomes a function that calls it."""
        value, is_method = self._exchange(target, name, None, None)
        return partial(self.call, target, name) if is_method else value

    def _exchange(self, target: Any, name: str, args: Any, kwargs: Any) -> tuple[Any, bool]:
        """Ask the judging process to call a method or to look up an attribute; return its result.

        MPI runs in the judging process. The arrays that a call reads or fills exist in both processes as blocks of memory.
        The question has all blocks that changed since the last question, and the file and line of the student's call. The
        reply has the blocks that the call changed, which are copied into the arrays of this process.

        Args:
            target: the object, ``["handle", [number]]`` or ``["path", [name in MPI]]``.
            name: name of the method or attribute; empty to call the object itself.
            args: encoded arguments; None to look up an attribute.
            kwargs: encoded keyword arguments as pairs of name and value; None with ``args``.

        Returns:
            ``(result, is_method)``; ``is_method`` is True if an attribute was looked up and is a method.

        Raises:
            RuntimeError: If no function runs, because a program uses MPI outside of it.
            InputError: If an array is not contiguous in memory.
            Exception: The error that the call raised in the judging process.
        """
        if self._switch is None:
            raise RuntimeError("MPI must be used inside of the function; it has no ranks outside")
        changed = [[k, block[1].hex()] for k, block in enumerate(self._blocks) if self._has_changed(block)]
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename == __file__ and frame.f_back is not None:
            frame = frame.f_back
        kind, *facts = self._switch(
            ["call", target, name, args, kwargs, changed, frame.f_code.co_filename, frame.f_lineno]
        )
        if kind == "raise":
            raise _remote_error(*facts)
        value, is_method, blocks = facts
        for number, data in blocks:
            _memory_bytes(self._blocks[number][0])[:] = np.frombuffer(bytes.fromhex(data), np.uint8)
            self._blocks[number][1] = bytes.fromhex(data)
        return self._decode(value), is_method

    def _decode(self, data: Any) -> Any:
        """Decode a value; handles become proxies of the judge's objects."""
        return decode(data, {"handle": lambda number: RemoteObject(self, ["handle", [number]])})

    def _encode_special(self, in_memory: bool, value: Any) -> Any:
        """Encode an argument that is not plain data: a handle, or an array that a call reads or fills.

        - An object of the judging process (a handle) becomes its ``["handle", [number]]`` or ``["path", [name]]``.
        - An array becomes ``["memory", position]`` if ``in_memory``.
        - For plain data (numbers, texts, lists, other arrays) the result is None; :func:`encode` encodes it then.

        Args:
            in_memory: True for a call whose name starts with a capital letter, such as ``Send``.
            value: the argument.

        Raises:
            TypeError: If the value is none of these.
        """
        if type(value) is RemoteObject:
            return object.__getattribute__(value, "_target")
        if in_memory and isinstance(value, np.ndarray):
            return ["memory", self._locate(value)]
        plain = (bool, int, float, str, tuple, list, set, frozenset, dict, np.ndarray)
        if not isinstance(value, plain) or (
            isinstance(value, np.ndarray) and value.dtype.kind not in ELEMENTS
        ):
            raise TypeError(
                f"a message must be numbers, texts, lists or arrays, got {Other(repr(value)[:MOST_WORDS])!r}"
            )
        return None

    def _locate(self, array: np.ndarray) -> list[Any]:
        """Return an array's position: number of its block, offset, shape, strides, element type.

        The block is the array that owns the memory; a new one is appended to the blocks. Offset and strides are in
        bytes. The element type is NumPy's short text, such as "<f8".
        """
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
        """Return True if a block differs from its last state; store its state."""
        contents = _memory_bytes(block[0]).tobytes()
        changed, block[1] = bool(contents != block[1]), contents
        return changed


def _memory_bytes(root: np.ndarray) -> np.ndarray:
    """Return the memory of an array as bytes; the array must own its memory."""
    flat = root.reshape(-1, order="A")
    if not np.shares_memory(flat, root) and root.size:
        raise InputError("an array in a message must be contiguous in memory; send a copy")
    return flat.view(np.uint8)


def _remote_error(kind: str, text: str, reason: str) -> BaseException:
    """Return the error that a call raised in the judging process, to raise it again in this one.

    Args:
        kind: name of its type, such as "ValueError", or "MPI" for an MPIError. A type that is no built-in exception
            becomes RuntimeError.
        text: its text, or the name of the error of MPI.
        reason: the reason of an error of MPI; not used for other types.
    """
    if kind == "MPI":
        return MPIError(text, reason)
    error_type = getattr(builtins, kind, None)
    is_error = isinstance(error_type, type) and issubclass(error_type, Exception)
    return error_type(text) if is_error and error_type is not None else RuntimeError(text)


def _innermost_place(error: BaseException) -> tuple[str, int]:
    """Return ``(file, line)`` of the innermost user's frame in the traceback of an error.

    Frames of this file are not the user's; frames of libraries count as the user's. Without a frame return ``("?",
    1)``.
    """
    location, trace = ("?", 1), error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename != __file__:
            location = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return location


class RemoteObject:
    """A proxy of one of the judge's objects; the judge looks up its attributes and calls its methods."""

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
    """The module that a rank imports as ``mpi4py.MPI``: it has the constants.

    The judge has all other names.
    """

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
