"""``spmdsim collective show``, ``list`` and ``compare_algorithms``: print algorithms.

Each of the three commands has a section of this file.
"""

from __future__ import annotations

import argparse
from fractions import Fraction
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from spmdsim.cli.collective.schedule_arguments import (
    JUDGED,
    OPTIONS,
    ROUNDING,
    SCHEDULE,
    build_schedule,
    find_algorithm,
    parse_bytes,
    refuse_unused_chunks,
)
from spmdsim.cli.main import PICTURES, command, several, value, varied
from spmdsim.cli.output import emit_json, refuse_options, wants_pictures, write_pictures
from spmdsim.errors import many
from spmdsim.printing import line_columns, say
from spmdsim.tables import Table

if TYPE_CHECKING:
    from spmdsim.collectives import Algorithm, Schedule
    from spmdsim.collectives.facts import Counts, Facts
    from spmdsim.collectives.history import History

SHOW_EXAMPLES = """\
examples:
  spmdsim collective show all_reduce ring -n 4                   chunks, messages and counts
  spmdsim collective show all_reduce ring -n 256 --only counts   only the counts, for many ranks
  spmdsim collective show all_reduce my.py:my_ring -n 4          your own algorithm, as for check
  spmdsim collective show broadcast binomial -n 8 --svg tree.svg
"""

LIST_EXAMPLES = """\
examples:
  spmdsim collective list
  spmdsim collective list all_gather
"""

DIFF_EXAMPLES = """\
examples:
  spmdsim collective diff all_reduce ring recursive_doubling -n 8
  spmdsim collective diff all_reduce my.py:my_ring ring -n 4    your own algorithm beside a known one
"""

#: Sections of the output that ``--only`` selects.
SECTIONS = ("states", "messages", "counts")
#: Most lines of states, one per rank and round, that are printed.
MOST_STATE_LINES = 1024


@command(
    "Show an algorithm: the chunks that each rank owns after each round (new ones in brackets), the messages"
    " as arrows, and counts per rank beside the lower bounds, in multiples of the message size m.",
    SHOW_EXAMPLES,
    "collective",
    "algorithm",
    *SCHEDULE,
    ROUNDING,
    value("-b --bytes", "SIZE", "counts in bytes for this message size, such as 1M"),
    "--itemsize",
    several("--only", "", "only this section (repeatable)", choices=SECTIONS),
    *PICTURES,
    "--json",
    help="show an algorithm step by step: chunks per rank, messages, counts, lower bounds",
    **JUDGED,
)
def show_algorithm(args: argparse.Namespace) -> int:
    """Print or draw an algorithm step by step; return 1 if its schedule is wrong, else 0.

    * Pictures (``--svg``, ``--html``) replace the printed text, unless ``--only`` selects what to print.
    * ``--json`` prints the facts instead of the text, also beside pictures.
    * ``--only counts`` alone does not compute the states, so large rank counts are possible.

    Args:
        args: the command's arguments.

    Raises:
        InputError: If an option has no effect, or the user's file or a size cannot be read.
        ScheduleError: If the algorithm is unknown, or does not support its arguments.
    """
    from spmdsim.collectives.history import unroll

    _refuse_unused_options(args)
    schedule = build_schedule(args, args.algorithm)
    if not wants_pictures(args) and not args.json and set(args.only) == {"counts"}:
        return _print_counts_only(schedule, args)
    story = unroll(schedule)
    has_picture = write_pictures(args, story)
    if args.json:
        emit_json(_schedule_facts(story, args))
    elif not has_picture or args.only:
        say(*_format_sections(story, args))
    return 1 if story.findings else 0


def _refuse_unused_options(args: argparse.Namespace) -> None:
    """Raise InputError for an option that has no effect with the other arguments.

    ``--chunks`` has an effect only with a user's algorithm, and ``--itemsize`` and ``--rounding`` only with
    ``--bytes``.
    """
    refuse_unused_chunks(args, args.algorithm)
    if args.bytes is None:
        refuse_options(args, "--itemsize --rounding", "--bytes, the message that is cut")


def _print_counts_only(schedule: Schedule, args: argparse.Namespace) -> int:
    """Verify a schedule and print its rounds and bytes; return 1 if it is wrong, else 0.

    For a wrong schedule, the verdict with the findings is printed instead.

    Args:
        schedule: the schedule.
        args: the command's arguments: ``bytes`` and ``itemsize``.
    """
    from spmdsim.collectives.facts import facts_of
    from spmdsim.collectives.verification import verify

    verdict = verify(schedule)
    if not verdict.ok:
        say(str(verdict))
        return 1
    facts = facts_of(schedule, verdict)
    say(*_format_counts(facts, args))
    return 0


def _format_sections(story: History, args: argparse.Namespace) -> list[object]:
    """Return the lines about a schedule: its head, and the sections that ``--only`` selects.

    The head has the name, the description and the errors. The sections are

    * "states": the chunks on each rank after each round. If they would have more than :data:`MOST_STATE_LINES` (1,024)
      lines, one per rank and state, one line with both numbers replaces them;
    * "messages";
    * "counts": not for a wrong schedule.

    Args:
        story: the executed schedule.
        args: the command's arguments: ``only`` (a list of sections; [] selects all), ``bytes`` and ``itemsize``.

    Returns:
        Texts, ``rich`` texts and tables, for :func:`~spmdsim.printing.say`.
    """
    from spmdsim.collectives.facts import facts_of
    from spmdsim.figures.schedule_figures import highlight, message_lines, state_legend, state_lines

    schedule, sections = story.schedule, args.only or SECTIONS
    out: list[object] = [schedule.name, schedule.algorithm.about, ""]
    out += [f"wrong: {finding}" for finding in story.findings]
    if "states" in sections and story.states and story.cells:
        if schedule.size * len(story.states) > MOST_STATE_LINES:
            out += [f"({schedule.size} ranks x {len(story.states)} states are too many to print)", ""]
        else:
            out += [state_legend(schedule), ""]
            for index in range(len(story.states)):
                out += [highlight(state_lines(story, index)), ""]
    if "messages" in sections:
        legend, *arrows = message_lines(story)
        out += [legend, highlight(arrows), ""]
    if "counts" in sections and not story.findings:
        out += _format_counts(facts_of(schedule), args)
    return out


def _count_bytes(schedule: Schedule, args: argparse.Namespace) -> Counts:
    """Count the bytes of a schedule for ``--bytes`` per message and ``--itemsize`` per element."""
    from spmdsim.collectives.facts import count

    return count(schedule, parse_bytes(args.bytes), args.itemsize)


def _format_counts(facts: Facts, args: argparse.Namespace) -> list[object]:
    """Return the texts and the table of a correct schedule's counts, to be printed.

    First come lines of totals and lower bounds, then a blank line, then a table with a row per rank.

    Args:
        facts: verdict, counts and lower bounds of the schedule.
        args: the command's arguments. With ``bytes`` the counts are bytes for that message size and ``itemsize``.
            If ``bytes`` is None, they are multiples of the message size m.

    Raises:
        InputError: If ``--bytes`` is no size.
    """
    from spmdsim.figures.schedule_figures import fact_lines

    if args.bytes is None:
        return [*fact_lines(facts), "", _make_rank_table(facts, facts.counts, facts.unit)]
    counts = _count_bytes(facts.verdict.schedule, args)
    return [*fact_lines(facts, counts, parse_bytes(args.bytes)), "", _make_rank_table(facts, counts)]


def _make_rank_table(facts: Facts, counts: Counts, unit: int = 0) -> Table:
    """Return the table of messages and bytes per rank, with ranks of equal counts in one row.

    Rows are in the order of their lowest ranks, and name them such as "0..2, 5". Reduced bytes include those that a
    rank combines locally. The last column is the peak buffer of a rank in bytes.

    Args:
        facts: facts about the schedule; only its number of ranks is used.
        counts: counts per rank, in bytes.
        unit: the message size m in bytes, to write bytes as multiples of m, such as "0.75 m"; 0 to write them as
            bytes.
    """
    from spmdsim.collectives.facts import as_share
    from spmdsim.collectives.instructions import name_runs

    def words(number: int) -> str:
        return as_share(Fraction(int(number), unit)) if unit else f"{int(number):,}"

    groups: dict[tuple[object, ...], list[int]] = {}
    for rank in range(facts.verdict.schedule.size):
        byte_counts = (
            counts.bytes_sent[rank],
            counts.bytes_received[rank],
            counts.bytes_reduced[rank] + counts.bytes_combined[rank],
            counts.peak_bytes[rank],
        )
        messages = int(counts.messages_sent[rank]), int(counts.messages_received[rank])
        key = (*messages, *map(words, byte_counts))
        groups.setdefault(key, []).append(rank)
    columns = (
        "ranks",
        "messages sent",
        "messages received",
        "bytes sent",
        "bytes received",
        "bytes reduced",
        "peak buffer",
    )
    rows = [(", ".join(name_runs(ranks)), *key) for key, ranks in groups.items()]
    return Table(columns, rows, right=range(1, len(columns)))


def _counts_in_bytes(schedule: Schedule, args: argparse.Namespace) -> dict[str, object]:
    """Return the counts of a correct schedule in bytes with their lower bounds, for JSON.

    Args:
        schedule: the schedule.
        args: the command's arguments: ``bytes``, the message size, and ``itemsize``.

    Returns:
        A dict with these keys:

        * "message": the message size in bytes;
        * "critical_bytes" and "critical_worked_bytes": bytes on the critical path, transferred and reduced;
        * "bound": a dict with the lower bounds of these two numbers, by their names;
        * "bytes_sent", "bytes_received", "bytes_reduced", "bytes_combined" and "peak_bytes": arrays of a number per
          rank.
    """
    from spmdsim.collectives.facts import bound_bytes

    counts, nbytes = _count_bytes(schedule, args), parse_bytes(args.bytes)
    names = ("critical_bytes", "critical_worked_bytes")
    per_rank = ("bytes_sent", "bytes_received", "bytes_reduced", "bytes_combined", "peak_bytes")
    bound = dict(zip(names, bound_bytes(schedule, nbytes)))
    return {
        "message": nbytes,
        "bound": bound,
        **{name: getattr(counts, name) for name in (*names, *per_rank)},
    }


def _schedule_facts(story: History, args: argparse.Namespace) -> dict[str, Any]:
    """Return the facts about a schedule for JSON.

    Args:
        story: the executed schedule.
        args: the command's arguments: ``only``, ``bytes`` and ``itemsize``. A section is included if ``only`` has its
            name or is empty.

    Returns:
        A dict with these keys:

        * "name", the verdict and, as section "counts", the counts by name; a wrong schedule has None for each count;
        * "messages", a section: a list of messages per round;
        * "states", a section: per round and rank, the contributors to each chunk;
        * "in_bytes": with ``--bytes`` and the section "counts"; None for a wrong schedule.
    """
    from spmdsim.collectives.facts import COUNTED, facts_of, uncounted_facts

    schedule, sections = story.schedule, args.only or SECTIONS
    if story.findings:
        facts = uncounted_facts(
            schedule.algorithm,
            schedule.size,
            schedule.root,
            [str(finding) for finding in story.findings],
            dict(schedule.options),
            schedule.chunk_count,
        )
    else:
        facts = facts_of(schedule).to_dict()
    if "counts" not in sections:
        facts = {key: fact for key, fact in facts.items() if key not in COUNTED}
    elif args.bytes is not None:
        facts["in_bytes"] = None if story.findings else _counts_in_bytes(schedule, args)
    facts["name"] = schedule.name
    if "messages" in sections:
        facts["messages"] = [[_message_facts(message) for message in step] for step in story.steps]
    if "states" in sections:
        facts["states"] = [
            [_state_facts(story, entries) for entries in state.holds] for state in story.states
        ]
    return facts


def _message_facts(message: Any) -> dict[str, object]:
    """Return the ranks and chunks of a message for JSON, and whether its receiver reduces it.

    The keys are "source", "target", "chunks" (a list of chunk numbers) and "reduces". ``message`` is a
    :class:`~spmdsim.collectives.history.RoundMessage`.
    """
    return {
        "source": message.source,
        "target": message.target,
        "chunks": list(message.chunks),
        "reduces": message.reduces,
    }


def _state_facts(story: History, entries: dict[Any, Any]) -> dict[str, object]:
    """Return the contributors to each chunk that one rank owns after a round, for JSON."""
    return {str(chunk): story.contributors(entry) for chunk, entry in sorted(entries.items())}


# ---------------------------------------------------------------- list

#: Rows of the legend beside those of the names in formulas: symbol and meaning.
LEGEND_ROWS = (
    ("time", "rounds * alpha + m * (beta * seconds per byte + gamma * seconds per reduced byte)"),
    ("alpha", "seconds per round"),
    ("m", "message size in bytes"),
    ("-", "no formula, or it differs between rank counts; `collective show` counts it"),
)


@command(
    "List the algorithms of one collective or of all.",
    LIST_EXAMPLES,
    varied("collective", nargs="?", help="such as all_reduce; all if left out"),
    "--json",
    help="list all algorithms with their conditions and cost formulas",
)
def list_algorithms(args: argparse.Namespace) -> int:
    """Print a table of the algorithms of ``args.collective``, or of each collective; return 0.

    A legend of the symbols in the cost formulas follows. ``--json`` prints the facts of each algorithm instead.

    Raises:
        SpmdError: If the collective is unknown.
    """
    from spmdsim.collectives import algorithms
    from spmdsim.collectives.algorithm import NAMES

    entries = algorithms(args.collective)
    if args.json:
        emit_json([_algorithm_facts(entry) for entry in entries])
        return 0
    columns = ("algorithm", "rank counts", "rounds", "beta", "gamma", "in order", "what it does")
    rows: dict[str, list[tuple[str, ...]]] = {}
    for entry in entries:
        rows.setdefault(entry.collective.name, []).append(_format_row(entry))
    for name, table_rows in rows.items():
        say(Table(columns, table_rows, name), "")
    say(Table(("symbol", "meaning"), (*LEGEND_ROWS, *NAMES.items()), "symbols in formulas"), "")
    return 0


def _format_row(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the cells of an algorithm's row in the table of ``collective list``.

    1. Name.
    2. Rank counts that the algorithm supports.
    3. Number of rounds as a formula, with the condition under which formulas 3 to 5 hold, such as
       "2·cg + fh if n % g == 0".
    4. Bytes of the largest message of each round, summed over the rounds, as a multiple of the collective's size,
       such as "2·(n-1)".
    5. Bytes of the largest block that is reduced in each round, summed and written as in 4.
    6. "yes" if operands are combined in rank order, "no" if not, "-" if that is not known.
    7. Description, with the options and the publication that defines the algorithm.

    Cells 3 to 5 are "-" if the algorithm has no formulas.
    """
    formula = algorithm.formula
    order = {True: "yes", False: "no", None: "-"}[algorithm.in_order]
    options = "".join(f" --{name} {value}" for name, value in algorithm.options)
    costs = ("-", "-", "-")
    if formula is not None:
        condition = f" if {formula.only}" if formula.only else ""
        costs = (formula.steps + condition, formula.beta, formula.gamma)
    notes = [f"options:{options}"] if options else []
    notes += [f"source: {algorithm.source}"] if algorithm.source else []
    about = algorithm.about + (f" ({'; '.join(notes)})" if notes else "")
    return (algorithm.name, algorithm.condition_words, *(_readable_formula(c) for c in costs), order, about)


def _readable_formula(expression: str) -> str:
    """Return a formula of costs without its guard for a single rank, with "·" and "^" as operators.

    >>> _readable_formula("(n-2+s if n > 1 else 0)"), _readable_formula("2*2**c")
    ('n-2+s', '2·2^c')
    """
    if expression.startswith("(") and expression.endswith("if n > 1 else 0)"):
        expression = expression[1:].partition(" if ")[0]
    return expression.replace("**", "^").replace("*", "·")


def _algorithm_facts(algorithm: Algorithm) -> dict[str, object]:
    """Return the facts of an algorithm for JSON: conditions, options, costs, names elsewhere.

    The keys are:

    * "collective", "algorithm" and "about" (a description);
    * "rank_counts": the condition on the number of ranks, in words;
    * "options": a description by name;
    * "in_order": True if it reduces in rank order; None if unknown;
    * "formula": a dict of the texts "rounds", "beta", "gamma" and "only_if" (None without a condition); None without a
      formula;
    * "source": the publication that defines it; empty if it is common knowledge;
    * "libraries": a list of the algorithm's names by library.
    """
    form = algorithm.formula
    formula = form and {
        "rounds": form.steps,
        "beta": form.beta,
        "gamma": form.gamma,
        "only_if": form.only or None,
    }
    return {
        "collective": algorithm.collective.name,
        "algorithm": algorithm.name,
        "about": algorithm.about,
        "rank_counts": algorithm.condition_words,
        "options": dict(algorithm.options),
        "in_order": algorithm.in_order,
        "formula": formula,
        "source": algorithm.source,
        "libraries": {library: names.split() for library, names in algorithm.libraries},
    }


# ---------------------------------------------------------------- diff


@command(
    "Compare two algorithms of a collective: counts, reduction tree, and messages round by round.",
    DIFF_EXAMPLES,
    "collective",
    value("first", "", "an algorithm, or FILE.py:FUNCTION"),
    value("second", "", "another algorithm, or FILE.py:FUNCTION"),
    *SCHEDULE,
    *PICTURES,
    "--json",
    help="compare two algorithms side by side",
    **JUDGED,
)
def compare_algorithms(args: argparse.Namespace) -> int:
    """Print counts and messages of two algorithms side by side; return 0.

    Messages are printed only if a round differs. ``--json`` prints the facts of both and the number of the first
    different round from 0, or null. Pictures are written in addition. Each algorithm gets the options that it has.

    Args:
        args: the command's arguments.

    Raises:
        InputError: If an option is set that neither algorithm has, or a user's file cannot be loaded.
        ScheduleError: If an algorithm is unknown, does not support its arguments, or is wrong.
    """
    from spmdsim.collectives.facts import facts_of
    from spmdsim.collectives.history import unroll

    names = (args.first, args.second)
    refuse_unused_chunks(args, *names)
    options = [dict(find_algorithm(args.collective, name, args.chunks).options) for name in names]
    for option in OPTIONS:
        if not any(option in has for has in options):
            refuse_options(args, f"--{option}", f"algorithms that have it: {' and '.join(names)} do not")
    schedules = [
        build_schedule(args, name, [option for option in OPTIONS if option in has])
        for name, has in zip(names, options)
    ]
    facts = [facts_of(s) for s in schedules]
    stories = [unroll(s) for s in schedules]
    differs = _first_different_round(*stories)
    write_pictures(args, *stories)
    if args.json:
        emit_json({"first": facts[0].to_dict(), "second": facts[1].to_dict(), "differs_from_round": differs})
        return 0
    titles = [s.algorithm.name for s in schedules]
    first_cells, second_cells = map(_comparison_cells, facts)
    rows = [(label, cell, second_cells[label]) for label, cell in first_cells.items()]
    title = f"{schedules[0].collective.name} on {many(args.ranks, 'rank')}, m = {schedules[0].collective.size_means}"
    say(Table(("", *titles), rows, title), "")
    if differs is None:
        say("their messages are identical in every round")
    else:
        if differs:
            say(f"their messages are identical in the first {many(differs, 'round')}")
        _print_side_by_side(stories, titles)
    return 0


def _first_different_round(first: History, second: History) -> int | None:
    """Return the number of the first round, from 0, in which messages differ; None if no round differs."""
    for number, (messages, others) in enumerate(zip_longest(first.steps, second.steps)):
        if messages is None or others is None or set(messages) != set(others):
            return number
    return None


def _comparison_cells(facts: Facts) -> dict[str, str]:
    """Return the cells of one algorithm in the comparison of two, by the label of the row.

    The labels and their order are equal for all algorithms, so that two can be printed side by side: steps, bytes and
    messages of all ranks and of the busiest rank, the reduction, and the score. Bytes are multiples of the message
    size m, such as "1.75 m". Cells about reductions are "-" if the collective does not reduce; answers are "yes" or
    "no".

    Args:
        facts: the facts of a correct schedule.
    """
    from spmdsim.collectives.facts import as_share

    verdict, counts = facts.verdict, facts.counts

    def answer(yes: bool) -> str:
        return ("yes" if yes else "no") if verdict.schedule.collective.reduces else "-"

    return {
        "rounds": str(facts.steps),
        "critical bytes": as_share(facts.beta),
        "reduced bytes": as_share(facts.gamma),
        "messages, all ranks": str(counts.total_messages),
        "bytes, all ranks": as_share(sum(facts.shares("bytes_sent"))),  # type: ignore[arg-type]
        "most messages of a rank": str(int(counts.messages_sent.max())),
        "most bytes of a rank": as_share(max(facts.shares("bytes_sent"))),
        "largest peak buffer": as_share(max(facts.shares("peak_bytes"))),
        "depth of the reduction tree": str(verdict.depth) if verdict.schedule.collective.reduces else "-",
        "operands in rank order": answer(verdict.in_order),
        "same bits on all ranks": answer(verdict.same_tree),
        "score (100: both bounds)": f"{facts.score:.1f}",
    }


def _print_side_by_side(stories: list[History], names: list[str]) -> None:
    """Print a legend, and the messages of two algorithms side by side, or one below the other if too wide.

    The limit is the terminal's width, or 150 characters in files and pipes. ``stories`` are the two executed
    schedules, ``names`` their titles.
    """
    from spmdsim.figures.schedule_figures import arrow_lines, highlight, message_legend

    first, second = ([name, *arrow_lines(story)] for name, story in zip(names, stories))
    width = max(map(len, first)) + 4
    lines = [left.ljust(width) + right for left, right in zip_longest(first, second, fillvalue="")]
    if max(map(len, lines)) > (line_columns() or 150):
        lines = [*first, "", *second]
    say(message_legend(stories[0].schedule), "", highlight(lines))
