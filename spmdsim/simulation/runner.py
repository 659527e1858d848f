"""Run a program on virtual ranks: a function, or a script with its arguments."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from spmdsim.cost.node_map import NodeMap, Nodes
from spmdsim.errors import InputError, UsageTypeError
from spmdsim.launch.limits import describe_memory_limit, start_clock
from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.data.open_handles import recorded
from spmdsim.simulation.deadlock.explanation import resolve_stall
from spmdsim.simulation.deadlock.wait_graph import report_open_operations
from spmdsim.simulation.engine.captured_output import replace_attribute, replace_exit
from spmdsim.simulation.engine.collective_times import DEFAULT_LIBRARY, CollectiveTimes
from spmdsim.simulation.engine.computation import Computation, Speed, Stopwatch
from spmdsim.simulation.engine.isolation import Isolation, may_draw_numbers
from spmdsim.simulation.engine.order_choices import OrderChoices
from spmdsim.simulation.engine.ownership import Variables
from spmdsim.simulation.engine.rank_clock import replace_clocks
from spmdsim.simulation.engine.run_recorder import RunRecorder, write_record
from spmdsim.simulation.engine.scheduler import Scheduler, Task, activate
from spmdsim.simulation.engine.script import Script, read_module, read_script
from spmdsim.simulation.engine.timing import MachineLike, Timeline, as_machine
from spmdsim.simulation.engine.waiting_times import waiting_times
from spmdsim.simulation.engine.wildcards import decide_wildcards
from spmdsim.simulation.exploration import explore_orders
from spmdsim.simulation.findings.problems import ERROR, HERE, Problem, ProgramPlace, is_ours
from spmdsim.simulation.interface.spawning import make_world
from spmdsim.simulation.interface.stand_in import StandIn
from spmdsim.simulation.simulation_report import Report, SimulationError
from spmdsim.worlds.trace.source_lines import cell
from spmdsim.wrong_calls import explained

Emit = Callable[[int, str], None]

LIBRARIES = ("strict", "openmpi", "mpich")
"""Values of ``like``."""

COMPUTATIONS = ("none", "measured")
"""Values of ``compute``."""

MOST_RANKS = 1 << 16
"""Limit of virtual ranks, because each has a stack, modules and an environment."""


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
    nodes: Nodes | None = None,
    like: str = "strict",
    explore: int = 0,
    progress: Callable[[int], None] | None = None,
    algorithms: Mapping[str, str] | None = None,
    compute: str = "none",
    speed: Speed = 1.0,
    noise: float = 0.0,
    record: str | os.PathLike[str] | None = None,
    module: bool = False,
) -> Report:
    """Run a per-rank program on ``n`` virtual ranks in this process, and report its errors.

    Args:
        program: a function, or the path of a script that does ``from mpi4py import MPI``. A function is called as
            ``program(comm, *args)`` if its first parameter's name starts with ``comm``, or if it needs more arguments
            than ``args`` has. Otherwise it is called as ``program(*args)``.
        n: number of ranks, 1 to 65,536.
        *args: arguments of the function; for a script, its command-line arguments.
        machine: machine for the modelled time: its name or file, (alpha, beta, gamma) or a Machine; None for a plain
            network.
        strict: True to report programs that depend on a library's buffers: a standard send then always waits for its
            receive. Warnings count as errors.
        seed: seed that draws another legal order of ranks and of wildcard matches. None: the rank that became ready
            first runs, and wildcards match in the order of modelled time. Without wildcards, modelled times are equal
            for all seeds.
        trace: True to store a timeline in ``report.trace``.
        check: True to raise SimulationError for errors, False to report them only.
        emit: function that is called with (rank, line) for each printed line; by default lines are printed.
        nodes: the node of each rank, for ``Split_type``, the processor's name and the modelled time: all that
            :meth:`~spmdsim.cost.NodeMap.of` accepts, such as ``"a:2,b:2"`` or a number of consecutive ranks. None: as the
            machine says; if it does not, one node has all ranks.
        like: the library whose checks are simulated where libraries differ: "openmpi", "mpich", or "strict", which
            refuses all that the standard forbids, such as send and receive buffers that share memory. Algorithms of
            collectives are those of MPICH for "mpich", else those of Open MPI.
        explore: the largest number of further runs, each with another order in which wildcards take messages. The
            report then has the errors of all orders, and a result that depends on the order.
        progress: function that is called with the number of explored orders from time to time.
        algorithms: algorithms by collective that replace the library's choices where they support the number of ranks,
            such as ``{"all_reduce": "ring"}``; None for none.
        compute: "measured": the processor time of each rank between its MPI calls counts as modelled time, so that
            times differ a little between runs. "none": only computation counts that the program states with
            :func:`~spmdsim.simulation.compute`.
        speed: speed of the measured or stated computation, relative to this or the modelled machine: one number for
            all ranks, or one per rank.
        noise: standard deviation of the logarithm of a random factor on each such computation; ``seed`` selects the
            factors. 0 for none.
        record: file to which the run is recorded if it completes, for :func:`~spmdsim.simulation.replay`; None for none.
        module: True if ``program`` is the name of a module, which runs as with ``python -m``, such as "mpi4py.futures".

    Returns:
        The report: findings, results and output of each rank, traffic and modelled time.

    Raises:
        InputError: If ``n`` is not 1 to 65,536, ``like`` or ``compute`` is another word, ``nodes`` does not place ``n`` ranks, ``speed``
            or ``noise`` is impossible, the script cannot be read or compiled, or a program to record uses windows or threads.
        ScheduleError: If a collective has no such algorithm.
        SimulationError: If the program has errors and ``check`` is set; its ``report`` has all findings.
        UsageTypeError: If ``program`` is neither a function nor a path.
        WorldError: If greenlet is not installed, or a simulation is running.

    >>> simulate(lambda comm: comm.allreduce(comm.rank), 4).results
    (6, 6, 6, 6)
    """
    _check_count(n)
    if like not in LIBRARIES:
        raise InputError(f"simulate: like must be one of {', '.join(LIBRARIES)}, got {like!r}")
    if compute not in COMPUTATIONS:
        raise InputError(f"simulate: compute must be one of {', '.join(COMPUTATIONS)}, got {compute!r}")
    model = as_machine(machine)
    node_map = model.node_map(n) if nodes is None else NodeMap.of(nodes, n)
    placed = model.placed(node_map)
    library = DEFAULT_LIBRARY if like == "strict" else like
    stdout = sys.stdout

    def show(rank: int, line: str) -> None:
        if emit is None:
            stdout.write(line + "\n")
        else:
            with replace_attribute(sys, "stdout", stdout):
                emit(rank, line)

    def run(write: Emit, timeline: Timeline | None, order: OrderChoices | None) -> Report:
        """Run the program once, in an order of messages; None for the order of ``seed``."""
        times = CollectiveTimes(placed, library, algorithms or {})
        computation = Computation(n, speed, noise, seed)
        scheduler = Scheduler(n, placed, strict, seed if order is None else None, times, computation)
        scheduler.nodes, scheduler.like, scheduler.timeline = node_map, like, timeline
        scheduler.stopwatch = Stopwatch(computation) if compute == "measured" else None
        scheduler.decide = lambda: decide_wildcards(scheduler)
        scheduler.on_stall = lambda attention: resolve_stall(scheduler, attention)
        if order is not None:
            order.attach(scheduler)
        elif record is not None:
            scheduler.recorder = RunRecorder(n)
        named = read_module(str(program), [*map(str, args)]) if module else program
        report = _run_once(named, args, scheduler, write)
        if record is not None and scheduler.recorder is not None and report.completed:
            is_threaded = any(task.is_threaded for task in scheduler.tasks)
            missing = "windows (MPI.Win)" if scheduler.windows else "threads" if is_threaded else ""
            write_record(scheduler.recorder, os.fspath(record), missing)
        return report

    report = run(show, Timeline(n) if trace else None, None)
    if explore:
        report = explore_orders(
            report, lambda order: run(lambda rank, line: None, None, order), explore, progress
        )
    if check and not report.ok:
        raise SimulationError(str(report.errors[0]), report)
    return report


def _run_once(program: Any, args: Sequence[Any], scheduler: Scheduler, emit: Emit) -> Report:
    """Run a program once, and return its report.

    Args:
        program: the function or the script's path, as in ``simulate``.
        args: its arguments, as in ``simulate``.
        scheduler: the simulation.
        emit: called with (rank, line) for each printed line.
    """
    output: list[tuple[int, str]] = []

    def write(rank: int, line: str) -> None:
        output.append((rank, line))
        emit(rank, line)

    _run_all_ranks(program, args, scheduler, write)
    return _build_report(scheduler, tuple(output))


def _check_count(n: int) -> None:
    """Raise InputError if the number of ranks is not 1 to :data:`MOST_RANKS` (65,536)."""
    if not isinstance(n, int) or n < 1:
        raise InputError(f"simulate: n must be a number of ranks of 1 or more, got {n!r}")
    if n > MOST_RANKS:
        raise InputError(f"simulate: n must be at most {MOST_RANKS:,} ranks, got {n:,}")


def _run_all_ranks(program: Any, args: Sequence[Any], scheduler: Scheduler, write: Emit) -> None:
    """Run a program on all ranks to their ends, or until an error ends the run.

    While it runs, mpi4py, standard output, the clocks of ``time`` and ``os._exit`` of this process are replaced by
    simulated ones. If no error ended the run, messages that no rank received, collectives that some ranks did not call and
    requests for which no rank waited are reported at the end.

    Args:
        program: the function or the script's path, as in ``simulate``.
        args: its arguments, as in ``simulate``.
        scheduler: the simulation; it collects results and findings.
        write: called with (rank, line) for each printed line.

    Raises:
        InputError: If the script cannot be read or compiled.
        UsageTypeError: If ``program`` is neither a function nor a path.
        WorldError: If a simulation is running.
    """
    stand_in, excepthook = StandIn(), sys.excepthook
    with ExitStack() as stack:
        body, isolation = _rank_body(program, args, scheduler, stand_in)
        stack.enter_context(activate(scheduler))
        stack.enter_context(isolation.installed(write))
        stack.enter_context(stand_in.installed())
        stack.enter_context(replace_clocks(scheduler))
        stack.enter_context(replace_exit(scheduler))
        make_world(scheduler, scheduler.tasks)
        end = isolation.process.call_exit_functions

        def run_program(task: Task) -> Any:
            """Run the program of a rank: that of the simulation, or the one for which another rank spawned it."""
            return body(task) if task.script is None else task.script.run(isolation.worlds[task.rank].main)

        scheduler.start(lambda task: _run_rank(scheduler, task, run_program, end, excepthook))
        start_clock()
        try:
            with recorded(scheduler.handles):
                scheduler.run()
        finally:
            scheduler.close()
    if scheduler.failure is None:
        rc = stand_in.rc
        # As in mpi4py, the end of the program finalizes MPI if ``rc.finalize`` is set. If it is None, the end
        # finalizes MPI only if the import has initialized it.
        finalizes_at_end = rc.finalize or (rc.finalize is None and rc.initialize)
        report_open_operations(scheduler, finalize_needed=not finalizes_at_end)


def _rank_body(
    program: Any, args: Sequence[Any], scheduler: Scheduler, stand_in: StandIn
) -> tuple[Callable[[Task], Any], Isolation]:
    """Return the function that runs the program on one rank, and the isolation of the ranks.

    The returned function takes the task of a rank, and returns the result of the program's function, or None for a
    script. The isolation gives each rank its own modules and process state; the caller enters it before the function
    is called. Nothing of the program runs yet.

    Args:
        program: the function or the script's path, as in ``simulate``.
        args: its arguments, as in ``simulate``.
        scheduler: the simulation.
        stand_in: the simulated mpi4py. In the variables of the program's function it replaces the real mpi4py.

    Raises:
        InputError: If the script cannot be read or compiled.
        UsageTypeError: If ``program`` is neither a function nor a path.
    """
    if callable(program):
        with_comm = _takes_comm(program, len(args))
        real_mpi = sys.modules.get("mpi4py.MPI")
        is_function = isinstance(program, types.FunctionType)
        variables = Variables(program, real_mpi, stand_in.MPI) if is_function else None
        isolation = Isolation(scheduler, list(sys.argv), None, _draws_numbers(program), variables)

        def call(task: Task) -> Any:
            arguments = (task.world, *args) if with_comm else tuple(args)
            return variables.call(task, arguments) if variables is not None else program(*arguments)

        return call, isolation
    if isinstance(program, Script):
        script = program
    elif isinstance(program, str | os.PathLike):
        script = read_script(os.fspath(program), [*map(str, args)])
    else:
        raise UsageTypeError(f"simulate: program must be a function or a script's path, got {program!r}")
    isolation = Isolation(scheduler, script.arguments, script.folder, b"random" in script.source)
    return lambda task: script.run(isolation.worlds[task.rank].main), isolation


def _draws_numbers(function: Callable[..., Any]) -> bool:
    """Return True if a function's source file contains the word "random" or cannot be read.

    A callable without source file, such as a built-in one, gives True.
    """
    try:
        return may_draw_numbers(inspect.getsourcefile(function))
    except TypeError:
        return True


def _takes_comm(function: Callable[..., Any], count: int) -> bool:
    """Return True if a function takes a communicator before ``count`` other arguments.

    The function takes one if it requires more than ``count`` positional arguments, or if the name of its first
    parameter starts with "comm". If its signature is unknown, return True.

    Args:
        function: the function.
        count: the number of other arguments.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return True
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p for p in parameters if p.kind in kinds]
    required = [p for p in positional if p.default is p.empty]
    return len(required) > count or bool(positional and positional[0].name.startswith("comm"))


# ---------------------------------------------------------------------- one rank


def _run_rank(
    scheduler: Scheduler,
    task: Task,
    body: Callable[[Task], Any],
    end: Callable[[], None],
    excepthook: Callable[..., Any],
) -> None:
    """Run the program on one rank, and record in its task how it ended.

    - If the program returns, its result is stored and the rank counts as finished.
    - If the program calls sys.exit, the exit code is stored and the rank counts as finished. A code other than 0 ends
      the run with an error.
    - If another exception ends the program, the run ends with an error. The exit code is 1, or 130 for
      KeyboardInterrupt. If the program has set ``sys.excepthook``, it is called.
    - If the exception only ends the rank because the run is over, nothing is recorded.

    Args:
        scheduler: the simulation.
        task: the rank.
        body: runs the program on a rank and returns its result.
        end: calls the rank's exit functions. It is called after a return and after sys.exit, not after another
            exception.
        excepthook: ``sys.excepthook`` of the process.
    """
    try:
        try:
            task.value = body(task)
        except SystemExit:
            _end_process(scheduler, task, end)
            raise
        _end_process(scheduler, task, end)
        task.finished = True
    except scheduler.exit:
        return
    except SystemExit as exit_error:
        _record_exit(scheduler, task, exit_error)
    except BaseException as error:
        if scheduler.closing:
            return
        task.exit_code = 130 if isinstance(error, KeyboardInterrupt) else 1
        scheduler.record_failure(_describe_exception(task, error))
        if sys.excepthook is not excepthook:
            sys.excepthook(type(error), error, error.__traceback__)


def _end_process(scheduler: Scheduler, task: Task, end: Callable[[], None]) -> None:
    """Wait for the threads of a rank that are no daemons, and call its exit functions, as Python does.

    Args:
        scheduler: the simulation.
        task: the rank, which is running.
        end: calls the exit functions.
    """
    if task.is_threaded:
        sys.modules["threading"]._shutdown()
    end()
    scheduler.abandon_threads(task)


def _record_exit(scheduler: Scheduler, task: Task, exit_error: SystemExit) -> None:
    """Store the exit code of a rank that called sys.exit; end the run with a finding if it is not 0.

    As in Python, the code of None is 0, and the code of a text is 1. The rank counts as finished.

    Args:
        scheduler: the simulation.
        task: the rank.
        exit_error: the exception of sys.exit.
    """
    code = exit_error.code
    task.exit_code = code if isinstance(code, int) else int(code is not None)
    task.finished = True
    if task.exit_code:
        location = _user_place(task, exit_error, "sys.exit")
        text = f"rank {task.rank} leaves with sys.exit({code!r}) at {location.where}"
        scheduler.record_failure(Problem("exit", ERROR, text, (task.rank,), (location,)))


def _user_place(task: Task, error: BaseException, call: str) -> ProgramPlace:
    """Return the innermost line of the user's program in the traceback of an exception.

    Frames of the simulator and of Python's import system do not count. Lines in "<string>" (``python -c`` or
    generated methods) count only if there are no others. The place is "?:0" if no line counts.

    Args:
        task: the rank that raised the exception.
        error: the exception.
        call: text for the failed call, the ``call`` of the place.
    """
    lines = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not is_ours(frame) and not file.startswith("<frozen"):
            lines.append((file, line))
    written_lines = [(file, line) for file, line in lines if file != "<string>"]
    candidates = written_lines or lines or [("?", 0)]
    file, line = candidates[-1]
    return ProgramPlace(task.rank, call, file, line)


def _describe_exception(task: Task, error: BaseException) -> Problem:
    """Return the problem of kind "exception" for an exception that the user's program raised.

    An error of MPI that has a problem, such as one about both ends of a message, gives this problem.

    An example: "rank 1 raises ValueError: bad at a.py:34". The details of the error are the lines of a traceback with
    the user's frames only. The text of a MemoryError names the memory limit, if there is one. An error of MPI is named
    by its text, such as "MPI_ERR_TAG: ...", without its Python class. An exception without text is named by its class
    only.

    Args:
        task: the rank that raised it.
        error: the exception.
    """
    if isinstance(error, MPIError) and error.problem is not None:
        problem: Problem = error.problem
        return problem
    location = _user_place(task, error, type(error).__name__)
    trace = traceback.TracebackException.from_exception(error)
    user_frames = [frame for frame in trace.stack if not frame.filename.startswith(HERE)]
    for frame in user_frames:
        frame.filename = cell(frame.filename) or frame.filename
    trace.stack = traceback.StackSummary.from_list(user_frames)
    lines = [line for text_block in trace.format() for line in text_block.rstrip().split("\n")]
    name = type(error).__name__
    what = str(error) if str(error).startswith("MPI_") else f"{name}: {error}" if str(error) else name
    what += describe_memory_limit() if isinstance(error, MemoryError) else ""
    text = f"rank {task.rank} raises {what} at {location.where}"
    return Problem("exception", ERROR, text, (task.rank,), (location,), details=tuple(lines))


def _build_report(scheduler: Scheduler, output: tuple[tuple[int, str], ...]) -> Report:
    """Return the report of a run that has ended.

    The exit code is the first nonzero one in the order of the ranks. If all are 0, it is 1 if the report has an
    error, else 0. In strict mode each finding counts as an error. For example, if ranks exit with 0, 3 and 1, the
    exit code is 3.

    Args:
        scheduler: the simulation.
        output: the printed lines as (rank, line), in order.
    """
    tasks = scheduler.tasks
    # The finding that ended the run stands first, because warnings before it are seldom its cause.
    problems = tuple(sorted(scheduler.problems, key=lambda problem: problem is not scheduler.failure))
    wrong = any(scheduler.strict or problem.severity == ERROR for problem in problems)
    exit_codes = [task.exit_code for task in tasks if task.exit_code]
    timeline = scheduler.timeline
    return Report(
        size=len(tasks),
        problems=problems,
        completed=scheduler.failure is None and all(task.finished for task in tasks),
        results=tuple(task.value for task in tasks),
        seconds=tuple(task.clock for task in tasks),
        messages=tuple(task.messages_sent for task in tasks),
        nbytes=tuple(task.bytes_sent for task in tasks),
        collective_messages=tuple(task.collective_messages for task in tasks),
        collective_nbytes=tuple(task.collective_bytes for task in tasks),
        output=output,
        exit_code=exit_codes[0] if exit_codes else int(wrong),
        strict=scheduler.strict,
        waits=waiting_times(tasks),
        counts_computation=scheduler.computation.is_counted,
        trace=timeline.to_dict() if timeline is not None else None,
    )
