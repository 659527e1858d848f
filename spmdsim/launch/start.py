"""Start a command on N ranks, keep a log per rank, and name the rank that failed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from spmdsim.errors import InputError, WorldError
from spmdsim.launch.environment import THREAD_VARIABLES, blas_threads, cores, launched
from spmdsim.launch.logs import (
    FAILED_DIR,
    LOG_DIR,
    first_failed,
    follow,
    job_ends,
    log_path,
    log_tail,
    prepare_logs,
)
from spmdsim.launch.mpi import find_launcher
from spmdsim.worlds.base import RANKS_VARIABLE

FAILED_SECONDS = 5.0
"""How long the launcher may take to end by itself once a rank ends the job, or all have left it with a failure."""

GRACE_SECONDS = 2.0
"""How long the launcher may take to end its ranks after a signal."""


def start_command(
    n: int,
    argv: list[str],
    log_dir: Path | None = None,
    env: Mapping[str, str] | None = None,
    lockstep: bool = False,
) -> int:
    """Run ``argv`` on ``n`` ranks; see :func:`spmdsim.launch.start`."""
    if n < 1:
        raise InputError(f"cannot start {n} ranks: at least 1 is needed")
    if launched():
        raise WorldError("this process is an MPI rank already: it cannot start ranks of its own")
    launcher = None if lockstep else find_launcher()
    if log_dir is not None:
        prepare_logs(log_dir)
    with tempfile.TemporaryDirectory(prefix="spmdsim-") as failed_dir:
        if launcher is None:
            environment, command = {**os.environ, RANKS_VARIABLE: str(n)}, argv
        else:
            environment = rank_environment(n) | launcher.environment()
            command = launcher.command(n, oversubscribe=n > cores()) + argv
        environment |= {FAILED_DIR: failed_dir, **(env or {})}
        if log_dir is not None:
            environment[LOG_DIR] = str(log_dir.resolve())
        ranks = 1 if lockstep else n
        code = wait(command, environment, log_dir, partial(job_ends, Path(failed_dir), ranks))
        failed = first_failed(Path(failed_dir))
    if failed is not None:
        rank, code = failed
        if log_dir is not None:
            sys.stderr.write(log_tail(log_dir, rank, code))
    elif code and log_dir is not None:
        sys.stderr.write(f"a rank ended without a word (exit code {code}); the logs are in {log_dir}\n")
    return code


def rank_environment(n: int) -> dict[str, str]:
    """The environment of the ranks: this one's, with BLAS threads that fit."""
    environment = dict(os.environ)
    if "OMP_NUM_THREADS" not in environment:
        for name in THREAD_VARIABLES:
            environment.setdefault(name, str(blas_threads(n, cores())))
    return environment


class Terminated(Exception):
    """This process was asked to end."""


def wait(
    command: list[str], environment: Mapping[str, str], log_dir: Path | None, ending: Callable[[], bool]
) -> int:
    """Run the launcher to its end; Ctrl-C and termination are passed on, and end it for certain."""
    stop = threading.Event()
    process = subprocess.Popen(command, env=dict(environment), start_new_session=True)
    echo = None
    if log_dir is not None:
        echo = threading.Thread(target=follow, args=(log_path(log_dir, 0), stop), daemon=True)
        echo.start()
    try:
        with raise_on_termination():
            return code_of(wait_for(process, ending))
    except (KeyboardInterrupt, Terminated) as error:
        with_signal = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM
        end(process, with_signal)
        return 128 + with_signal
    finally:
        stop.set()
        if echo is not None:
            echo.join()


def wait_for(process: subprocess.Popen[bytes], ending: Callable[[], bool]) -> int:
    """Wait for the launcher; once the job is ``ending`` it must end soon, or is ended.

    Launchers sometimes hang while they clean up after a failure.
    """
    deadline = None
    while True:
        try:
            return process.wait(0.2)
        except subprocess.TimeoutExpired:
            if deadline is None and ending():
                deadline = time.monotonic() + FAILED_SECONDS
            if deadline is not None and time.monotonic() > deadline:
                end(process, signal.SIGTERM)


@contextmanager
def raise_on_termination() -> Iterator[None]:
    """Turn the signal into an exception: a handler could not wait for the launcher itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end(process: subprocess.Popen[bytes], with_signal: int) -> None:
    """Ask the launcher to stop its ranks; after a grace period, stop the whole group."""
    process.send_signal(with_signal)
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def code_of(returncode: int) -> int:
    """A process's exit code as a shell has it: 128 + the signal if a signal ended it."""
    return 128 - returncode if returncode < 0 else returncode
