"""Settings of the package ``mpi4py``: ``mpi4py.rc`` and ``mpi4py.profile``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_Path = str | bytes | os.PathLike[str]


class Rc:
    """Options for the start and the end of MPI: ``mpi4py.rc``.

    Attributes:
        initialize: True to initialise MPI at its import.
        threads: not used: mpi4py has it.
        thread_level: not used: mpi4py has it.
        finalize: True to finalise MPI at the end; None: if its import has initialised it.
        fast_reduce: not used: mpi4py has it.
        recv_mprobe: not used: mpi4py has it.
        irecv_bufsz: not used: mpi4py has it.
        errors: not used: mpi4py has it.

    >>> rc = Rc(finalize=False)
    >>> rc(initialize=False)
    >>> rc.initialize, rc.finalize
    (False, False)
    """

    initialize = True
    threads = True
    thread_level = "multiple"
    finalize: bool | None = None
    fast_reduce = True
    recv_mprobe = True
    irecv_bufsz = 32768
    errors = "exception"

    def __init__(self, **options: Any) -> None:
        self(**options)

    def __call__(self, **options: Any) -> None:
        """Set options; raise TypeError, and set none, if one does not exist."""
        for name in options:
            self._check_name(name)
        vars(self).update(options)

    def __setattr__(self, name: str, value: Any) -> None:
        self._check_name(name)
        super().__setattr__(name, value)

    def _check_name(self, name: str) -> None:
        """Raise TypeError if there is no option of a name."""
        names = [option for option in vars(Rc) if option[0] != "_"]
        if name not in names:
            raise TypeError(f"mpi4py.rc: an option must be one of {', '.join(names)}, got {name!r}")

    def __repr__(self) -> str:
        return "<mpi4py.rc>"


def profile(name: _Path, *, path: _Path | Iterable[_Path] | None = None) -> None:
    """Check that a profiling library exists; it is not loaded, because no calls of MPI in C are made.

    A file that is no library gives a warning.

    Args:
        name: file of the library, or its name without "lib" and ".so".
        path: the folders to search; a text may have several, separated as in PATH. None: the working folder.

    Raises:
        ValueError: If no folder has the library.
    """
    if isinstance(path, str | bytes):
        folders: list[Any] = os.fsdecode(path).split(os.pathsep)
    else:
        folders = [path or ""] if path is None or isinstance(path, os.PathLike) else list(path)
    stem = os.fsdecode(name)
    files = (Path(os.fsdecode(folder), file) for folder in folders for file in (stem, f"lib{stem}.so"))
    library = next((file for file in files if file.is_file()), None)
    if library is None:
        raise ValueError(f"profile: name must be a library in the folders of path, got {stem!r}")
    with library.open("rb") as stream:
        if stream.read(4) != b"\x7fELF":
            warnings.warn(f"profile: {library} is no shared library", stacklevel=2)
