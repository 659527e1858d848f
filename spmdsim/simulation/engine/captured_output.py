"""Replace a rank's standard streams and ``os._exit`` while the program runs."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from threading import get_ident
from typing import Any, NoReturn, TextIO

from spmdsim.simulation.engine.scheduler import Scheduler
from spmdsim.simulation.findings.problems import ERROR, Problem, place_in_stack


class _LineBuffer(io.BufferedIOBase):
    """A binary stream that collects one rank's bytes and passes on complete lines of text.

    Args:
        rank: the rank.
        emit: function that is called with (rank, line); the line has no line end.
        original: the process's own stream.
    """

    def __init__(self, rank: int, emit: Callable[[int, str], None], original: TextIO) -> None:
        self._rank = rank
        self._emit = emit
        self._original = original
        self._unfinished = b""

    def write(self, data: Any) -> int:
        """Add the bytes of ``data`` and pass on the complete lines; return the number of bytes.

        Bytes after the last line end are stored until the line is complete.
        """
        content = bytes(data)
        *lines, self._unfinished = (self._unfinished + content).split(b"\n")
        for line in lines:
            self._emit(self._rank, line.decode("utf-8", "replace"))
        return len(content)

    def pass_on_rest(self) -> None:
        """Pass on the bytes after the last line end, if there are any."""
        if self._unfinished:
            self.write(b"\n")

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the file descriptor of the process's own stream."""
        return self._original.fileno()


class RankStreams:
    """The standard output and input of each rank.

    Args:
        emit: function that is called with (rank, line) for each printed line, without its line end.
    """

    def __init__(self, emit: Callable[[int, str], None]) -> None:
        self._emit = emit
        self._original = sys.stdout
        self._input = sys.stdin
        self._no_input = io.TextIOWrapper(io.BytesIO())
        self._outputs: dict[int, tuple[TextIO, _LineBuffer]] = {}

    def open_output(self, rank: int) -> TextIO:
        """Return a new text stream that passes on the lines that a rank prints."""
        buffer: Any = _LineBuffer(rank, self._emit, self._original)
        stream: TextIO = io.TextIOWrapper(buffer, "utf-8", "replace", newline="\n", line_buffering=True)
        self._outputs[rank] = stream, buffer
        return stream

    def input_of(self, rank: int) -> TextIO | None:
        """Return the process's standard input for rank 0, and an empty one for the others, as launchers do."""
        return self._input if rank == 0 else self._no_input

    def close_lines(self) -> None:
        """Pass on the text of all ranks that has no line end, in rank order."""
        for _, (stream, buffer) in sorted(self._outputs.items()):
            with suppress(ValueError):  # the program may have closed or detached it
                stream.flush()
            buffer.pass_on_rest()


@contextmanager
def replace_attribute(module: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of a module inside a ``with`` block; restore it afterwards. Yields None.

    Args:
        module: the module or object.
        name: name of the attribute.
        value: its value inside the block.

    Raises:
        AttributeError: If the module has no such attribute.
    """
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)


def replace_exit(scheduler: Scheduler) -> AbstractContextManager[None]:
    """Return a context in which ``os._exit`` in a rank ends the simulation with an error.

    The kind of the error is "exit", because a process must not end before MPI_Finalize. The rank's exit code is the
    status of the call, but 1 for ``os._exit(0)``. In other threads, and in processes that the program forks,
    ``os._exit`` ends the process as usual. The context yields None, and restores ``os._exit`` at its end.

    Args:
        scheduler: the simulation.
    """
    original, process = os._exit, os.getpid()

    def end_simulation(status: int) -> NoReturn:
        """End the simulation with a finding; in other processes and threads, end the process."""
        if os.getpid() != process or get_ident() != scheduler.thread:
            original(status)
        task = scheduler.current.task
        location = replace(place_in_stack(task.rank, sys._getframe(1)), call="os._exit")
        text = (
            f"rank {task.rank} ends its process with os._exit({status}) at {location.where}: MPI was not finalized, so a "
            "launcher ends the job, or the other ranks wait forever"
        )
        task.exit_code = status or 1
        scheduler.fail(Problem("exit", ERROR, text, (task.rank,), (location,)))

    return replace_attribute(os, "_exit", end_simulation)
