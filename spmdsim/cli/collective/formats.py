"""``spmdsim collective export`` and ``goal``: write schedules for other tools, and simulate GOAL files."""

from __future__ import annotations

import argparse

from spmdsim.cli.collective.schedule_arguments import (
    JUDGED,
    ROUNDING,
    SCHEDULE,
    build_schedule,
    parse_bytes,
    refuse_unused_chunks,
)
from spmdsim.cli.main import amount, choice, command, value
from spmdsim.cli.output import emit_json, refuse_options, remark, require_writable_file, write_file
from spmdsim.errors import ScheduleError, many
from spmdsim.printing import say
from spmdsim.reading import read_text, readable

EXPORT_EXAMPLES = """\
examples:
  spmdsim collective export all_reduce ring -n 8 -b 64K -o ring.goal
  spmdsim collective export all_reduce ring -n 8 --format msccl -o ring.xml
"""

GOAL_EXAMPLES = """\
examples:
  spmdsim collective goal ring.goal                 with the parameters of LogGOPSim
  spmdsim collective goal ring.goal -L 1000 -G 0.5  latency 1,000 ns, and 0.5 ns per byte
"""


@command(
    "Write a schedule as GOAL text (LogGOPSim) or as MSCCL XML.",
    EXPORT_EXAMPLES,
    "collective",
    "algorithm",
    *SCHEDULE,
    ROUNDING,
    choice("--format", ("goal", "msccl"), "goal (default) or msccl", "goal"),
    value("-b --bytes", "SIZE", "message size for GOAL (1M)", default="1M"),
    "--itemsize",
    value("--reduce-time", "T", "time to reduce a byte, in ns (0: not simulated)", amount, default=0.0),
    value("-o --output", "FILE", "write here instead of printing"),
    help="write a schedule for other tools: GOAL (LogGOPSim), MSCCL XML",
    **JUDGED,
)
def export(args: argparse.Namespace) -> int:
    """Write a schedule as GOAL text or MSCCL XML to ``--output``, or print it; return 0.

    If ``--output`` cannot be written, the error is raised before the schedule is made. A failure during the write is
    reported at the end of the command, which then exits with code 2.

    Args:
        args: the command's arguments. ``bytes``, ``itemsize`` and ``reduce_time`` are for GOAL only.

    Raises:
        InputError: If an option has no effect with the format or the algorithm, the file cannot be written, or a value
            cannot be parsed.
        ScheduleError: If the algorithm is unknown, does not support its arguments, or cannot be written in the format.
    """
    from spmdsim.collectives.formats.goal_format import goal_of
    from spmdsim.collectives.formats.msccl import msccl_xml

    refuse_unused_chunks(args, args.algorithm)
    if args.format == "msccl":
        refuse_options(
            args, "--bytes --itemsize --reduce-time --rounding", "--format goal: msccl has no sizes"
        )
    if args.output is not None:
        require_writable_file(args.output)
    schedule = build_schedule(args, args.algorithm)
    if args.format == "goal":
        text = goal_of(schedule, parse_bytes(args.bytes), args.itemsize, args.reduce_time).to_text()
    else:
        text = msccl_xml(schedule)
    if args.output is None:
        say(text.rstrip("\n"))
        return 0
    if write_file(args.output, text):
        remark(f"wrote {args.output}")
    return 0


#: Parameters of the LogGOPS model and their meanings, for the help of ``collective goal``.
PARAMETERS = {
    "L": "latency of the network in ns",
    "o": "processor time per message on each side, in ns",
    "g": "gap between messages in ns",
    "G": "time per byte in ns",
    "O": "processor time per byte in ns",
    "S": "longest message in bytes that is sent without waiting for its receiver",
}


@command(
    "Simulate a GOAL file in the LogGOPS model, and print the end of each rank in ns. Defaults are"
    " LogGOPSim's. Deadlocks and messages that are not received are reported.",
    GOAL_EXAMPLES,
    value("file", "", "a GOAL text file"),
    *(value(f"-{name}", "T", words, amount) for name, words in PARAMETERS.items()),
    "--json",
    help="simulate a GOAL file (LogGOPSim's format)",
)
def goal(args: argparse.Namespace) -> int:
    """Simulate a GOAL file and print the time at which each rank ends, in ns.

    The output also has the makespan (the end of the last rank) and the number of events; ``--json`` prints the three as
    JSON.

    Args:
        args: the command's arguments: ``file``, ``json`` and the parameters of LogGOPS. A parameter that is None has
            LogGOPSim's default.

    Returns:
        0, or 1 if the program deadlocks or a message is not received. Then only the error is printed.

    Raises:
        InputError: If the file cannot be read as GOAL.
    """
    from spmdsim.collectives.formats.goal_format import read_goal
    from spmdsim.cost.event_simulation import EventProgram, LogGOPS, simulate_program

    text = read_text(args.file, "a GOAL file")
    with readable(args.file, "a GOAL file"):
        program = read_goal(text)
    parameters = {name: getattr(args, name) for name in PARAMETERS if getattr(args, name) is not None}
    try:
        simulated = simulate_program(program.fill(EventProgram(len(program.ranks))), LogGOPS(**parameters))
    except ScheduleError as error:
        say(f"wrong: {error.message}")
        return 1
    if args.json:
        ends = list(simulated.rank_ends)
        emit_json({"makespan": simulated.makespan, "rank_ends": ends, "events": simulated.events})
        return 0
    for rank, end in enumerate(simulated.rank_ends):
        say(f"rank {rank} ends at {end:,.10g} ns")
    say(f"makespan {simulated.makespan:,.10g} ns, {many(simulated.events, 'event')}")
    return 0
