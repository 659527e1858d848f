"""Arguments the ``spmdsim collective`` subcommands share: algorithms by name or from a file, rank counts, options."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spmdsim.cli.arguments import Command
from spmdsim.errors import InputError
from spmdsim.reading import one_line

if TYPE_CHECKING:
    from spmdsim.collectives import Algorithm, Schedule

LARGEST = 1 << 20
#: What judges algorithms, and prints what it finds.
JUDGES = (
    "numpy",
    "spmdsim.collectives.facts",
    "spmdsim.collectives.history",
    "spmdsim.cli.output",
    "spmdsim.draw.schedule_text",
)


def add_schedule_arguments(add: Command) -> None:
    """The arguments that make a schedule of an algorithm."""
    add("-n", "--ranks", type=int, default=8, metavar="N", help="number of ranks (8)")
    add("--root", type=int, default=0, metavar="R", help="root of rooted collectives (0)")
    add("--segments")
    add("--group")
    add("--radix", type=int, metavar="K", help="radix of a k-nomial tree")
    add("--index", choices=("mpich", "openmpi"), help="index rule of the ring")
    add(
        "--rounding",
        choices=("balanced", "ceiling"),
        help="how a vector is cut that does not divide evenly",
    )
    add("--chunks", metavar="EXPR", help="chunk count of your own algorithm, such as n or 2*n")


def schedule_from(args: argparse.Namespace, collective: str, name: str) -> Schedule:
    """The schedule the arguments describe."""
    from spmdsim.collectives import make_schedule

    chosen = find_algorithm(collective, name, args.chunks)
    options = {k: getattr(args, k) for k in ("segments", "group", "radix", "index")}
    chosen_options = {k: v for k, v in options.items() if v is not None}
    return make_schedule(chosen, args.ranks, args.root, args.rounding, **chosen_options)


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
    """A generator function of a user's file, which runs in a process of its own: here are only its rounds, as data.

    Raises:
        InputError: as :func:`load_function`.
    """
    from spmdsim.collectives.foreign import Rounds, foreign
    from spmdsim.launch.apart import Apart

    if not hasattr(os, "fork"):
        return load_function(path, name)
    return foreign(Apart(lambda: Rounds(load_function(path, name))).ask)


def load_function(path: Path, name: str) -> Any:
    """A function from a user's Python file.

    Raises:
        InputError: when there is no such file or function, or the file fails to run.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}")
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
        has = f"; it has {', '.join(functions)}" if functions else ""
        raise InputError(f"{path} has no function {name!r}{has}")
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
    if value < 0 or value != int(value):
        raise InputError(f"{text!r} is no whole number of bytes")
    return int(value)
