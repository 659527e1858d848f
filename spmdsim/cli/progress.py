"""How far a long command is, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from spmdsim.launcher import is_root, terminal_columns


class Progress(Protocol):
    """Told of each piece of work that is done."""

    def __call__(self, label: str = "") -> None:
        """One more piece is done; ``label`` names the next one."""


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Progress]:
    """Show how far a long command is: on the speaking rank, on a terminal, on stderr, without communication.

    Args:
        what: the parts that are counted.
        total: the number of parts; None if it is not known.

    >>> with progress("cases", 2) as step:
    ...     step("matmul")
    ...     step()
    """
    shown = is_root() and terminal_columns(sys.stderr) is not None
    done = 0

    def step(label: str = "") -> None:
        nonlocal done
        done += 1
        if shown:
            count = f"{done}" if total is None else f"{done}/{total}"
            sys.stderr.write(f"\r\x1b[2K{what} {count} {label}")
            sys.stderr.flush()

    try:
        yield step
    finally:
        if shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
