"""Give each rank the parts of a process that the operating system has: folder, environment, locale, exit functions."""

from __future__ import annotations

import atexit
import gc
import locale
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from spmdsim.errors import working_folder

_ALL_CATEGORIES = locale.LC_ALL
_ExitFunction = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class _RankEnvironment(MutableMapping[Any, Any]):
    """The environment variables of the running rank.

    Each access looks the rank up, because ranks switch at every message.
    """

    def __init__(self, process: Process) -> None:
        self._process = process

    def _variables(self) -> dict[Any, Any]:
        """Return the variables of the running rank."""
        return self._process.environments[self._process.rank]

    def __getitem__(self, key: Any) -> Any:
        return self._variables()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._process.changed_variables.add(key)
        self._variables()[key] = value

    def __delitem__(self, key: Any) -> None:
        self._process.changed_variables.add(key)
        del self._variables()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._variables())

    def __len__(self) -> int:
        return len(self._variables())


@contextmanager
def restored_settings() -> Iterator[None]:
    """Restore settings of the process, which ranks share, at the end of a ``with`` block. Yields None.

    These are the file mode mask, signal handlers, limits of the interpreter, garbage collection and hooks of errors.
    """
    mask = os.umask(0)
    os.umask(mask)
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    recursion_limit, switch_interval = sys.getrecursionlimit(), sys.getswitchinterval()
    collects, thresholds, stack_size = gc.isenabled(), gc.get_threshold(), threading.stack_size()
    thread_hook, unraisable_hook = threading.excepthook, sys.unraisablehook
    try:
        yield
    finally:
        os.umask(mask)
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                if handler is not None and signal.getsignal(number) != handler:
                    signal.signal(number, handler)
        sys.setrecursionlimit(recursion_limit)
        sys.setswitchinterval(switch_interval)
        (gc.enable if collects else gc.disable)()
        gc.set_threshold(*thresholds)
        threading.stack_size(stack_size)
        threading.excepthook, sys.unraisablehook = thread_hook, unraisable_hook


class Process:
    """The process state of each rank: working folder, environment, locale, exit functions.

    Args:
        size: number of ranks.
    """

    def __init__(self, size: int) -> None:
        self._views = [
            view for name in ("environ", "environb") if (view := getattr(os, name, None)) is not None
        ]
        self._environment: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
        self.environments = [dict(self._environment) for _ in range(size)]
        self.changed_variables: set[Any] = set()  # names of variables that a rank has set or deleted
        # The working folder of each rank. When a rank first changes its folder, all others get the start folder.
        self._folders = [""] * size
        self.has_moved = False  # True if a rank has changed its working folder
        # The locale of each rank. When a rank first changes its locale, all others get the start locale.
        self._locales: list[str] = []
        self._exit_functions: list[list[_ExitFunction]] = [[] for _ in range(size)]
        self.rank = 0

    def add_rank(self) -> None:
        """Add a rank, which starts with the environment, the folder and the locale of the process."""
        self.environments.append(dict(self._environment))
        self._folders.append(self._start if self.has_moved else "")
        self._exit_functions.append([])
        if self._locales:
            self._locales.append(self._start_locale)

    def enter_rank(self, rank: int) -> None:
        """Make a rank the running one; set its folder, locale and environment if they can differ.

        Args:
            rank: the rank.
        """
        self.rank = rank
        if self.changed_variables:
            self._export(self.environments[rank])
        if self.has_moved:
            self._chdir(self._folders[rank])
        if self._locales:
            self._set_locale(_ALL_CATEGORIES, self._locales[rank])

    def call_exit_functions(self) -> None:
        """Call the exit functions of the running rank, the last registered one first, and forget them.

        Functions that these functions register are called, too. An exception ends the calls.
        """
        functions = self._exit_functions[self.rank]
        while functions:
            function, args, kwargs = functions.pop()
            function(*args, **kwargs)

    @contextmanager
    def installed(self, has_copies: Callable[[str], bool]) -> Iterator[None]:
        """Give each rank its own folder, environment, locale and exit functions inside a ``with`` block.

        In the block, ``os.chdir``, ``os.environ``, ``locale.setlocale``, ``atexit.register`` and
        ``atexit.unregister`` act on the running rank alone. At its end they are restored, and so are the folder, the
        locale and the environment of the process. The exit functions of ranks are only stored:
        :meth:`call_exit_functions` calls them. Yields None.

        Args:
            has_copies: returns True if every rank has its own copy of the module of this name. Exit functions that
                other modules register belong to the process, and run when it ends.
        """
        self._has_copies = has_copies
        self._chdir, self._set_locale = os.chdir, locale.setlocale
        self._register, self._unregister = atexit.register, atexit.unregister
        self._register_fork = os.register_at_fork
        self._start = working_folder()
        self._start_locale = locale.setlocale(locale.LC_ALL)
        for view in self._views:
            view._data = _RankEnvironment(self)
        os.chdir, locale.setlocale = self._change_folder, self._change_locale
        os.register_at_fork = self._register_at_fork
        atexit.register, atexit.unregister = self._register_exit, self._unregister_exit
        try:
            yield
        finally:
            os.chdir, locale.setlocale = self._chdir, self._set_locale
            os.register_at_fork = self._register_fork
            atexit.register, atexit.unregister = self._register, self._unregister
            if self.has_moved:
                os.chdir(self._start)
            if self._locales:
                locale.setlocale(locale.LC_ALL, self._start_locale)
            self._restore_environment()

    def _change_folder(self, path: Any) -> None:
        """Change the working folder of the running rank, as ``os.chdir`` does."""
        self._chdir(path)
        self._folders = [folder or self._start for folder in self._folders]
        self.has_moved = True
        self._folders[self.rank] = os.getcwd()

    def _change_locale(self, category: int, locale: Any = None) -> str:
        """Change the locale of the running rank as ``locale.setlocale`` does; return its name.

        Args:
            category: a constant such as ``locale.LC_ALL``.
            locale: its name; None changes nothing.
        """
        answer = self._set_locale(category, locale)
        if locale is not None:
            self._locales = self._locales or [self._start_locale] * len(self.environments)
            self._locales[self.rank] = self._set_locale(_ALL_CATEGORIES)
        return answer

    def _register_exit(self, func: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Register an exit function of the running rank, or of the process if ranks share the caller's module."""
        if not self._has_copies(sys._getframe(1).f_globals.get("__name__", "")):
            return self._register(func, *args, **kwargs)
        self._exit_functions[self.rank].append((func, args, kwargs))
        return func

    def _register_at_fork(self, **functions: Any) -> None:
        """Register functions of the process, but not those of a rank: the process would keep them forever."""
        if not self._has_copies(sys._getframe(1).f_globals.get("__name__", "")):
            self._register_fork(**functions)

    def _unregister_exit(self, func: Any, /) -> None:
        """Forget an exit function of the running rank and of the process."""
        others = [function for function in self._exit_functions[self.rank] if function[0] != func]
        self._exit_functions[self.rank] = others
        self._unregister(func)

    def _export(self, environment: dict[Any, Any]) -> None:
        """Give C code and child processes the values that an environment has for the changed variables.

        Args:
            environment: the variables by name.
        """
        for key in self.changed_variables:
            if key in environment:
                os.putenv(key, environment[key])
            else:
                os.unsetenv(key)

    def _restore_environment(self) -> None:
        """Undo the changes of all ranks to ``os.environ`` and to the environment of C code."""
        for view in self._views:
            view._data = self._environment
        self._export(self._environment)
