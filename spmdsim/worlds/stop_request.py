"""A request that the program stops early, by a signal that a batch system sends before the time limit.

Ranks receive a signal at different times, or only some of them receive it. They agree in
:meth:`StopRequest.is_set`, so all ranks stop after the same step.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

from spmdsim.errors import InputError, UsageTypeError, WorldError
from spmdsim.pictured import Pictured
from spmdsim.worlds.base import World
from spmdsim.worlds.current import world as current_world
from spmdsim.wrong_calls import explained

#: Signals that ask a program to stop: batch systems, launchers and ``kill`` send them. Windows has no SIGUSR1.
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
#: Signals for which the system accepts no handler.
_UNHANDLED = {getattr(signal, name) for name in ("SIGKILL", "SIGSTOP") if hasattr(signal, name)}


@explained
class StopRequest(Pictured):
    """A request to stop, which a signal or a rank makes and on which all ranks agree.

    Inside of a ``with`` block, the signals set the request instead of ending the program. The block must be entered in
    the main thread. At its end the earlier handlers come back.

    ::

        with spmdsim.StopRequest() as stop:
            for step in range(first, steps):
                train(step)
                if stop.is_set():
                    save(step)
                    break

    Args:
        signals: the signals that set the request; SIGTERM and SIGUSR1 by default, where the system has them.
        world: the world whose ranks agree; at each call the current world (``spmdsim.world()``) by default.

    Raises:
        UsageTypeError: If ``signals`` is one number instead of several.
        InputError: If ``signals`` has a number of no signal, or a signal without handlers (SIGKILL, SIGSTOP).

    >>> import signal
    >>> with StopRequest() as stop:
    ...     for step in range(10):
    ...         if step == 3:
    ...             signal.raise_signal(signal.SIGTERM)
    ...         if stop.is_set():
    ...             break
    >>> step
    3
    """

    def __init__(self, signals: Iterable[int] = STOP_SIGNALS, world: World | None = None) -> None:
        self.signals = _require_signals(signals)
        self.world = world
        self._is_set = False
        self._is_agreed = False
        self._earlier_handlers: dict[int, Any] = {}

    def __repr__(self) -> str:
        """Return the signals, and "set" if this rank has the request, else "not set"."""
        names = {int(number): number.name for number in signal.Signals}  # real-time signals have none
        signals = ", ".join(names.get(number, str(number)) for number in self.signals)
        return f"StopRequest({signals}; {'set' if self._is_set or self._is_agreed else 'not set'})"

    def __enter__(self) -> StopRequest:
        """Set the handlers, and return this request.

        Raises:
            WorldError: If this is not the main thread: Python sets handlers in the main thread only.
        """
        thread = threading.current_thread()
        if thread is not threading.main_thread():
            raise WorldError(
                f"StopRequest: the with block must be entered in the main thread, got thread {thread.name!r}; "
                "enter it in the main thread, and pass the StopRequest to the thread"
            )
        for number in self.signals:
            self._earlier_handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Set the earlier handlers again."""
        for number, handler in self._earlier_handlers.items():
            # A handler of None was set by a program in C: Python cannot set it again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._earlier_handlers.clear()

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        """Set the request; the handler of the signals."""
        self.set()

    def set(self) -> None:
        """Set the request on this rank, as a signal does; the other ranks see it in the next :meth:`is_set`.

        >>> stop = StopRequest()
        >>> stop.set()
        >>> stop.is_set()
        True
        """
        self._is_set = True

    def is_set(self) -> bool:
        """Return True if a rank has the request; all ranks get one answer.

        All ranks of the world must call it. Each call until the first True is one all_reduce of two integers (16 bytes)
        over the world; later calls send nothing. A process that plays all ranks sends nothing. If steps take less than
        some milliseconds, call it in every tenth step: ``if step % 10 == 0 and stop.is_set():``.

        Raises:
            DisagreementError: If some ranks make other calls or do not come before the deadline.

        >>> StopRequest().is_set()
        False
        """
        if not self._is_agreed:
            is_set = self._is_set  # The signal may come during the comparison: then the next call sees it.
            world = current_world() if self.world is None else self.world
            # If ranks have different answers, some rank has the request.
            are_equal = world.equal_on(range(world.size), int(is_set), "StopRequest.is_set")
            self._is_agreed = is_set or not are_equal
        return self._is_agreed


def _require_signals(signals: Iterable[int]) -> tuple[int, ...]:
    """Return the signals as a tuple.

    Raises:
        UsageTypeError: If ``signals`` is one number.
        InputError: If one of them is no signal, or can have no handler.
    """
    if isinstance(signals, int):
        raise UsageTypeError(
            f"StopRequest: signals must be a list of signals, got {signals!r}; write [signal.SIGTERM]"
        )
    numbers = tuple(signals)
    for number in numbers:
        if number not in signal.valid_signals() or number in _UNHANDLED:
            name = signal.Signals(number).name if number in _UNHANDLED else repr(number)
            raise InputError(
                f"StopRequest: signals must be signals that can have a handler, got {name}; "
                "use signal.SIGTERM or signal.SIGUSR1"
            )
    return numbers
