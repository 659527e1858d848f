"""Arguments that the subcommands of ``spmdsim collective`` share.

The file declares the arguments, builds schedules from them, loads a user's algorithm (``FILE.py:FUNCTION``), and parses
rank counts and sizes.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spmdsim.cli.main import Argument, choice, value, whole_number
from spmdsim.cli.output import refuse_options
from spmdsim.errors import InputError, unknown
from spmdsim.reading import one_line, read_text, readable, require_file

if TYPE_CHECKING:
    from spmdsim.collectives import Algorithm, Schedule

#: Most ranks.
LARGEST = 1 << 20
#: Most sizes or rank counts of one command.
MOST_POINTS = 10_000
#: Most bytes of a message, so that sums over :data:`LARGEST` ranks are exact.
MOST_BYTES = 1 << 40
#: Default limit on the processor time of a user's algorithm, in seconds.
SECONDS = 10
#: Modules that judge algorithms and print findings.
JUDGES = (
    "numpy",
    "spmdsim.collectives.facts",
    "spmdsim.collectives.history",
    "spmdsim.cli.output",
    "spmdsim.figures.schedule_figures",
)
#: Options of ``command`` for commands that run a user's algorithm.
JUDGED: dict[str, Any] = {"limits": SECONDS, "program": lambda _: True, "judges": JUDGES}
#: Options of ``command`` for commands that may run a user's algorithm, as the options ``--algorithms`` or ``--links`` say.
MAYBE_JUDGED: dict[str, Any] = {
    "limits": SECONDS,
    "judges": JUDGES,
    "program": lambda args: any(".py" in text for text in (args.algorithms, args.links or "")),
}
#: Names of the options of algorithms that are numbers.
NUMBERS = ("segments", "group", "radix", "aggregation", "dimensions")
#: Arguments of these options.
NUMBER_ARGUMENTS: tuple[Argument, ...] = tuple(f"--{name}" for name in NUMBERS)
#: Names of the options that only some algorithms have.
OPTIONS = (*NUMBERS, "index")
#: Arguments of commands that make a schedule of an algorithm.
SCHEDULE: tuple[Argument, ...] = (
    value("-n --ranks", "N", "number of ranks (8)", whole_number, default=8),
    value("--root", "R", "root of rooted collectives (0)", whole_number, default=0),
    *NUMBER_ARGUMENTS,
    choice(
        "--index", ("mpich", "openmpi"), "the first chunk that a rank of the ring sends, by library (mpich)"
    ),
    value("--chunks", "EXPR", "number of chunks of your own algorithm, such as n or 2*n"),
)
#: Argument of commands that count bytes of a schedule.
ROUNDING = choice("--rounding", ("balanced", "ceiling"), "division of a vector into chunks of unequal sizes")


def build_schedule(args: argparse.Namespace, name: str, options: Iterable[str] = OPTIONS) -> Schedule:
    """Return the schedule of an algorithm for the rank count, root and options in the arguments.

    Args:
        args: the command's arguments: ``collective``, ``ranks``, ``root``, ``chunks``, ``rounding`` if the
            command has it, and the options of ``options``.
        name: the algorithm, or ``FILE.py:FUNCTION``; this file is executed.
        options: names of the algorithm's options to pass on. Options that are None have the algorithm's default.

    Raises:
        InputError: If the user's file or function cannot be loaded, or ``--root`` is set and the collective has
            no root.
        ScheduleError: If the algorithm is unknown, or does not support the rank count, the root or an option.
    """
    from spmdsim.collectives import make_schedule

    chosen = find_algorithm(args.collective, name, args.chunks)
    refuse_unused_root(args, chosen)
    rounding = getattr(args, "rounding", None)
    return make_schedule(chosen, args.ranks, args.root, rounding, **set_options(args, options))


def refuse_unused_chunks(args: argparse.Namespace, *names: str) -> None:
    """Raise InputError if ``--chunks`` is set and no name is a user's ``FILE.py:FUNCTION``.

    The package's algorithms state their own number of chunks. ``args`` has the command's arguments, ``names`` the
    algorithms that will run. A name with ".py" in it is a user's.
    """
    if not any(".py" in name for name in names):
        verb = "says" if len(names) == 1 else "say"
        refuse_options(args, "--chunks", f"FILE.py:FUNCTION: {' and '.join(names)} {verb} which")


def refuse_unused_root(args: argparse.Namespace, chosen: Algorithm) -> None:
    """Raise InputError if ``--root`` is set and the algorithm's collective has no root.

    The default root counts as not set. ``args`` has the command's arguments, ``chosen`` is the algorithm.
    """
    if not chosen.collective.rooted:
        refuse_options(
            args, "--root", f"broadcast, reduce, gather and scatter: {chosen.collective.name} has no root"
        )


def set_options(args: argparse.Namespace, options: Iterable[str] = NUMBERS) -> dict[str, Any]:
    """Return the options of algorithms that the user set, such as ``{"group": 4}``.

    Args:
        args: the command's arguments, with an attribute for each of ``options``.
        options: names of options; one whose value is None is left out of the result.
    """
    return {name: getattr(args, name) for name in options if getattr(args, name) is not None}


def find_algorithms(
    args: argparse.Namespace, collective: str, names: list[str]
) -> dict[str, Algorithm | None]:
    """Return the algorithms that a command runs, by name; refuse options that none of them has.

    Args:
        args: the command's arguments; only the options of :data:`NUMBERS` are read.
        collective: name of the collective.
        names: the algorithms, each a name or ``FILE.py:FUNCTION``; "native" and all algorithms of the collective if empty.

    Returns:
        The algorithms by their own names, in the order of ``names``; None for "native", the library's own call.

    Raises:
        InputError: If an option is set that none of these algorithms has, a user's function cannot be loaded, or two names
            lead to equal names of algorithms.
        ScheduleError: If the package has no such algorithm.
        SpmdError: If the collective is unknown.
    """
    from spmdsim.collectives import algorithms

    every = [] if names else algorithms(collective)
    requested = [
        None if name == "native" else find_algorithm(collective, name) for name in names or ["native"]
    ]
    chosen = {entry.name if entry else "native": entry for entry in (*requested, *every)}
    if len(chosen) < len({*names}):
        raise InputError(
            f"--algorithms must name different algorithms, got {', '.join(names)}; rename your function"
        )
    for option in NUMBERS:
        if not any(entry and option in dict(entry.options) for entry in chosen.values()):
            owners = [entry.name for entry in algorithms(collective) if option in dict(entry.options)]
            refuse_options(
                args,
                f"--{option}",
                f"algorithms that have it: {', '.join(owners) or f'none of {collective}'}",
            )
    return chosen


def split_names(text: str) -> list[str]:
    """Split a text at commas; return the names without blanks around them, and no empty names."""
    return [name.strip() for name in text.split(",") if name.strip()]


def find_algorithm(
    collective: str, name: str, chunks: str | None = None, ports: str | None = None
) -> Algorithm:
    """Return an algorithm by its name, or a user's by ``FILE.py:FUNCTION`` or ``FILE.xml``.

    A user's file is executed at once, in a child process where ``fork`` exists, else in this process. The
    function is not called here.

    Args:
        collective: name of the collective.
        name: the algorithm. A name that contains ".py" is a user's; one that ends with ".xml" is an MSCCL file.
        chunks: number of chunks of a user's algorithm, such as "2*n"; None: it is derived from the rounds.
        ports: number of messages that a rank of a user's algorithm may send per round, such as "n-1"; None: "1".

    Raises:
        ScheduleError: If the package has no such algorithm.
        InputError: If the file or the function cannot be loaded, or ``name`` names no function.
        SpmdError: If the collective is unknown.
    """
    from spmdsim.collectives import algorithm, from_function

    if name.endswith(".xml"):
        return _read_schedule(collective, name)
    if ".py" not in name:
        return algorithm(collective, name)
    path, _, function = name.rpartition(":")
    if not path:
        raise InputError(f"{name}: say which function, as in {name}:my_ring")
    return from_function(
        _isolate_function(Path(path), function), collective, chunks=chunks or "", ports=ports or "1"
    )


def _read_schedule(collective_name: str, path: str) -> Algorithm:
    """Return the algorithm of an MSCCL XML file.

    Args:
        collective_name: the collective that it must implement.
        path: the file.

    Raises:
        InputError: If the file cannot be read, or implements another collective.
    """
    from spmdsim.collectives import collective
    from spmdsim.collectives.formats.msccl_reader import read_msccl

    wanted, kind = collective(collective_name).name, "MSCCL XML"
    text = read_text(path, kind)
    with readable(path, kind):
        chosen = read_msccl(text, Path(path).name)
    if chosen.collective.name != wanted:
        raise InputError(
            f"{path} must implement {wanted}, got {chosen.collective.name}; name that collective"
        )
    return chosen


def _isolate_function(path: Path, name: str) -> Any:
    """Return a user's generator function that runs in a child process.

    One child process loads the file and answers all calls. Only the rounds come back, as data, so the function cannot
    change this process. On systems without ``fork`` it runs in this process.
    """
    from spmdsim.collectives.foreign import Rounds, foreign
    from spmdsim.launch.sandbox import Sandbox

    if not hasattr(os, "fork"):
        return _load_function(path, name)
    return foreign(Sandbox(lambda: Rounds(_load_function(path, name))).ask)


def _load_function(path: Path, name: str) -> Any:
    """Run a user's Python file and return a function of it.

    Modules beside the file can be imported while the file runs.

    Args:
        path: the file.
        name: name of the function; any callable is accepted.

    Raises:
        InputError: If the file does not exist, its name does not end like a Python file's, it raises any error or
            calls ``sys.exit``, or it has no such function. The error suggests the nearest function of the file.
    """
    require_file(path)
    spec = importlib.util.spec_from_file_location(f"_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent.resolve())
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path} cannot be loaded: {type(error).__name__}: {one_line(error)}") from None
    finally:
        # The file itself may have changed the path, so the folder need not be first.
        with suppress(ValueError):
            sys.path.remove(folder)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [k for k, v in vars(module).items() if callable(v) and v.__module__ == module.__name__]
        raise unknown(f"{path} has no function {name!r}", name, functions or ["none"], listed="it has")
    return function


def rank_counts(text: str) -> list[int]:
    """Parse rank counts such as ``6``, ``2..16`` or ``2,4,8``; keep their order and repetitions.

    A range includes both ends.

    Raises:
        InputError: If the text is no list of rank counts, a count is not from 1 to :data:`LARGEST`, a range decreases,
            or there are more than :data:`MOST_POINTS` (10,000) counts.

    >>> rank_counts("2..5,8")
    [2, 3, 4, 5, 8]
    """
    counts: list[int] = []
    for span in text.split(","):
        low, dots, high = span.strip().partition("..")
        try:
            first, last = int(low), int(high) if dots else int(low)
        except ValueError:
            raise InputError(f"{text!r} is no list of rank counts; write 6 or 2..16 or 2,4,8") from None
        if not 1 <= first <= last <= LARGEST:
            raise InputError(f"{span!r}: rank counts are 1 ... {LARGEST}, lower one first")
        if len(counts) + last - first >= MOST_POINTS:
            raise InputError(f"{text!r} has more than {MOST_POINTS:,} rank counts")
        counts += range(first, last + 1)
    return counts


def parse_bytes(text: str) -> int:
    """Convert a ``text`` such as ``64K``, ``64KiB`` or ``1M`` (powers of 1024) to bytes.

    Units are K, M and G, also as KB; case does not matter. ``1.5K`` is a size, too.

    Raises:
        InputError: If it is no whole number of bytes from 0 to :data:`MOST_BYTES`.

    >>> parse_bytes("64K"), parse_bytes("100")
    (65536, 100)
    """
    units = {"K": 10, "M": 20, "G": 30}
    words = text.strip().upper().removesuffix("B").removesuffix("I")
    power = units.get(words[-1:], 0)
    try:
        value = float(words[:-1] if power else words) * (1 << power)
    except ValueError:
        raise InputError(f"{text!r} is no size; write 1000, 64K or 1M") from None
    if not 0 <= value <= MOST_BYTES or value != int(value):
        raise InputError(f"{text!r} is no whole number of bytes from 0 to {MOST_BYTES:,}")
    return int(value)


def growing_counts(text: str) -> list[int]:
    """Parse rank counts that may grow by a factor, such as ``2..1024x2``: 2, 4, 8, ..., 1024.

    Other factors are rounded as in :func:`growing_sizes`. A text without a factor is parsed by :func:`rank_counts`.

    Raises:
        InputError: If the text is no list of rank counts, a count is not from 1 to :data:`LARGEST`, the factor is not
            above 1, or there are more than :data:`MOST_POINTS` (10,000) counts.

    >>> growing_counts("2..16x2"), growing_counts("3,6")
    ([2, 4, 8, 16], [3, 6])
    """
    span, _, factor_text = text.partition("x")
    if not factor_text:
        return rank_counts(text)
    try:
        low, high = map(int, span.split(".."))
        factor = float(factor_text)
    except ValueError:
        raise InputError(f"{text!r} is no list of rank counts; write 8, 2..16 or 2..1024x2") from None
    if not (1 <= low <= high <= LARGEST and 1 < factor < math.inf):
        raise InputError(f"{text!r}: rank counts are 1 ... {LARGEST}, lower one first, factors above 1")
    return _growing(low, high, factor)


def growing_sizes(begin: int, end: int, factor: float) -> list[int]:
    """Return sizes from ``begin`` to ``end``, each ``factor`` times the size before.

    Each size is at least 1 more than the size before, and rounded down. ``end`` is included only if a step meets it.

    >>> growing_sizes(1, 8, 1.5)
    [1, 2, 3, 4, 6]

    Raises:
        InputError: If ``begin`` is above ``end``, ``factor`` is not above 1 or not finite, or there are more than
            :data:`MOST_POINTS` (10,000).
    """
    if not (begin <= end and 1 < factor < math.inf):
        raise InputError(f"sizes from {begin} to {end} by a factor of {factor:g} do not grow")
    return _growing(begin, end, factor)


def _growing(low: int, high: int, factor: float) -> list[int]:
    """Return ``low``, and numbers up to ``high`` that grow by ``factor``.

    The numbers ``low * factor ** i`` are rounded down. Small steps are enlarged to 1, so that no number occurs
    twice.

    Args:
        low: first number.
        high: no number is larger; a relative excess of 1e-9 by rounding is allowed.
        factor: above 1; not checked here.

    Raises:
        InputError: If there are more than :data:`MOST_POINTS` (10,000).

    >>> _growing(1, 10, 1.5), _growing(8, 64, 2)
    ([1, 2, 3, 4, 6], [8, 16, 32, 64])
    """
    values, value = [], float(low)
    while value <= high * (1 + 1e-9):
        values.append(int(value))
        if len(values) > MOST_POINTS:
            raise InputError(
                f"from {low:,} to {high:,} by a factor of {factor:.9g} there are more than {MOST_POINTS:,}"
            )
        value = max(value * factor, value + 1)
    return values
