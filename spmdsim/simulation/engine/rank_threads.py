"""Threads of a rank: the modules that a rank imports as ``_thread`` and ``select``.

Each rank loads its own ``threading``, ``queue`` and ``concurrent.futures``, and they use ``_thread``. A thread is a
greenlet, like the rank itself. It runs until it must wait: for MPI, a lock, the end of another thread, or a sleep.
So threads see the modules and the environment of their rank, and a run is deterministic.
"""

from __future__ import annotations

import _thread
import select
import sys
import types
from collections import deque
from collections.abc import Callable
from typing import Any

from spmdsim.simulation.engine.scheduler import RankThread, Scheduler, current_scheduler, load_greenlet

#: Seconds of the process for which a thread waits for a file at once, if no rank can continue.
FILE_WAIT = 0.1


class ThreadWait:
    """The wait of a thread for another thread of its rank, or for a time.

    Args:
        thread: the waiting thread.
        name: what it does, such as "acquire".

    Attributes:
        done: True if the wait is over.
        timed_out: True if it is over because its time has passed.
    """

    comm, dest = None, -1  # as operations of MPI have them

    def __init__(self, thread: RankThread, name: str) -> None:
        self.thread, self.name = thread, name
        self.task = thread.task
        self.waiter: Any = thread
        self.is_timed = self.done = self.timed_out = False

    def end(self, clock: float, timed_out: bool = False) -> None:
        """End the wait at a modelled time in seconds; the caller makes the thread ready."""
        self.done, self.timed_out = True, timed_out
        self.thread.resumes_at = max(self.thread.resumes_at, clock)


class RankLock:
    """A lock between the threads of one rank, with the methods of ``threading.Lock``."""

    def __init__(self) -> None:
        self._is_locked = False
        self._waits: deque[ThreadWait] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Lock, and wait while another thread has the lock; return True if this call locked it.

        Args:
            blocking: False: the other threads run once if the lock is taken; do not wait longer.
            timeout: limit of the wait in modelled seconds; -1 for no limit.

        Raises:
            OverflowError: If the timeout is longer than ``threading.TIMEOUT_MAX``.
            ValueError: If the timeout is negative but not -1, or given without ``blocking``.
        """
        if timeout != -1 and not blocking:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if timeout < 0 and timeout != -1:
            raise ValueError("timeout value must be a non-negative number")
        if timeout > _thread.TIMEOUT_MAX:
            raise OverflowError("timeout value is too large")
        scheduler = current_scheduler()
        if self._is_locked and scheduler is not None:  # without simulation there is no other thread
            if blocking and timeout != 0:
                return self._wait(scheduler, timeout)
            scheduler.poll(ThreadWait(scheduler.current, "acquire"))
            if self._is_locked:
                return False
        self._is_locked = True
        return True

    def _wait(self, scheduler: Scheduler, timeout: float) -> bool:
        """Block until another thread gives the lock to this one; return False if the time is over before.

        Args:
            scheduler: the simulation.
            timeout: modelled seconds; -1 for no limit.
        """
        wait = ThreadWait(scheduler.current, "acquire")
        self._waits.append(wait)
        if timeout != -1:
            scheduler.set_timer(wait, timeout)
        scheduler.block(wait)
        if wait.timed_out:
            self._waits.remove(wait)
        return not wait.timed_out

    def release(self) -> None:
        """Unlock, and give the lock to the thread that waits longest; raise RuntimeError if it is not locked."""
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        wait = next((wait for wait in self._waits if not wait.done), None)
        scheduler = current_scheduler()
        if wait is None or scheduler is None:
            self._is_locked = False
            return
        self._waits.remove(wait)
        wait.end(scheduler.current.task.clock)
        scheduler.wake(wait.thread)

    def locked(self) -> bool:
        """Return True if a thread has the lock."""
        return self._is_locked

    _is_owned = locked  # so that ``threading.Condition`` need not try to lock it

    def _at_fork_reinit(self) -> None:
        """Unlock in a child process, which has one thread."""
        self._is_locked = False
        self._waits.clear()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<{'locked' if self._is_locked else 'unlocked'} lock of a virtual rank>"


class ThreadLocal:
    """Attributes of which each thread of a rank has its own, as ``threading.local`` has them.

    In each thread that uses it, ``__init__`` of a subclass is called once with the arguments of the first call.
    """

    __slots__ = ("__dict__", "__weakref__", "_by_thread", "_start")

    def __new__(cls, /, *args: Any, **kwargs: Any) -> Any:
        """Create an object without attributes; keep the arguments for other threads."""
        if (args or kwargs) and cls.__init__ is object.__init__:
            raise TypeError("Initialization arguments are not supported")
        self = object.__new__(cls)
        object.__setattr__(self, "_by_thread", {_find_thread(): object.__getattribute__(self, "__dict__")})
        object.__setattr__(self, "_start", (args, kwargs))
        return self

    def __getattribute__(self, name: str) -> Any:
        _select_attributes(self)
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _select_attributes(self)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        _select_attributes(self)
        object.__delattr__(self, name)


def _select_attributes(local: ThreadLocal) -> None:
    """Give an object of thread-local attributes those of the running thread.

    For a new thread, call ``__init__`` of the object.
    """
    by_thread, thread = object.__getattribute__(local, "_by_thread"), _find_thread()
    is_new = thread not in by_thread
    object.__setattr__(local, "__dict__", by_thread.setdefault(thread, {}))
    if is_new:
        args, kwargs = object.__getattribute__(local, "_start")
        type(local).__init__(local, *args, **kwargs)


class ThreadHandle:
    """A thread that can be joined, as ``threading`` of Python 3.13 uses it."""

    def __init__(self) -> None:
        self.ident: int | None = None
        self._running = RankLock()

    def is_done(self) -> bool:
        """Return True if the thread has ended."""
        return self.ident is not None and not self._running.locked()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the thread.

        Args:
            timeout: limit in modelled seconds; None and numbers below 0 set no limit.
        """
        limit = -1 if timeout is None or timeout < 0 else timeout
        if self._running.acquire(timeout=limit):
            self._running.release()

    def _set_done(self) -> None:
        """Mark the thread as ended."""
        if self._running.locked():
            self._running.release()


def _scheduler() -> Scheduler:
    """Return the running simulation; raise RuntimeError if there is none."""
    scheduler = current_scheduler()
    if scheduler is None:
        raise RuntimeError("can't start new thread: the simulation has ended")
    return scheduler


def start_new_thread(function: Callable[..., object], args: Any, kwargs: Any = None) -> int:
    """Start a thread of the running rank; return its number.

    Args:
        function: its function.
        args: positional arguments of the function.
        kwargs: keyword arguments; None for none.
    """
    owner = getattr(function, "__self__", None)  # the Thread of threading
    name = getattr(owner, "name", None) or getattr(function, "__name__", "a thread")
    thread = _scheduler().start_thread(lambda: _run(function, args, kwargs or {}), str(name))
    return id(thread)


def start_joinable_thread(
    function: Callable[[], object], handle: ThreadHandle | None = None, daemon: bool = True
) -> ThreadHandle:
    """Start a thread of the running rank; return its handle.

    Args:
        function: its function.
        handle: the handle; None for a new one.
        daemon: False: the rank waits for the thread at its end.
    """
    handle = handle or ThreadHandle()
    handle._running.acquire()
    if not daemon:
        _scheduler().current.task.joined_at_end.append(handle)

    def run() -> None:
        try:
            function()
        finally:
            handle._set_done()

    owner = getattr(function, "__self__", None)
    handle.ident = id(
        _scheduler().start_thread(lambda: _run(run, (), {}), str(getattr(owner, "name", "a thread")))
    )
    return handle


def _run(function: Callable[..., object], args: Any, kwargs: Any) -> None:
    """Run the function of a thread; show its exception, and release the lock of its end.

    Args:
        function: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    scheduler = _scheduler()
    thread = scheduler.current
    try:
        function(*args, **kwargs)
    except (SystemExit, scheduler.exit):
        pass
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        if thread.end_lock is not None and thread.end_lock.locked():
            thread.end_lock.release()


def _find_thread() -> RankThread | int:
    """Return the running thread of a rank, or the number of another thread of the process."""
    scheduler = current_scheduler()
    is_foreign = scheduler is None or _thread.get_ident() != scheduler.thread
    return _thread.get_ident() if is_foreign else scheduler.current  # type: ignore[union-attr]


def get_ident() -> int:
    """Return the number of the running thread, which is unique among all threads of all ranks."""
    thread = _find_thread()
    return thread if isinstance(thread, int) else id(thread)


def _set_sentinel() -> RankLock:
    """Return a new lock that is released when the running thread ends (Python 3.12 and older)."""
    lock = _scheduler().current.end_lock = RankLock()
    return lock


def _make_thread_handle(ident: int) -> ThreadHandle:
    """Return a handle of a running thread that ``start_joinable_thread`` did not start."""
    handle = ThreadHandle()
    handle.ident = ident
    handle._running.acquire()
    return handle


def _get_main_thread_ident() -> int:
    """Return the number of the rank's first thread."""
    return id(_scheduler().current.task)


def _shutdown() -> None:
    """Wait for the threads of the rank that are no daemons (Python 3.13 and newer)."""
    handles = _scheduler().current.task.joined_at_end
    while handles:
        handles.pop().join()


def _excepthook(args: Any) -> None:
    """Show an exception that ended a thread, but not the one with which the simulator ends threads."""
    if not issubclass(args.exc_type, load_greenlet().GreenletExit):
        _thread._excepthook(args)


def make_thread_module() -> types.ModuleType:
    """Return the module ``_thread`` of ranks.

    It lacks the class ``RLock``, because Python's own version of it in ``threading`` uses the functions of this module.
    """
    module = types.ModuleType("_thread", "Threads of virtual ranks.")
    functions: list[Callable[..., Any]] = [start_new_thread, get_ident, _excepthook]
    if hasattr(_thread, "start_joinable_thread"):
        functions += [start_joinable_thread, _make_thread_handle, _get_main_thread_ident, _shutdown]
    if hasattr(_thread, "_set_sentinel"):
        functions.append(_set_sentinel)
    replaced = {function.__name__: function for function in functions}
    locks = dict.fromkeys(("allocate_lock", "allocate", "LockType", "lock"), RankLock)
    original_names = {
        name: value
        for name, value in vars(_thread).items()
        if name not in ("RLock", "_local", "__spec__", "__loader__")
    }
    vars(module).update(
        original_names | replaced | {name: lock for name, lock in locks.items() if hasattr(_thread, name)}
    )
    vars(module).update(start_new=start_new_thread, _local=ThreadLocal, _ThreadHandle=ThreadHandle)
    return module


def _select(
    rlist: Any, wlist: Any, xlist: Any, timeout: float | None = None
) -> tuple[list[Any], list[Any], list[Any]]:
    """Wait for files as ``select.select`` does; other threads of the rank run meanwhile.

    If no thread of any rank can continue, the process itself waits, in steps of :data:`FILE_WAIT` (0.1 s).

    Args:
        rlist: files to read, or their file descriptors.
        wlist: files to write.
        xlist: files with exceptional conditions.
        timeout: limit in modelled seconds; None for no limit. If the rank has one thread only, the process waits as long.
    """
    scheduler = current_scheduler()
    if scheduler is None or get_ident() != id(scheduler.current):
        return select.select(rlist, wlist, xlist, timeout)
    if not scheduler.current.task.threads:
        ready_files = select.select(rlist, wlist, xlist, timeout)
        if timeout and not any(ready_files):
            scheduler.current.task.advance(timeout)  # else an event loop would wait for the same time again
        return ready_files
    wait = ThreadWait(scheduler.current, "select")
    if timeout:
        scheduler.set_timer(wait, timeout)
    ready_files = select.select(rlist, wlist, xlist, 0)
    while not any(ready_files) and not wait.timed_out:
        scheduler.poll(wait)
        is_idle = not scheduler.ready and not scheduler.timers
        ready_files = select.select(rlist, wlist, xlist, FILE_WAIT if is_idle else 0)
        if timeout == 0:
            break
    wait.done = True
    return ready_files


def make_select_module() -> types.ModuleType:
    """Return the module ``select`` of ranks: only its function ``select``, which ``selectors`` then uses."""
    module = types.ModuleType("select", "Waits for files, while other threads of a virtual rank run.")
    # ``selectors`` makes the function an attribute of a class, which must not bind it.
    vars(module).update(select=staticmethod(_select), error=OSError)
    return module
