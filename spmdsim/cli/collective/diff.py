"""``spmdsim collective diff``: two algorithms side by side."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from spmdsim.cli.arguments import Command, Subparsers
from spmdsim.cli.collective.schedule_arguments import JUDGES, add_schedule_arguments, schedule_from

if TYPE_CHECKING:
    from spmdsim.collectives.facts import Facts
    from spmdsim.collectives.history import History


def add_parser(subparsers: Subparsers) -> None:
    """Declare the subcommand."""
    add = Command(
        subparsers,
        "diff",
        run,
        "Put two algorithms of a collective side by side: counts, tree, and their messages round by round.",
        help="two algorithms side by side",
    )
    add("collective")
    add("first", help="an algorithm, or FILE.py:FUNCTION")
    add("second", help="the other")
    add_schedule_arguments(add)
    add.pictures()
    add("--json")
    add.limits(JUDGES)


def run(args: argparse.Namespace) -> int:
    """Compare; 0 whether they differ or not."""
    from spmdsim.cli.output import console, emit_json, say, table, write_pictures
    from spmdsim.collectives.facts import facts_of
    from spmdsim.collectives.history import unroll

    schedules = [_schedule(args, name) for name in (args.first, args.second)]
    facts = [facts_of(s) for s in schedules]
    stories = [unroll(s) for s in schedules]
    differs = next(
        (i for i, (a, b) in enumerate(zip(stories[0].steps, stories[1].steps)) if set(a) != set(b)),
        None if len(stories[0].steps) == len(stories[1].steps) else min(len(s.steps) for s in stories),
    )
    write_pictures(args, *stories)
    if args.json:
        emit_json({"first": facts[0].to_dict(), "second": facts[1].to_dict(), "differs_from_round": differs})
        return 0
    names = [s.algorithm.name for s in schedules]
    rows = [(label, *values) for label, *values in zip(_LABELS, *(_column(f) for f in facts))]
    title = f"{schedules[0].collective.name} on {args.ranks} ranks, m = {schedules[0].collective.size_means}"
    console().print(table(("", *names), rows, title=title))
    if differs is None:
        say("their messages are the same in every round")
    else:
        say(f"their messages are the same in the first {differs} rounds" if differs else "")
        _side_by_side(stories, names)
    return 0


def _schedule(args: argparse.Namespace, name: str):  # type: ignore[no-untyped-def]
    """The schedule, with only those options the algorithm has."""
    from spmdsim.cli.collective.schedule_arguments import find_algorithm

    options = dict(find_algorithm(args.collective, name, args.chunks).options)
    mine = argparse.Namespace(**vars(args))
    for option in ("segments", "group", "radix", "index"):
        if option not in options:
            setattr(mine, option, None)
    return schedule_from(mine, args.collective, name)


_LABELS = (
    "rounds", "critical bytes", "reduced bytes", "messages, all ranks", "bytes, all ranks", "most messages of a rank",
    "most bytes of a rank", "largest peak buffer", "depth of the reduction tree", "operands in rank order",
    "same bits on all ranks", "score (100: both bounds)",
)  # fmt: skip


def _column(facts: Facts) -> list[str]:
    from spmdsim.collectives.facts import as_share

    verdict, counts = facts.verdict, facts.counts
    reduces = verdict.schedule.collective.reduces
    return [
        str(facts.steps),
        as_share(facts.beta),
        as_share(facts.gamma),
        str(counts.total_messages),
        as_share(sum(facts.shares("bytes_sent"))),  # type: ignore[arg-type]
        str(int(counts.messages_sent.max())),
        as_share(max(facts.shares("bytes_sent"))),
        as_share(max(facts.shares("peak_bytes"))),
        str(verdict.depth) if reduces else "-",
        ("yes" if verdict.in_order else "no") if reduces else "-",
        ("yes" if verdict.same_tree else "no") if reduces else "-",
        f"{facts.score:.1f}",
    ]


def _side_by_side(stories: list[History], names: list[str]) -> None:
    from spmdsim.cli.output import console, line_columns
    from spmdsim.draw.schedule_text import grid, highlighted

    pictures = [[name, *grid(story)] for name, story in zip(names, stories)]
    width = max(map(len, pictures[0])) + 4
    length = max(map(len, pictures))
    left, right = (p + [""] * (length - len(p)) for p in pictures)
    lines = [a.ljust(width) + b for a, b in zip(left, right)]
    if max(map(len, lines)) > (line_columns() or 150):
        lines = [*pictures[0], "", *pictures[1]]
    console().print(highlighted(lines), soft_wrap=True)
