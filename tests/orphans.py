"""Source text of a program that leaves a process behind, in a session of its own."""

from __future__ import annotations

import os
from pathlib import Path


def leaving_text(path: Path) -> str:
    """Return a function ``leave()``: a process of another session, started by one that has ended, sleeps; its number is in a file."""
    return f"""
import os, time
def leave():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with open({str(path) + "_"!r}, "w") as file:
                file.write(str(os.getpid()))
            os.rename({str(path) + "_"!r}, {str(path)!r})
            time.sleep(600)
        os._exit(0)
    while not os.path.exists({str(path)!r}):
        time.sleep(0.01)
"""


def is_alive(path: Path) -> bool:
    """Return True if the process whose number is in the file runs."""
    try:
        os.kill(int(path.read_text()), 0)
    except ProcessLookupError:
        return False
    return True
