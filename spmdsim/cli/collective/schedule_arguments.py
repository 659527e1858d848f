"""What the subcommands of ``spmdsim collective`` share: algorithms by name or from a file, rank counts, sizes, options."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spmdsim.cli.main import choice, value, whole
from spmdsim.cli.output import only_with
from spmdsim.errors import InputError, unknown
from spmdsim.reading import one_line, require_file

if TYPE_CHECKING:
    from spmdsim.collectives import Algorithm, Schedule

LARGEST = 1 << 20
#: Sizes, or rank counts, that are gone through.
MOST_POINTS = 10_000
#: Of a message: sums over as many ranks stay exact.
MOST_BYTES = 1 << 40
#: Seconds of processor time for somebody's algorithm.
SECONDS = 10
#: What judges algorithms, and prints what it finds.
JUDGES = (
    "numpy",
    "spmdsim.collectives.facts",
    "spmdsim.collectives.history",
    "spmdsim.cli.output",
    "spmdsim.figures.schedule_figures",
)
#: Of commands that run somebody's algorithm.
JUDGED: dict[str, Any] = {"limits": SECONDS, "program": lambda _: True, "judges": JUDGES}
#: What makes a schedule of an algorithm.
SCHEDULE = (
    value("-n --ranks", "N", "number of ranks (8)", whole, default=8),
    value("--root", "R", "root of rooted collectives (0)", whole, default=0),
    "--segments",
    "--group",
    value("--radix", "K", "radix of a k-nomial tree", whole),
    choice("--index", ("mpich", "openmpi"), "index rule of the ring"),
    value("--chunks", "EXPR", "chunk count of your own algorithm, such as n or 2*n"),
)
#: Of those that count bytes.
ROUNDING = choice("--rounding", ("balanced", "ceiling"), "how a vector is cut that does not divide evenly")
#: The options of algorithms among them.
OPTIONS = ("segments", "group", "radix", "index")


def schedule_from(args: argparse.Namespace, name: str, options: Iterable[str] = OPTIONS) -> Schedule:
    """The schedule that the arguments describe, with those of the options that are given."""
    from spmdsim.collectives import make_schedule

    chosen = find_algorithm(args.collective, name, args.chunks)
    root_only_where_there_is_one(args, chosen)
    rounding = getattr(args, "rounding", None)
    return make_schedule(chosen, args.ranks, args.root, rounding, **given_options(args, options))


def chunks_only_of_own(args: argparse.Namespace, *names: str) -> None:
    """Refuse a chunk count where no algorithm is somebody's own: the others say theirs."""
    if not any(".py" in name for name in names):
        only_with(
            args, "--chunks", f"FILE.py:FUNCTION: {' and '.join(names)} say{'s' * (len(names) == 1)} which"
        )


def root_only_where_there_is_one(args: argparse.Namespace, chosen: Algorithm) -> None:
    """Refuse a root of a collective that has none."""
    if not chosen.collective.rooted:
        only_with(
            args, "--root", f"broadcast, reduce, gather and scatter: {chosen.collective.name} has no root"
        )


def given_options(args: argparse.Namespace, options: Iterable[str] = ("group", "segments")) -> dict[str, Any]:
    """Options of algorithms that are given, with their values."""
    return {name: getattr(args, name) for name in options if getattr(args, name) is not None}


def options_that_count(args: argparse.Namespace, collective: str, names: Iterable[str]) -> dict[str, Any]:
    """Options of algorithms that are given, refused where none of the named algorithms has them; no names are all."""
    from spmdsim.collectives import algorithms

    named = set(names)
    for option in ("group", "segments"):
        having = [one.name for one in algorithms(collective) if option in dict(one.options)]
        if not having or (named and not named & {*having}):
            only_with(
                args,
                f"--{option}",
                f"algorithms that have it: {', '.join(having) or f'none of {collective}'}",
            )
    return given_options(args)


def names_in(text: str) -> list[str]:
    """What stands between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def find_algorithm(
    collective: str, name: str, chunks: str | None = None, ports: str | None = None
) -> Algorithm:
    """A registered algorithm by name, or a generator function as ``FILE.py:FUNCTION``."""
    from spmdsim.collectives import algorithm, from_function

    if ".py" not in name:
        return algorithm(collective, name)
    path, _, function = name.rpartition(":")
    if not path:
        raise InputError(f"{name}: say which function, as in {name}:my_ring")
    return from_function(
        foreign_function(Path(path), function), collective, chunks=chunks or "", ports=ports or "1"
    )


def foreign_function(path: Path, name: str) -> Any:
    """A generator function of a user's file, which runs in a process of its own: here are only its rounds, as data."""
    from spmdsim.collectives.foreign import Rounds, foreign
    from spmdsim.launch.sandbox import Sandbox

    if not hasattr(os, "fork"):
        return load_function(path, name)
    return foreign(Sandbox(lambda: Rounds(load_function(path, name))).ask)


def load_function(path: Path, name: str) -> Any:
    """A function from a user's Python file."""
    require_file(path)
    spec = importlib.util.spec_from_file_location(f"_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path} cannot be loaded: {type(error).__name__}: {one_line(error)}") from None
    finally:
        sys.path.pop(0)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [k for k, v in vars(module).items() if callable(v) and v.__module__ == module.__name__]
        raise unknown(f"{path} has no function {name!r}", name, functions or ["none"], listed="it has")
    return function


def rank_counts(text: str) -> list[int]:
    """Rank counts as people write them.

    >>> rank_counts("2..5,8")
    [2, 3, 4, 5, 8]
    """
    counts: list[int] = []
    for part in text.split(","):
        low, dots, high = part.strip().partition("..")
        try:
            first, last = int(low), int(high) if dots else int(low)
        except ValueError:
            raise InputError(f"{text!r} is no list of rank counts; write 6 or 2..16 or 2,4,8") from None
        if not 1 <= first <= last <= LARGEST:
            raise InputError(f"{part!r}: rank counts are 1 ... {LARGEST}, lower one first")
        if len(counts) + last - first >= MOST_POINTS:
            raise InputError(f"{text!r} has more than {MOST_POINTS:,} rank counts")
        counts += range(first, last + 1)
    return counts


def parse_bytes(text: str) -> int:
    """A size such as ``64K`` or ``1M`` (powers of 1024) in bytes.

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
    """Rank counts as people write them; ``2..1024x2`` multiplies from one to the next.

    >>> growing_counts("2..16x2"), growing_counts("3,6")
    ([2, 4, 8, 16], [3, 6])
    """
    span, _, factor_text = text.partition("x")
    if not factor_text:
        return rank_counts(text)
    try:
        low, high = (int(part) for part in span.split(".."))
        factor = float(factor_text)
    except ValueError:
        raise InputError(f"{text!r} is no list of rank counts; write 8, 2..16 or 2..1024x2") from None
    if not (1 <= low <= high <= LARGEST and 1 < factor < math.inf):
        raise InputError(f"{text!r}: rank counts are 1 ... {LARGEST}, lower one first, factors above 1")
    return [int(value) for value in _growing(low, high, factor)]


def growing_sizes(begin: int, end: int, factor: float) -> list[int]:
    """Sizes from ``begin`` to ``end``, each ``factor`` times the one before."""
    if not (begin <= end and 1 < factor < math.inf):
        raise InputError(f"sizes from {begin} to {end} by a factor of {factor:g} do not grow")
    return [int(value) for value in _growing(begin, end, factor)]


def _growing(low: int, high: int, factor: float) -> list[float]:
    values, value = [], float(low)
    while value <= high * (1 + 1e-9):
        values.append(value)
        if len(values) > MOST_POINTS:
            raise InputError(
                f"from {low:,} to {high:,} by a factor of {factor:.9g} there are more than {MOST_POINTS:,}"
            )
        value = max(value * factor, value + 1)
    return values
