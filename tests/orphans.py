"""Helpers for tests of orphans: processes that a program starts in a separate session and does not stop."""

from __future__ import annotations

import os
from pathlib import Path


def leaving_text(path: Path) -> str:
    """Return the source text of a function ``leave()``, which starts an orphan.

    The orphan runs in a separate session. Its parent has ended. It writes its process number to ``path`` and sleeps.
    """
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
    """Return True if the process runs whose number is in the file ``path``."""
    try:
        os.kill(int(path.read_text()), 0)
    except ProcessLookupError:
        return False
    return True
