"""What a process has besides modules: environment variables, a working folder, and what it does at its end."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

_Ending = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class _RunningRanks(MutableMapping[Any, Any]):
    """The environment variables of the rank that runs, looked up when asked for: ranks change at every message."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def _own(self) -> dict[Any, Any]:
        return self._process.environments[self._process.rank]

    def __getitem__(self, key: Any) -> Any:
        return self._own()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._own()[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._own()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._own())

    def __len__(self) -> int:
        return len(self._own())


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
        self.environments = [dict(self._environment) for _ in range(size)]
        self._folders = [""] * size  # where a rank has gone to
        self.moved = False  # some rank has gone somewhere
        self._endings: list[list[_Ending]] = [[] for _ in range(size)]
        self.rank = 0

    def move(self) -> None:
        """Go where the running rank has gone to."""
        self._chdir(self._folders[self.rank])

    def end(self) -> None:
        """Do what the running rank registered for its end, the last first."""
        endings = self._endings[self.rank]
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
        for view in self._views:
            view._data = _RunningRanks(self)

        def chdir(path: Any) -> None:
            self._chdir(path)
            self._folders = [folder or start for folder in self._folders]
            self.moved = True
            self._folders[self.rank] = os.getcwd()

        def own_register(func: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not own(sys._getframe(1).f_globals.get("__name__", "")):
                return register(func, *args, **kwargs)
            self._endings[self.rank].append((func, args, kwargs))
            return func

        def own_unregister(func: Any, /) -> None:
            kept = [ending for ending in self._endings[self.rank] if ending[0] != func]
            self._endings[self.rank] = kept
            unregister(func)

        os.chdir, atexit.register, atexit.unregister = chdir, own_register, own_unregister
        try:
            yield
        finally:
            os.chdir, atexit.register, atexit.unregister = self._chdir, register, unregister
            if self.moved:
                os.chdir(start)
            self._restore_environment()

    def _restore_environment(self) -> None:
        for view in self._views:
            view._data = self._environment
        for key in {key for one in self.environments for key in one.keys() ^ self._environment.keys()}:
            os.unsetenv(key) if key not in self._environment else os.putenv(key, self._environment[key])
        for one in self.environments:
            for key in one.keys() & self._environment.keys():
                if one[key] != self._environment[key]:
                    os.putenv(key, self._environment[key])
