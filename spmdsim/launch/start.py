"""Start a command on N ranks, keep a log per rank, and name the rank that failed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from spmdsim.errors import InputError, WorldError
from spmdsim.launch.environment import THREAD_VARIABLES, blas_threads, cores, launched
from spmdsim.launch.logs import (
    FAILED_DIR,
    LOG_DIR,
    first_failed,
    follow,
    log_path,
    log_tail,
    prepare_logs,
)
from spmdsim.launch.mpi import find_launcher

GRACE_SECONDS = 5.0
"""How long the launcher may take to end its ranks after a signal."""


def start_command(
    n: int, argv: list[str], log_dir: Path | None = None, env: Mapping[str, str] | None = None
) -> int:
    """Run ``argv`` on ``n`` ranks; see :func:`spmdsim.launch.start`."""
    if n < 1:
        raise InputError(f"cannot start {n} ranks: at least 1 is needed")
    if launched():
        raise WorldError("this process is an MPI rank already: it cannot start ranks of its own")
    launcher = find_launcher()
    if log_dir is not None:
        prepare_logs(log_dir)
    with tempfile.TemporaryDirectory(prefix="spmdsim-") as failed_dir:
        environment = rank_environment(n) | launcher.environment()
        environment |= {FAILED_DIR: failed_dir, **(env or {})}
        if log_dir is not None:
            environment[LOG_DIR] = str(log_dir.resolve())
        command = launcher.command(n, oversubscribe=n > cores()) + argv
        code = wait(command, environment, log_dir)
        failed = first_failed(Path(failed_dir))
    if code and failed is not None:
        rank, code = failed
        if log_dir is not None:
            sys.stderr.write(log_tail(log_dir, rank, code))
    return code


def rank_environment(n: int) -> dict[str, str]:
    """The environment of the ranks: this one's, with BLAS threads that fit."""
    environment = dict(os.environ)
    if "OMP_NUM_THREADS" not in environment:
        for name in THREAD_VARIABLES:
            environment.setdefault(name, str(blas_threads(n, cores())))
    environment.setdefault("PYTHONUNBUFFERED", "1")
    return environment


def wait(command: list[str], environment: Mapping[str, str], log_dir: Path | None) -> int:
    """Run the launcher to its end; Ctrl-C and termination are passed on, and end it for certain."""
    stop = threading.Event()
    process = subprocess.Popen(command, env=dict(environment), start_new_session=True)
    echo = None
    if log_dir is not None:
        echo = threading.Thread(target=follow, args=(log_path(log_dir, 0), stop), daemon=True)
        echo.start()
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: end(process, signal.SIGTERM))
    try:
        return code_of(process.wait())
    except KeyboardInterrupt:
        end(process, signal.SIGINT)
        return 130
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
        stop.set()
        if echo is not None:
            echo.join()


def end(process: subprocess.Popen[bytes], with_signal: int) -> None:
    """Ask the launcher to stop its ranks; after a grace period, stop the whole group."""
    process.send_signal(with_signal)
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def code_of(returncode: int) -> int:
    """A process's exit code as a shell has it: 128 + the signal if a signal ended it."""
    return 128 - returncode if returncode < 0 else returncode
