"""Worlds of ranks, and ranks that a program adds: ``Spawn`` and ``Spawn_multiple``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from spmdsim.errors import InputError
from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.data.open_handles import remove_handle
from spmdsim.simulation.engine.collective_calls import CollectiveCall
from spmdsim.simulation.engine.scheduler import Scheduler, Task
from spmdsim.simulation.engine.script import Script, read_command
from spmdsim.simulation.interface.intercommunicators import Intercomm, IntercommState
from spmdsim.simulation.interface.simulated_comm import CommunicatorState, Intracomm

#: Limit of ranks in one call, because each has a stack, modules and an environment.
MOST_SPAWNED = 1 << 12


def make_world(scheduler: Scheduler, tasks: Sequence[Task]) -> None:
    """Create COMM_WORLD and COMM_SELF of ranks that start together, and store the handles in their tasks.

    COMM_WORLD has one state that these ranks share; each COMM_SELF has its own.

    Args:
        scheduler: the simulation.
        tasks: the ranks, in order.
    """
    shared = CommunicatorState(scheduler, [task.rank for task in tasks], "COMM_WORLD")
    for position, task in enumerate(tasks):
        task.world = Intracomm.make(shared, position, task)
        self_state = CommunicatorState(scheduler, [task.rank], "COMM_SELF")
        task.self_comm = Intracomm.make(self_state, 0, task)
        task.world.name_as_predefined("COMM_WORLD")
        task.self_comm.name_as_predefined("COMM_SELF")


def read_commands(call: str, commands: Sequence[Any], args: Any, maxprocs: Any) -> list[tuple[Script, int]]:
    """Return the program and the number of ranks of each command.

    Args:
        call: "Spawn" or "Spawn_multiple".
        commands: the commands.
        args: the arguments of each; None: none.
        maxprocs: the number of ranks of each, or one for all; None: 1.

    Raises:
        MPIError: If a number is not 1 to 4,096 (ERR_ARG), or a command runs no Python program (ERR_SPAWN).
        ValueError: If there are more or fewer arguments or numbers than commands.
    """
    arguments = _one_per_command(call, "args", commands, [()] if args is None else args)
    counts = _one_per_command(call, "maxprocs", commands, 1 if maxprocs is None else maxprocs)
    programs = []
    for command, words, count in zip(commands, arguments, counts):
        if not 1 <= count <= MOST_SPAWNED:
            raise MPIError("ERR_ARG", f"{call}: maxprocs must be 1 to {MOST_SPAWNED:,}, got {count}")
        try:
            script = read_command([os.fsdecode(word) for word in (command, *(words or ()))])
        except InputError as error:
            raise MPIError("ERR_SPAWN", f"{call}: {error}; virtual ranks run Python programs only") from None
        programs.append((script, count))
    return programs


def _one_per_command(call: str, name: str, commands: Sequence[Any], values: Any) -> list[Any]:
    """Return one value per command; a value that is no list counts for all commands.

    Args:
        call: "Spawn" or "Spawn_multiple".
        name: name of the argument.
        commands: the commands.
        values: the values; ``[()]`` counts for all commands, too.

    Raises:
        ValueError: If there is another number of values, or the commands or the values are a text.
    """
    if isinstance(commands, str | bytes | os.PathLike):
        raise ValueError(f"{call}: command must be a list of commands, got {commands!r}")
    if isinstance(values, str | bytes):
        raise ValueError(f"{call}: {name} must have one item per command, got {values!r}")
    listed = [*values] if isinstance(values, Sequence) else [values] * len(commands)
    if listed == [()]:
        listed *= len(commands)
    if len(listed) != len(commands):
        raise ValueError(
            f"{call}: {name} must have {len(commands)} items, one per command, got {len(listed)}"
        )
    return listed


def spawn(comm: Any, programs: Any, root: int, call: str, frame: Any) -> tuple[Intercomm, list[int]]:
    """Add the ranks of some programs; return the intercommunicator to them, and their numbers.

    Args:
        comm: the communicator, whose ranks all call it.
        programs: on the root a function that returns the programs and their numbers of ranks, or raises an MPI
            error, which all ranks then raise; not used on the other ranks.
        root: the rank whose programs count.
        call: "Spawn" or "Spawn_multiple".
        frame: the caller's frame, to find the line of the call.

    Raises:
        MPIError: If the root is no rank (ERR_ROOT), the run is recorded (ERR_SPAWN), or the root's function raises it.
    """
    if not 0 <= root < comm.size:
        raise MPIError("ERR_ROOT", f"{call}: root must be 0 to {comm.size - 1}, got {root}")
    if comm._scheduler.recorder is not None:
        raise MPIError("ERR_SPAWN", f"{call}: a run to record must not add ranks; leave record out")
    value: Any = None
    if comm._rank == root:
        try:
            value = programs()
        except MPIError as error:
            value = error

    def answer(calls: list[CollectiveCall]) -> None:
        """Create the ranks, or pass the error on."""
        result = calls[root].value
        if not isinstance(result, MPIError):
            result = _add_ranks(calls, result, call), [count for _, count in result]
        for each in calls:
            each.value = result

    result = comm._agree(call, value, answer, frame)
    if isinstance(result, MPIError):
        raise result
    state, counts = result
    return Intercomm.make(state, 0, comm._task), counts


def _add_ranks(calls: list[CollectiveCall], programs: list[tuple[Script, int]], call: str) -> IntercommState:
    """Create the ranks of some programs; return the state of the intercommunicator to them.

    Args:
        calls: the calls of the ranks that spawn.
        programs: the programs and their numbers of ranks.
        call: "Spawn" or "Spawn_multiple".
    """
    shared = calls[0].comm
    scheduler = shared.scheduler
    scripts = [(script, number) for number, (script, count) in enumerate(programs) for _ in range(count)]
    tasks = scheduler.add_ranks(scripts, max(each.entered for each in calls), calls[0].past)
    make_world(scheduler, tasks)
    state = IntercommState(scheduler, (shared.ranks, tuple(task.rank for task in tasks)), call)
    for task in tasks:
        task.parent = Intercomm.make(state, 0, task)
        for handle in (task.world, task.self_comm, task.parent):
            remove_handle(handle)  # the program does not create it
    return state


def check_hints(commands: Sequence[Any], info: Any) -> None:
    """Raise ValueError if ``info`` is a list of more or fewer hints than there are commands."""
    if isinstance(info, list | tuple):
        _one_per_command("Spawn_multiple", "info", commands, info)
