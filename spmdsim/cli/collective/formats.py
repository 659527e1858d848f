"""``spmdsim collective export``: write schedules for other tools."""

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
from spmdsim.cli.output import refuse_options, remark, require_writable_file, write_file
from spmdsim.printing import say

EXPORT_EXAMPLES = """\
examples:
  spmdsim collective export all_reduce ring -n 8 -b 64K -o ring.goal
  spmdsim collective export all_reduce ring -n 8 --format msccl -o ring.xml
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
