"""``spmdsim collective goal``: simulate anybody's GOAL file, with LogGOPS parameters."""

from __future__ import annotations

import argparse

from spmdsim.cli.arguments import Command, Subparsers, amount
from spmdsim.errors import ScheduleError
from spmdsim.reading import read_text, readable

PARAMETERS = {
    "L": "latency of the network",
    "o": "cpu time per message on each side",
    "g": "gap between messages",
    "G": "time per byte",
    "O": "cpu time per byte",
    "S": "longest message sent without waiting for its receiver",
}


def add_parser(subparsers: Subparsers) -> None:
    """Declare the subcommand."""
    add = Command(
        subparsers,
        "goal",
        run,
        "Simulate a GOAL file in LogGOPS time: when each rank ends. Defaults are LogGOPSim's, in ns."
        " A deadlock or a message that nobody receives is reported.",
        help="simulate a GOAL file (LogGOPSim's format)",
    )
    add("file", help="a GOAL text file")
    for name, words in PARAMETERS.items():
        add(f"-{name}", type=amount, metavar="T", help=words)
    add("--json")


def run(args: argparse.Namespace) -> int:
    """Simulate; 1 when the program cannot end."""
    from spmdsim.cli.output import emit_json, say
    from spmdsim.collectives.formats.goal_format import read_goal
    from spmdsim.cost.event_simulation import EventProgram, LogGOPS, simulate_program

    text = read_text(args.file, "a GOAL file")
    with readable(args.file, "a GOAL file"):
        goal = read_goal(text)
    parameters = {name: getattr(args, name) for name in PARAMETERS if getattr(args, name) is not None}
    try:
        simulated = simulate_program(goal.fill(EventProgram(len(goal.ranks))), LogGOPS(**parameters))
    except ScheduleError as error:
        say(f"wrong: {error.message}")
        return 1
    if args.json:
        emit_json(
            {
                "makespan": simulated.makespan,
                "rank_ends": list(simulated.rank_ends),
                "events": simulated.events,
            }
        )
        return 0
    for rank, end in enumerate(simulated.rank_ends):
        say(f"rank {rank} ends at {end:g}")
    say(f"makespan {simulated.makespan:g}, {simulated.events} events")
    return 0
