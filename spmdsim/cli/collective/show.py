"""``spmdsim collective show``: an algorithm step by step."""

from __future__ import annotations

import argparse
from fractions import Fraction
from typing import TYPE_CHECKING

from spmdsim.cli.arguments import Command, Subparsers
from spmdsim.cli.collective.schedule_arguments import (
    JUDGES,
    add_schedule_arguments,
    parse_bytes,
    schedule_from,
)

if TYPE_CHECKING:
    from rich.console import Console

    from spmdsim.collectives import Schedule
    from spmdsim.collectives.facts import Facts
    from spmdsim.collectives.history import History

PARTS = ("states", "messages", "counts")
MOST_STATES = 64


def add_parser(subparsers: Subparsers) -> None:
    """Declare the subcommand."""
    add = Command(
        subparsers,
        "show",
        run,
        "Show an algorithm: who holds what after each round (new entries in brackets), the messages as"
        " arrows, and counts per rank against the lower bounds, in multiples of the message size m.",
        help="an algorithm step by step: who holds what, messages, counts against the lower bound",
    )
    add("collective")
    add("algorithm")
    add_schedule_arguments(add)
    add("-b", "--bytes", metavar="SIZE", help="counts in bytes for this message size, such as 1M")
    add("--itemsize")
    add("--only", choices=PARTS, action="append", help="only this part (repeatable)")
    add.pictures()
    add("--ascii", action="store_true", help="no characters beyond ASCII")
    add("--json")
    add.limits(JUDGES)


def run(args: argparse.Namespace) -> int:
    """Show; 1 when the schedule is wrong."""
    from spmdsim.cli.output import emit_json, write_pictures
    from spmdsim.collectives.history import unroll

    schedule = schedule_from(args, args.collective, args.algorithm)
    if args.svg is args.html is None and not args.json and set(args.only or ()) == {"counts"}:
        return _counts_only(schedule, args)
    story = unroll(schedule)
    drawn = write_pictures(args, story)
    if args.json:
        emit_json(_as_json(story))
    elif not drawn or args.only:
        _print(story, args)
    return 1 if story.findings else 0


def _counts_only(schedule: Schedule, args: argparse.Namespace) -> int:
    from spmdsim.cli.output import console, say
    from spmdsim.collectives.facts import facts_of
    from spmdsim.collectives.verification import verify
    from spmdsim.draw.schedule_text import fact_lines

    verdict = verify(schedule)
    if not verdict.ok:
        say(str(verdict))
        return 1
    facts = facts_of(schedule, verdict)
    say(*fact_lines(facts))
    console().print(_rank_table(facts, args))
    return 0


def _print(story: History, args: argparse.Namespace) -> None:
    from spmdsim.cli.output import console, say
    from spmdsim.draw.schedule_text import ASCII

    out = console()
    if not args.ascii:
        return _print_parts(story, args, out)
    with out.capture() as captured:
        _print_parts(story, args, out)
    say(captured.get().translate(ASCII).rstrip())


def _print_parts(story: History, args: argparse.Namespace, out: Console) -> None:
    from spmdsim.collectives.facts import facts_of
    from spmdsim.draw.schedule_text import fact_lines, highlighted, message_lines, state_lines

    def say(*lines: object) -> None:
        for line in lines:
            out.print(line, markup=False, soft_wrap=True)

    schedule, parts = story.schedule, args.only or PARTS
    say(schedule.name, schedule.algorithm.about, "")
    for finding in story.findings:
        say(f"wrong: {finding}")
    if "states" in parts and story.states and story.cells:
        if schedule.size * len(story.states) > MOST_STATES * 16:
            say(f"({schedule.size} ranks x {len(story.states)} states are too many to print)", "")
        else:
            say(_legend(schedule), "")
            for index in range(len(story.states)):
                out.print(highlighted(state_lines(story, index)), soft_wrap=True)
                say("")
    if "messages" in parts:
        out.print(highlighted(message_lines(story)), soft_wrap=True)
        say("")
    if "counts" in parts and not story.findings:
        facts = facts_of(schedule)
        say(*fact_lines(facts))
        out.print(_rank_table(facts, args))


def _legend(schedule: Schedule) -> str:
    if schedule.collective.reduces:
        return "cells: the ranks whose input is in the chunk; [new]; ∑ is the sum of all ranks"
    return "cells: the rank the chunk comes from; [new]"


def _rank_table(facts: Facts, args: argparse.Namespace) -> object:
    """Ranks that do the same in one row; in multiples of m, or in bytes if a size is given."""
    from spmdsim.cli.output import table
    from spmdsim.collectives.facts import as_share, count

    counted, unit = facts.counts, facts.unit
    if args.bytes is not None:
        unit = 0
        counted = count(facts.verdict.schedule, parse_bytes(args.bytes), args.itemsize)

    def words(number: int) -> str:
        return as_share(Fraction(int(number), unit)) if unit else f"{int(number):,}"

    groups: dict[tuple[object, ...], list[int]] = {}
    for rank in range(facts.verdict.schedule.size):
        key = (
            int(counted.messages_sent[rank]),
            int(counted.messages_received[rank]),
            words(counted.bytes_sent[rank]),
            words(counted.bytes_received[rank]),
            words(counted.bytes_reduced[rank] + counted.bytes_combined[rank]),
            words(counted.peak_bytes[rank]),
        )
        groups.setdefault(key, []).append(rank)
    columns = ("ranks", "messages sent", "received", "bytes sent", "received ", "reduced", "peak buffer")
    rows = [(_rank_words(ranks), *key) for key, ranks in groups.items()]
    return table(columns, rows, right=columns[1:])


def _rank_words(ranks: list[int]) -> str:
    from spmdsim.collectives.instructions import name_chunks

    return name_chunks(tuple(ranks)).partition(" ")[2]


def _as_json(story: History) -> dict[str, object]:
    from spmdsim.collectives.facts import facts_of

    schedule = story.schedule
    facts: dict[str, object] = {
        "name": schedule.name,
        "ok": False,
        "findings": [str(f) for f in story.findings],
    }
    if not story.findings:
        facts = facts_of(schedule).to_dict()
    facts["messages"] = [
        [
            {"source": m.source, "target": m.target, "chunks": list(m.chunks), "reduces": m.reduces}
            for m in step
        ]
        for step in story.steps
    ]
    facts["states"] = [
        [{str(c): story.contributors(v) for c, v in sorted(holds.items())} for holds in state.holds]
        for state in story.states
    ]
    return facts
