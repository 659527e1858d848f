"""``spmdsim collective export``: a schedule for other tools."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from spmdsim.cli.arguments import Command, Subparsers
from spmdsim.cli.collective.schedule_arguments import (
    JUDGES,
    add_schedule_arguments,
    parse_bytes,
    schedule_from,
)
from spmdsim.errors import InputError

if TYPE_CHECKING:
    from spmdsim.collectives.schedule import Schedule


def add_parser(subparsers: Subparsers) -> None:
    """Declare the subcommand."""
    add = Command(
        subparsers,
        "export",
        run,
        "Write a schedule as GOAL text (LogGOPSim), as MSCCL XML, or as Chakra traces (ASTRA-sim).",
        help="a schedule for other tools: GOAL (LogGOPSim), MSCCL XML, Chakra traces",
    )
    add("collective")
    add("algorithm")
    add_schedule_arguments(add)
    add(
        "--format",
        choices=("goal", "msccl", "chakra"),
        default="goal",
        help="goal (default), msccl, or chakra: OUTPUT.RANK.et per rank",
    )
    add("-b", "--bytes", default="1M", metavar="SIZE", help="message size for GOAL and Chakra (1M)")
    add("--itemsize")
    add("--reduce-time", type=float, default=0.0, metavar="T", help="calc time per reduced byte (0: none)")
    add("-o", "--output", metavar="FILE", help="write here instead of printing")
    add.limits(JUDGES)


def _write_traces(args: argparse.Namespace, schedule: Schedule) -> int:
    from spmdsim.cli.output import remark, write_file
    from spmdsim.collectives.formats.chakra import chakra_files
    from spmdsim.collectives.formats.goal_format import goal_of

    if args.output is None:
        raise InputError("--format chakra writes one file per rank; name them with -o NAME (NAME.RANK.et)")
    program = goal_of(schedule, parse_bytes(args.bytes), args.itemsize, args.reduce_time)
    for rank, data in enumerate(chakra_files(program)):
        write_file(f"{args.output}.{rank}.et", data)
    remark(f"wrote {len(program.ranks)} files {args.output}.RANK.et")
    return 0


def run(args: argparse.Namespace) -> int:
    """Export."""
    from spmdsim.cli.output import remark, say, write_file
    from spmdsim.collectives.formats.goal_format import goal_of
    from spmdsim.collectives.formats.msccl import msccl_xml

    schedule = schedule_from(args, args.collective, args.algorithm)
    if args.format == "chakra":
        return _write_traces(args, schedule)
    if args.format == "goal":
        nbytes = parse_bytes(args.bytes)
        text = goal_of(schedule, nbytes, args.itemsize, args.reduce_time).to_text()
    else:
        text = msccl_xml(schedule)
    if args.output is None:
        say(text.rstrip("\n"))
        return 0
    write_file(args.output, text)
    remark(f"wrote {args.output}")
    return 0
