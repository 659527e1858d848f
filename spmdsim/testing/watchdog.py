"""A thread that ends a job whose tests hang on all ranks at once, and says where each rank is."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType


def place(frame: FrameType | None) -> str:
    """Where a frame is, in the words of a traceback, with its callers up to three levels."""
    places: list[str] = []
    while frame is not None and len(places) < 3:
        code = frame.f_code
        places.append(f"{code.co_filename}:{frame.f_lineno} in {code.co_name}")
        frame = frame.f_back
    return " < ".join(places)


class Watchdog(threading.Thread):
    """Calls ``expired(name, where)`` if what it watches takes longer than ``seconds``.

    It works while the main thread sits inside an MPI call, which signals do not.
    """

    def __init__(self, seconds: float, expired: Callable[[str, str], None]) -> None:
        super().__init__(name="spmdsim watchdog", daemon=True)
        self.seconds = seconds
        self.expired = expired
        self._main = threading.main_thread().ident
        self._watched: tuple[str, float] | None = None

    def watch(self, name: str) -> None:
        """Start the clock for ``name``."""
        self._watched = (name, time.monotonic())

    def rest(self) -> None:
        """Stop the clock."""
        self._watched = None

    def run(self) -> None:
        """Look at the clock a few times in each period."""
        while True:
            time.sleep(min(1.0, self.seconds / 4))
            watched = self._watched
            if watched is not None and time.monotonic() - watched[1] > self.seconds:
                self.expired(watched[0], place(sys._current_frames().get(self._main or 0)))
                return
