"""Progress of a long command on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from spmdsim.launcher import is_root, terminal_columns


class Progress(Protocol):
    """Callback of :func:`progress`, to be called for each finished item."""

    def __call__(self, label: str = "") -> None:
        """Count one more finished item; ``label`` names the next one."""


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Progress]:
    """Return a context that shows on stderr how many items are finished.

    The value of the context is a function. Each call counts one item, and rewrites the line: the example shows
    "cases 1/2 matmul", then "cases 2/2". The line is erased at the end of the context, also after an error. It is shown
    only if stderr is a terminal, and in a job only on rank 0. Ranks do not communicate.

    Args:
        what: name of the counted items, the first word of the line.
        total: the number of items; None if it is not known. More items than ``total`` are no error.

    >>> with progress("cases", 2) as step:
    ...     step("matmul")
    ...     step()
    """
    is_shown = is_root() and terminal_columns(sys.stderr) is not None
    finished = 0

    def step(label: str = "") -> None:
        nonlocal finished
        finished += 1
        if is_shown:
            count = f"{finished}" if total is None else f"{finished}/{total}"
            sys.stderr.write(f"\r\x1b[2K{what} {count} {label}")
            sys.stderr.flush()

    try:
        yield step
    finally:
        if is_shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
