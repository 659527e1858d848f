"""What must be alike on all ranks of a communicator: one number per rank is compared, words only where it differs."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI

from spmdsim._version import __version__
from spmdsim.ending.starting import unlink_segments
from spmdsim.errors import DisagreementError, SpmdError, WorldError, many
from spmdsim.launcher import JOB_VARIABLE
from spmdsim.settings import CHECK, DEADLINE, PREFIX, RECORD, TUNE
from spmdsim.sides import name_ranks, number_of, sides
from spmdsim.trace.source_lines import source_line
from spmdsim.worlds.mpi.boards import world_ranks
from spmdsim.worlds.mpi.comms import Comparison
from spmdsim.worlds.programs import check_mode

#: What a rank says of itself, by name.
Facts = Mapping[str, str]


def differing(facts: Sequence[Facts]) -> list[str]:
    """The names of what is not alike, in the order in which the first rank says it.

    >>> differing([{"numpy": "2.0", "check": "1"}, {"check": "1", "numpy": "1.26"}])
    ['numpy']
    """
    names = dict.fromkeys(name for some in facts for name in some)
    return [name for name in names if len({some.get(name) for some in facts}) > 1]


#: The variables that a world's parameters come from where the program does not give them.
VARIABLES = {
    "check": CHECK.name,
    "deadline": DEADLINE.name,
    "tuning": TUNE.name,
    "tune": TUNE.name,
    "record": RECORD.name,
}
#: Variables that are compared by what they mean, or are a node's own.
APART = (*VARIABLES.values(), JOB_VARIABLE)
#: What a rank says which cannot even say its settings.
MISTAKE = "a mistake"
#: The words for the text of a module. Which ones were loaded so far may depend on the rank.
MODULE = "the text of module "
#: The text of the program, and the name of its file.
TEXT, PROGRAM = "the text of the program", "the program's file"


def agreed(
    comm: MPI.Comm,
    check: bool | str | None,
    deadline: float | None,
    wanted: Mapping[str, Callable[[], Any]],
    what: str = "a world",
) -> dict[str, Any]:
    """The settings of a world, if all of its ranks have the same, run the same program and have the same versions.

    They are ``check`` and ``deadline``, and those that ``wanted`` gives. What one raises, on any rank, is raised on all.
    Where no rank wants its calls compared, only their settings are. Collective.
    """
    settings: dict[str, Any] = {}
    otherwise = DEADLINE.default if deadline is None else deadline
    common = {
        "check": lambda: check_mode(check),
        "deadline": lambda: DEADLINE.read() if deadline is None else deadline,
    }
    problem = None
    try:
        for name, setting in {**common, **wanted}.items():
            settings[name] = setting()
    except SpmdError as error:
        problem = error
    if comm.Get_size() > 1:
        said = _said(settings)
        facts = {**said, **_facts()} if problem is None else {MISTAKE: str(problem)}
        number = number_of(repr(sorted(facts.items())))
        try:
            equal = Comparison(comm, number, settings.get("deadline", otherwise)).equal()
        except WorldError as error:
            where = f"where {what} of {many(comm.Get_size(), 'rank')} is made"
            line = source_line() or "an unknown place"
            raise DisagreementError(f"{error.message} to {where}, at {line}") from None
        if not equal:
            _require_same(comm.allgather(facts), world_ranks(comm), list(said))
    if comm.Get_size() == MPI.COMM_WORLD.Get_size():  # all ranks have started
        unlink_segments()
    if problem is not None:
        raise problem
    return settings


def _require_same(everyone: Sequence[Facts], job: Sequence[int], settings: Sequence[str]) -> None:
    for ranks, text in sides((rank, facts.get(MISTAKE)) for rank, facts in zip(job, everyone)):
        if text is not None:
            raise DisagreementError(f"on {name_ranks(ranks)}, {text}")
    unlike = [n for n in differing(everyone) if not n.startswith(MODULE) or all(n in f for f in everyone)]
    if all(facts[_named("check")] == "False" for facts in everyone):
        unlike = [name for name in unlike if name in settings]
    told = []
    for name in (name for name in unlike if name != PROGRAM):
        said = sides((rank, facts.get(name, "not set")) for rank, facts in zip(job, everyone))
        of = f" {everyone[0][PROGRAM]}" if name == TEXT else ""
        told.append(f"{name}{of} is {', '.join(f'{text} on {name_ranks(ranks)}' for ranks, text in said)}")
    if told:
        raise DisagreementError(f"the ranks do not start alike: {'; '.join(told)}")


def _named(setting: str) -> str:
    return f"{setting} ({VARIABLES[setting]})" if setting in VARIABLES else setting


def _said(settings: Mapping[str, Any]) -> dict[str, str]:
    said: dict[str, str] = {}
    for name, value in settings.items():
        if is_dataclass(value):
            parts = ((one.name, getattr(value, one.name)) for one in fields(value))
            said |= {f"{_named(name)} of {part}": repr(what) for part, what in parts}
        else:
            said[_named(name)] = repr(value)
    return said


def _facts() -> dict[str, str]:
    ours = {k: repr(v) for k, v in os.environ.items() if k.startswith(PREFIX) and k not in APART}
    return {
        "spmdsim": __version__,
        "Python": platform.python_version(),
        "numpy": np.__version__,
        "mpi4py": mpi4py.__version__,
        "MPI": " ".join(MPI.Get_library_version().split("\n")[0].split()),
        **ours,
        **_texts(),
    }


# -- the program's text -------------------------------------------------------------------------------------


def _texts() -> dict[str, str]:
    """The text of the program, and of the modules that it has loaded of its own and of this package."""
    main = sys.modules.get("__main__")
    texts = {TEXT: _main_text(main), PROGRAM: os.path.basename(getattr(main, "__file__", None) or "")}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if module is main or not isinstance(path, str) or not path.endswith(".py"):
            continue
        own = not path.startswith(_foreign()) and "-packages" + os.sep not in path
        if own or name.partition(".")[0] == "spmdsim":
            texts[MODULE + name] = _text_of(path)
    return texts


def _main_text(main: ModuleType | None) -> str:
    path = getattr(main, "__file__", None)
    if isinstance(path, str):
        return _text_of(os.path.abspath(path))
    command = sys.orig_argv
    return _digest(command[command.index("-c") + 1].encode()) if "-c" in command[:-1] else "interactive"


@cache
def _foreign() -> tuple[str, ...]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(sysconfig.get_paths()[kind] + os.sep for kind in kinds)


@lru_cache(maxsize=4096)
def _text_of(path: str) -> str:
    """A file in few words: kept, since what was loaded is what stood there at first."""
    try:
        with open(path, "rb") as file:
            return _digest(file.read())
    except OSError:
        return "unreadable"


def _digest(text: bytes) -> str:
    return f"{many(len(text), 'byte')} with checksum {zlib.crc32(text):08x}"
