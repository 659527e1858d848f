"""What a process has besides modules: environment variables, a working folder, and what it does at its end."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_Ending = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Process:
    """Each rank's own, in a process that plays them all.

    Args:
        size: number of ranks.
    """

    def __init__(self, size: int) -> None:
        self._views = [
            view for name in ("environ", "environb") if (view := getattr(os, name, None)) is not None
        ]
        self._environment: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
        self._environments = [dict(self._environment) for _ in range(size)]
        self._folders = [""] * size  # where a rank has gone to
        self._moved = False  # some rank has gone somewhere
        self._endings: list[list[_Ending]] = [[] for _ in range(size)]
        self._rank = 0

    def put(self, rank: int) -> None:
        """Put one rank's in place."""
        self._rank = rank
        for view in self._views:
            view._data = self._environments[rank]
        if self._moved:
            self._chdir(self._folders[rank])

    def end(self) -> None:
        """Do what the running rank registered for its end, the last first."""
        endings = self._endings[self._rank]
        while endings:
            function, args, kwargs = endings.pop()
            function(*args, **kwargs)

    @contextmanager
    def installed(self, own: Callable[[str], bool]) -> Iterator[None]:
        """Be what the program finds in ``os`` and ``atexit``, and leave the process as it was.

        Args:
            own: whether a module is every rank's own; what shared ones do at the end is the process's.
        """
        self._chdir, register, unregister = os.chdir, atexit.register, atexit.unregister
        start = os.getcwd()

        def chdir(path: Any) -> None:
            self._chdir(path)
            self._folders = [folder or start for folder in self._folders]
            self._moved = True
            self._folders[self._rank] = os.getcwd()

        def own_register(func: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not own(sys._getframe(1).f_globals.get("__name__", "")):
                return register(func, *args, **kwargs)
            self._endings[self._rank].append((func, args, kwargs))
            return func

        def own_unregister(func: Any, /) -> None:
            kept = [ending for ending in self._endings[self._rank] if ending[0] != func]
            self._endings[self._rank] = kept
            unregister(func)

        os.chdir, atexit.register, atexit.unregister = chdir, own_register, own_unregister
        try:
            yield
        finally:
            os.chdir, atexit.register, atexit.unregister = self._chdir, register, unregister
            if self._moved:
                os.chdir(start)
            self._restore_environment()

    def _restore_environment(self) -> None:
        for view in self._views:
            view._data = self._environment
        for key in {key for one in self._environments for key in one.keys() ^ self._environment.keys()}:
            os.unsetenv(key) if key not in self._environment else os.putenv(key, self._environment[key])
        for one in self._environments:
            for key in one.keys() & self._environment.keys():
                if one[key] != self._environment[key]:
                    os.putenv(key, self._environment[key])
