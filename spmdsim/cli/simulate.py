"""``spmdsim simulate script.py -n 64 [args...]``: run an MPI program on virtual ranks, and report mistakes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from spmdsim.cli.command_parser import Parser
from spmdsim.cli.main import (
    Row,
    add_limits,
    choice,
    command,
    declare_arguments,
    declare_flag,
    run_command_limited,
    value,
    varied,
    whole_number,
)
from spmdsim.cli.output import emit_json, wants_pictures, writable, write_file, write_pictures
from spmdsim.errors import InputError

DESCRIPTION = """\
Run an ordinary mpi4py program on N virtual ranks in one process: no MPI and no mpi4py needed.
It reports deadlocks, lost messages, mismatched collectives, wrong types, and sends that work only
because the library buffers, in one sentence each, with ranks and lines.
"""
EPILOG = """\
Options stand before the script or right after it; everything else is an argument of the script (`--` ends the options).

Exit code: 0 nothing wrong, 1 something is wrong (with --strict also a warning),
2 wrong arguments or a limit that was reached, or the program's own exit status.
The program runs inside the simulator: it reports mistakes, but a program can falsify the report on purpose.
`spmdsim collective check` verifies algorithms that cannot.

examples:
  spmdsim simulate ring.py -n 64
  spmdsim simulate halo.py -n 16 --machine cluster --trace halo.json 1000
  spmdsim simulate -n 4 -m mpi4py.futures pool.py
  spmdsim simulate halo.py -n 16 --record halo.jsonl
  spmdsim simulate --replay halo.jsonl --machine cluster
"""


def parse_ranks(text: str) -> int | list[int]:
    """Return a number of ranks, or several such as ``1..9`` or ``2,4,8``.

    Raises:
        argparse.ArgumentTypeError: If the text is no whole number, and
            :func:`~spmdsim.cli.collective.schedule_arguments.rank_counts` refuses it, too.
    """
    from spmdsim.cli.collective.schedule_arguments import rank_counts

    if not set(text) & set(".,"):
        return int(whole_number(text))
    try:
        counts = rank_counts(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return counts if len(counts) > 1 else counts[0]


#: Default limit on the processor time of the program, in seconds.
SECONDS = 20
#: Largest number of rows of ``--waits``.
MOST_WAITS = 20
OPTIONS: tuple[str | Row, ...] = (
    value(
        "-n --ranks",
        "N",
        "number of ranks (default 4); several, such as 1..9 or 2,4,8, tell where it fails",
        parse_ranks,
    ),
    declare_flag("--strict", "no send is buffered; warnings are errors"),
    varied("--json", help="print the findings and the output as JSON"),
    declare_flag("--prefix", "print each line after its rank, as [3] ..."),
    value("--only", "RANK", "print the lines of one rank only", whole_number),
    value("--seed", "", "choose another legal order of ranks and wildcard receives", whole_number),
    value(
        "--explore", "RUNS", "run again with up to RUNS orders in which wildcards take messages", whole_number
    ),
    choice(
        "--like",
        ("strict", "openmpi", "mpich"),
        "library whose checks are made where libraries differ; strict: all that the standard forbids",
        "strict",
    ),
    value("--machine", "FILE", "machine name or file, for modelled time"),
    value(
        "--nodes", "HOSTS", "hosts of the ranks, such as a:2,b:2 or a,b,a,b; or a number of ranks per node"
    ),
    value("--algorithms", "A=B,C=D", "algorithms of collectives, such as all_reduce=ring,broadcast=binomial"),
    choice(
        "--compute",
        ("none", "measured"),
        "measured: processor time between MPI calls is modelled time; none: only compute(...) is",
        "none",
    ),
    value("--speed", "S[,S...]", "speed of computation for all ranks, or per rank, such as 1,1,0.5,1 (1)"),
    value("--noise", "X", "random factor on computation: deviation of its logarithm, such as 0.05 (0)"),
    value(
        "--record", "FILE", "write computation, messages and collectives of the run, for --replay", writable
    ),
    value("--replay", "FILE", "replay a recorded run instead of a script, such as on another --machine"),
    value("--trace", "FILE", "write a timeline for ui.perfetto.dev", writable),
    varied("--svg", help="write the timeline of the ranks as one SVG image"),
    varied("--html", help="write it as a self-contained HTML page"),
    declare_flag("--waits", "print where ranks wait, and for what: the 20 longest waiting times"),
    declare_flag("--quiet", "no findings and no summary, only the exit status"),
)


def _option_parser() -> argparse.ArgumentParser:
    """Return a parser of the options that may follow the script."""
    parser = Parser(prog="spmdsim simulate", add_help=False)
    declare_arguments(parser, OPTIONS)
    add_limits(parser.add_argument, SECONDS)
    return parser


def split_rest(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words after the script's name into options of this command and the script's own.

    The script's words begin at the first word that is no option of the command. Or they begin after ``--``, which is
    dropped. An option must have its full name; its value is the next word, or follows after ``=``.

    Args:
        words: the words after the script's name.

    Returns:
        The words of the options with their values, and all other words.

    >>> split_rest(["-n", "64", "--strict", "input.txt", "-n", "3"])
    (['-n', '64', '--strict'], ['input.txt', '-n', '3'])
    >>> split_rest(["--strict", "--", "-n", "3"])
    (['--strict'], ['-n', '3'])
    """
    actions = {name: action for action in _option_parser()._actions for name in action.option_strings}
    position = 0
    while position < len(words):
        word, equals, _ = words[position].partition("=")
        if words[position] == "--":
            return list(words[:position]), list(words[position + 1 :])
        if word not in actions:
            break
        takes_value = actions[word].nargs != 0 and not equals
        position += 2 if takes_value else 1
    return list(words[:position]), list(words[position:])


@command(
    DESCRIPTION,
    EPILOG,
    *OPTIONS,
    declare_flag("-m --module", "script is the name of a module, as for python -m, such as mpi4py.futures"),
    value("script", "", "the program: a Python file that imports mpi4py", nargs="?"),
    value("rest", "args", "its arguments", nargs=argparse.REMAINDER),
    limits=SECONDS,
)
def main(args: argparse.Namespace) -> int:
    """Run the script on virtual ranks; return its exit code, or the code of the findings.

    Options after the script are parsed first, and replace options before the script in ``args``. The script runs in a
    child process with limits.

    Raises:
        InputError: If the script cannot be read, the rank of ``--only`` does not exist, the script reaches a limit, or
            both or none of script and ``--replay`` are stated.
    """
    own_options, arguments = split_rest(args.rest)
    if own_options:
        _option_parser().parse_args(own_options, namespace=args)
    if args.script is None and args.replay is None:
        raise InputError("script must be given: spmdsim simulate SCRIPT, or spmdsim simulate --replay FILE")
    if args.script is not None and args.replay is not None:
        raise InputError("a script and --replay exclude each other: give one of them")
    if args.record is not None and isinstance(args.ranks, list):
        raise InputError("--record takes one number of ranks, got several")
    body = _simulate_counts if isinstance(args.ranks, list) else _simulate
    return run_command_limited(args, lambda: body(args, arguments), reads=True)


def _simulate(args: argparse.Namespace, arguments: list[str]) -> int:
    """Run the script on virtual ranks, print findings about it, and return the exit code.

    Lines that the ranks print go to stdout at once, findings to stderr at the end. ``--json`` prints a report as JSON
    instead of both; ``--quiet`` prints no findings. ``--trace`` and the options for pictures write files.

    Args:
        args: the options of the command. ``ranks`` is 4 if None. ``only`` is a rank whose lines are printed, or None
            for all.
        arguments: the script's own arguments.

    Returns:
        0 if nothing is wrong, 1 if the report has an error (with ``--strict`` also a warning), or the script's own exit
        code.

    Raises:
        InputError: If the rank of ``--only`` does not exist.
    """
    stdout, ranks = sys.stdout, 4 if args.ranks is None else args.ranks
    if args.only is not None and not 0 <= args.only < ranks:
        raise InputError(f"--only {args.only}: the ranks are 0 ... {ranks - 1}")

    def emit(rank: int, line: str) -> None:
        if not args.json and args.only in (None, rank):
            stdout.write(f"[{rank}] {line}\n" if args.prefix else f"{line}\n")

    report = _run_script(args, arguments, ranks, emit) if args.replay is None else _replay(args)
    stdout.flush()
    if args.trace is not None:
        write_file(args.trace, json.dumps(report.trace))
    write_pictures(args, report)
    if args.json:
        emit_json(report.to_dict())
    elif not args.quiet:
        _print_findings(report)
        if args.waits:
            print(report.waits_table(MOST_WAITS).text(), file=sys.stderr)
    return int(report.exit_code)


def _run_script(args: argparse.Namespace, arguments: list[str], ranks: int, emit: Any) -> Any:
    """Run the script on a number of virtual ranks, and return the report.

    Args:
        args: the options of the command.
        arguments: the script's own arguments.
        ranks: the number of ranks.
        emit: called with (rank, line) for each printed line.
    """
    from spmdsim.simulation import simulate

    def show_progress(runs: int) -> None:
        if sys.stderr.isatty():
            print(f"{runs:,} orders of messages explored", file=sys.stderr)

    return simulate(
        args.script,
        ranks,
        *arguments,
        module=args.module,
        strict=args.strict,
        compute=args.compute,
        record=args.record,
        explore=args.explore or 0,
        progress=show_progress,
        trace=args.trace is not None or wants_pictures(args),
        check=False,
        emit=emit,
        **_modelled_options(args),
    )


def _replay(args: argparse.Namespace) -> Any:
    """Return the report of the replay of a recorded run."""
    from spmdsim.simulation import replay

    refused = [
        name for name in ("ranks", "record", "trace", "explore", "only") if getattr(args, name) is not None
    ]
    if refused:
        raise InputError(f"--replay runs no program, so it does not take --{refused[0]}; remove it")
    return replay(args.replay, **_modelled_options(args))


def _modelled_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options that decide modelled times, as arguments of ``simulate`` and ``replay``.

    Args:
        args: the options of the command.
    """
    speeds = _parse_numbers("--speed", args.speed or "1")
    return {
        "machine": args.machine,
        "nodes": int(args.nodes) if (args.nodes or "").isdecimal() else args.nodes,
        "seed": args.seed,
        "like": args.like,
        "algorithms": _parse_algorithms(args.algorithms),
        "speed": speeds[0] if len(speeds) == 1 else speeds,
        "noise": _parse_numbers("--noise", args.noise or "0")[0],
    }


def _simulate_counts(args: argparse.Namespace, arguments: list[str]) -> int:
    """Run the script on each of several numbers of ranks; return the exit code.

    What the ranks print is not shown. ``--json`` prints a list of reports instead; ``--quiet`` prints nothing.

    Args:
        args: the options of the command. ``ranks`` is a list.
        arguments: the script's own arguments.

    Returns:
        The first exit code that is not 0, or 0.
    """
    reports = []
    for ranks in args.ranks:
        report = _run_script(args, arguments, ranks, lambda rank, line: None)
        reports.append(report)
        if not (args.json or args.quiet):
            for line in str(report).splitlines():
                print(f"{ranks}: {line}")
    if args.json:
        emit_json([report.to_dict() for report in reports])
    return next((int(report.exit_code) for report in reports if report.exit_code), 0)


def _parse_algorithms(text: str | None) -> dict[str, str]:
    """Return algorithms by collective from text such as ``all_reduce=ring,broadcast=binomial``."""
    entries = [entry.partition("=") for entry in (text or "").split(",") if entry]
    for collective, equals, name in entries:
        if not (collective and equals and name):
            raise InputError(f"--algorithms takes COLLECTIVE=ALGORITHM, got {collective + equals + name!r}")
    return {collective.strip(): name.strip() for collective, _, name in entries}


def _parse_numbers(option: str, text: str) -> list[float]:
    """Return the numbers of an option, such as ``1,1,0.5,1``."""
    try:
        return [float(entry) for entry in text.split(",")]
    except ValueError:
        raise InputError(f"{option} takes numbers between commas, got {text!r}") from None


def _print_findings(report: Any) -> None:
    """Print the findings to stderr, so that stdout has only the program's output.

    Each finding has one line, and its details are indented below it. The last line is the report's summary.
    """
    for problem in report.problems:
        print(problem, file=sys.stderr)
        for line in problem.details:
            print(f"  {line}", file=sys.stderr)
    print(str(report).splitlines()[-1], file=sys.stderr)
