"""Running a program on virtual ranks: a function, or a script with its arguments."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from spmdsim.errors import InputError, UsageTypeError
from spmdsim.launch.limits import describe_memory_limit, start_clock
from spmdsim.reading import require_file
from spmdsim.simulation.deadlock.explanation import on_stall
from spmdsim.simulation.deadlock.wait_graph import check_end
from spmdsim.simulation.engine.captured_output import own_end, own_output, virtual_sleep
from spmdsim.simulation.engine.isolation import Isolation, may_draw_numbers
from spmdsim.simulation.engine.ownership import Variables
from spmdsim.simulation.engine.scheduler import Scheduler, Task, active
from spmdsim.simulation.engine.timing import MachineLike, Timeline, as_machine
from spmdsim.simulation.findings.problems import ERROR, HERE, Problem, ProgramPlace, SimulationError, is_ours
from spmdsim.simulation.interface.stand_in import StandIn, make_worlds
from spmdsim.simulation.simulation_report import Report
from spmdsim.worlds.trace.source_lines import cell
from spmdsim.wrong_calls import explained

Emit = Callable[[int, str], None]

MOST_RANKS = 1 << 16
"""Virtual ranks: each has a stack, its modules and an environment."""


@explained
def simulate(
    program: Callable[..., object] | str | os.PathLike[str],
    n: int,
    *args: object,
    machine: MachineLike = None,
    strict: bool = False,
    seed: int | None = None,
    trace: bool = False,
    check: bool = True,
    emit: Emit | None = None,
    ranks_per_node: int | None = None,
) -> Report:
    """Run a per-rank program on ``n`` virtual ranks in this process, and say what is wrong with it.

    Args:
        program: a function, called as ``program(comm, *args)`` if its first parameter is named ``comm`` or
            it needs one argument more than given, else as ``program(*args)``; or the path of a script that
            does ``from mpi4py import MPI``.
        n: number of ranks.
        *args: for the function; for a script, its command-line arguments.
        machine: for the modelled time: a machine's name or file, (alpha, beta, gamma) or a Machine.
        strict: a send may not count on the library's buffer; warnings are errors.
        seed: run the ranks, and answer wildcards, in another order that is as legal; None is the plain order.
        trace: keep a timeline in ``report.trace``.
        check: raise when something is wrong, instead of only reporting it.
        emit: gets each printed line as (rank, line); by default lines are printed.
        ranks_per_node: consecutive ranks that share a node, for ``Split_type`` and the processor's name.

    Returns:
        What was found, the results and output per rank, traffic and modelled time.

    Raises:
        InputError: ``n`` is not 1 to 65,536, ``ranks_per_node`` is below 1, or the script cannot be read or compiled.
        SimulationError: something is wrong and ``check`` is set; its ``report`` has everything.
        UsageTypeError: ``program`` is neither a function nor a path.
        WorldError: greenlet is not installed, or a simulation runs already.

    >>> simulate(lambda comm: comm.allreduce(comm.rank), 4).results
    (6, 6, 6, 6)
    """
    if not isinstance(n, int) or n < 1:
        raise InputError(f"{n!r} ranks cannot run: give a number of 1 or more")
    if n > MOST_RANKS:
        raise InputError(f"{n:,} ranks cannot run in one process: at most {MOST_RANKS:,}")
    if ranks_per_node is not None and ranks_per_node < 1:
        raise InputError(f"{ranks_per_node!r} ranks per node cannot be: give a number of 1 or more")
    scheduler = Scheduler(n, as_machine(machine), strict, seed)
    nodes = ranks_per_node or scheduler.machine.ranks_per_node or n
    scheduler.ranks_per_node = nodes
    if trace:
        scheduler.timeline = Timeline(n)
    scheduler.on_stall = lambda attention: on_stall(scheduler, attention)
    output: list[tuple[int, str]] = []
    real = sys.stdout

    def write(rank: int, line: str) -> None:
        output.append((rank, line))
        if emit is None:
            real.write(line + "\n")
        else:
            emit(rank, line)

    stand_in = StandIn()
    with ExitStack() as stack:
        body, isolation = _body(program, args, scheduler, stand_in)
        stack.enter_context(active(scheduler))
        stack.enter_context(isolation.installed())
        stack.enter_context(stand_in.installed())
        stack.enter_context(virtual_sleep(scheduler))
        stack.enter_context(own_end(scheduler))
        stack.enter_context(own_output(scheduler, write))
        make_worlds(scheduler)
        scheduler.start(lambda task: _run_rank(scheduler, task, body, isolation.process.end))
        start_clock()
        try:
            scheduler.run()
        finally:
            scheduler.close()
    if scheduler.failure is None:
        rc = stand_in.rc_module
        check_end(scheduler, not (rc.finalize or (rc.finalize is None and rc.initialize)))
    report = _report(scheduler, tuple(output))
    if check and not report.ok:
        raise SimulationError(str(report.errors[-1]), report)
    return report


def _body(
    program: Any, args: Sequence[Any], scheduler: Scheduler, stand_in: StandIn
) -> tuple[Callable[[Task], Any], Isolation]:
    """Return the function that each rank runs, and the isolation of the ranks."""
    if callable(program):
        with_comm = _takes_comm(program, len(args))
        real = sys.modules.get("mpi4py.MPI")
        is_function = isinstance(program, types.FunctionType)
        variables = Variables(program, real, stand_in.MPI) if is_function else None
        isolation = Isolation(scheduler, list(sys.argv), None, _draws_numbers(program), variables)

        def call(task: Task) -> Any:
            arguments = (task.world, *args) if with_comm else tuple(args)
            return variables.call(task, arguments) if variables is not None else program(*arguments)

        return call, isolation
    if not isinstance(program, str | os.PathLike):
        raise UsageTypeError(f"a function or a script's path is needed, not {program!r}")
    path = os.path.abspath(os.fspath(program))
    source = _read(path)
    code = _compile(source, path)
    arguments = [str(program), *map(str, args)]
    isolation = Isolation(scheduler, arguments, os.path.dirname(path), b"random" in source)

    def body(task: Task) -> None:
        main = isolation.worlds[task.rank].main
        main.__dict__.update(__file__=path, __builtins__=__builtins__)
        exec(code, main.__dict__)

    return body, isolation


def _read(path: str) -> bytes:
    require_file(path, "script")
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError as error:
        raise InputError(f"cannot read the script {path}: {error.strerror}") from None


def _draws_numbers(function: Callable[..., Any]) -> bool:
    """Return True if a function's file mentions random numbers or cannot be read."""
    try:
        return may_draw_numbers(inspect.getsourcefile(function))
    except TypeError:
        return True


def _compile(source: bytes, path: str) -> Any:
    try:
        return compile(source, path, "exec")
    except (SyntaxError, ValueError) as error:
        raise InputError(f"the script is not valid Python: {error}") from None


def _takes_comm(function: Callable[..., Any], count: int) -> bool:
    """Return True if a function accepts a communicator before the given arguments."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return True
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places = [p for p in parameters if p.kind in kinds]
    required = [p for p in places if p.default is p.empty]
    return len(required) > count or bool(places and places[0].name.startswith("comm"))


# ---------------------------------------------------------------------- one rank


def _run_rank(scheduler: Scheduler, task: Task, body: Callable[[Task], Any], end: Callable[[], None]) -> None:
    """Run a rank to its end, whatever end that is."""
    try:
        try:
            task.value = body(task)
        except SystemExit:
            end()
            raise
        end()
        task.finished = True
    except scheduler.exit:
        return
    except SystemExit as leaving:
        _left(scheduler, task, leaving)
    except BaseException as error:
        if scheduler.closing:
            return
        task.exit_code = 130 if isinstance(error, KeyboardInterrupt) else 1
        scheduler.record_failure(_exception(task, error))


def _left(scheduler: Scheduler, task: Task, leaving: SystemExit) -> None:
    code = leaving.code
    task.exit_code = code if isinstance(code, int) else int(code is not None)
    task.finished = True
    if task.exit_code:
        place = _where(task, leaving, "sys.exit")
        text = f"rank {task.rank} leaves with sys.exit({code!r}) at {place.where}"
        scheduler.record_failure(Problem("exit", ERROR, text, (task.rank,), (place,)))


def _where(task: Task, error: BaseException, call: str) -> ProgramPlace:
    """Return the innermost line of the user's program that an exception passed."""
    place = ProgramPlace(task.rank, call, "?", 0)
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if not is_ours(frame) and not name.startswith("<frozen"):
            place = ProgramPlace(task.rank, call, name, line)
    return place


def _exception(task: Task, error: BaseException) -> Problem:
    place = _where(task, error, type(error).__name__)
    trace = traceback.TracebackException.from_exception(error)
    theirs = [frame for frame in trace.stack if not frame.filename.startswith(HERE)]
    for frame in theirs:
        frame.filename = cell(frame.filename) or frame.filename
    trace.stack = traceback.StackSummary.from_list(theirs)
    lines = [line for part in trace.format() for line in part.rstrip().split("\n")]
    name = type(error).__name__
    what = str(error) if str(error).startswith("MPI_") else f"{name}: {error}" if str(error) else name
    what += describe_memory_limit() if isinstance(error, MemoryError) else ""
    text = f"rank {task.rank} raises {what} at {place.where}"
    return Problem("exception", ERROR, text, (task.rank,), (place,), details=tuple(lines))


def _report(scheduler: Scheduler, output: tuple[tuple[int, str], ...]) -> Report:
    tasks = scheduler.tasks
    problems = tuple(scheduler.problems)
    wrong = [p for p in problems if scheduler.strict or p.severity == ERROR]
    own_codes = [task.exit_code for task in tasks if task.exit_code]
    timeline = scheduler.timeline
    return Report(
        size=len(tasks),
        problems=problems,
        completed=scheduler.failure is None and all(task.finished for task in tasks),
        results=tuple(task.value for task in tasks),
        seconds=tuple(task.clock for task in tasks),
        messages=tuple(task.messages_sent for task in tasks),
        nbytes=tuple(task.bytes_sent for task in tasks),
        output=output,
        exit_code=own_codes[0] if own_codes else int(bool(wrong)),
        strict=scheduler.strict,
        trace=timeline.to_dict() if timeline is not None else None,
    )
