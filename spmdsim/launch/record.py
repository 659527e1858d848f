"""What the ranks called last, as their starter sees it: it has them write it where none of them can, and says where."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from threading import current_thread, main_thread

from spmdsim.ending.notes import ASKED

VARIABLE = "SPMDSIM_RECORD"
"""Where the ranks write what they called last."""

WRITTEN_SECONDS = 5.0
"""How long ranks may take to write it when a rank has died or the job is ended; longer than a busy machine needs."""


class Recorded:
    """The files of one job.

    Args:
        environment: of the ranks.
        folder: where notes for them go.
    """

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self.folder = folder
        asked = environment.get(VARIABLE)
        self.path = Path(asked).absolute() if asked else None
        self._before = self._files()

    def _files(self) -> set[tuple[Path, int]]:
        if self.path is None:
            return set()
        apart = self.path.parent.glob(f"{escape(self.path.stem)}.rank*{self.path.suffix}")
        return {(path, path.stat().st_mtime_ns) for path in (self.path, *apart) if path.is_file()}

    def written(self) -> list[Path]:
        """What the job has written."""
        return sorted(path for path, _ in self._files() - self._before)

    def ask(self, process: subprocess.Popen[bytes], why: str = "") -> None:
        """Have the ranks that are left write, before they are ended, unless one has.

        Launchers that are ended give their ranks no time, so they are asked beforehand.
        """
        if self.path is None or self.written() or not hasattr(signal, "SIGUSR1"):
            return
        (self.folder / ASKED).write_text(why)
        process.send_signal(signal.SIGUSR1)
        end = time.monotonic() + WRITTEN_SECONDS
        while not self.written() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)

    def clear(self) -> None:
        """Remove what ranks had written half when they were killed, or left."""
        if self.path is not None:
            for half in self.path.parent.glob(f"{escape(self.path.stem)}.*.part"):
                half.unlink(missing_ok=True)

    def say(self) -> None:
        """Say where it is: after the end, since launchers drop what ranks say while they are ended."""
        if paths := self.written():
            sys.stderr.write(f"what the ranks called last is in {', '.join(map(str, paths))}\n")


@contextmanager
def passed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let the ranks hear of SIGUSR1, which asks for what they called last, and not this process alone."""
    if current_thread() is not main_thread() or not hasattr(signal, "SIGUSR1"):
        yield
        return
    before = signal.signal(signal.SIGUSR1, lambda number, _: process.send_signal(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)
