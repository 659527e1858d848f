"""Agreement when a world is made: settings, versions and the text of the program must be equal on all ranks.

The ranks compare one number. They exchange the facts in words only if the numbers differ.
"""

from __future__ import annotations

import os
import platform
import re
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
from spmdsim.errors import DisagreementError, SpmdError, WorldError, many
from spmdsim.launcher import JOB_VARIABLE, detect, find_host_name
from spmdsim.settings import CHECK, DEADLINE, PREFIX, RECORD, TUNE
from spmdsim.shutdown.processes import unlink_segments
from spmdsim.sides import hash_text, name_ranks, sides
from spmdsim.worlds.agreement.comparison import Comparison
from spmdsim.worlds.agreement.node_memory import world_ranks
from spmdsim.worlds.agreement.rank_hosts import add_hosts, list_hosts
from spmdsim.worlds.trace.source_lines import source_line

#: Facts about a rank's start, by name.
Facts = Mapping[str, str]

#: The variables from which a world takes parameters that the program does not give.
VARIABLES = {
    "check": CHECK.name,
    "deadline": DEADLINE.name,
    "tuning": TUNE.name,
    "tune": TUNE.name,
    "record": RECORD.name,
}
#: Variables that are compared by their meaning, or that differ between nodes.
APART = (*VARIABLES.values(), JOB_VARIABLE)
#: The only fact of a rank whose settings are wrong.
MISTAKE = "a mistake"
#: The begin of the names of facts about modules. Ranks may have loaded different ones.
MODULE = "the text of module "
#: The host's name, which is exchanged with the facts and not compared.
HOST = "the host"
#: Facts about the program.
TEXT, PROGRAM = "the text of the program", "the program's file"


def name_differing_facts(facts: Sequence[Facts]) -> list[str]:
    """Return the names of the facts that differ, in the first rank's order.

    >>> name_differing_facts([{"numpy": "2.0", "check": "1"}, {"check": "1", "numpy": "1.26"}])
    ['numpy']
    """
    names = dict.fromkeys(name for rank_facts in facts for name in rank_facts)
    return [name for name in names if len({rank_facts.get(name) for rank_facts in facts}) > 1]


def agree_on_start(
    comm: MPI.Comm, deadline: float | None, read: Mapping[str, Callable[[], Any]], what: str = "a world"
) -> dict[str, Any]:
    """Return the settings of a new world after all ranks have agreed on them; all must call it.

    Each rank reads its settings and compares them with the other ranks':

    - With several ranks, also compare versions and the text of the program. Only settings must be equal if the setting
      "check" is False on all ranks.
    - With one rank, compare nothing.
    - If the communicator has all ranks of the job, remove the names of shared memory that no rank needs any more.

    Args:
        comm: the ranks.
        deadline: the deadline in seconds; None for the setting ``SPMDSIM_DEADLINE``.
        read: for each other setting, by name, a function that reads it; ``check`` is one of them.
        what: the words for what the ranks make.

    Returns:
        The settings by name, with ``deadline``.

    Raises:
        DisagreementError: If the ranks differ, or do not come before the deadline. A setting that is wrong on some
            ranks only is a difference.
        SpmdError: The error of a setting that is wrong on this rank and on all others.
    """
    settings: dict[str, Any] = {}
    problem = None
    try:
        settings["deadline"] = DEADLINE.read() if deadline is None else deadline
        for name, setting in read.items():
            settings[name] = setting()
    except SpmdError as error:
        problem = error
    if comm.Get_size() > 1:
        setting_facts = _describe_settings(settings)
        facts = {**setting_facts, **_collect_facts()} if problem is None else {MISTAKE: str(problem)}
        number = hash_text(repr(sorted(facts.items())))
        try:
            seconds = settings.get("deadline", DEADLINE.default)
            equal = Comparison(comm, number, seconds).equal()
        except WorldError as error:
            where = f"where {what} of {many(comm.Get_size(), 'rank')} is made"
            line = source_line() or "an unknown place"
            raise DisagreementError(f"{error.message} to {where}, at {line}") from None
        if not equal:  # one exchange, because the versions of this package may differ
            all_facts = comm.allgather({**facts, HOST: platform.node()})
            add_hosts(world_ranks(comm), [rank_facts.pop(HOST, "") for rank_facts in all_facts])
            _require_equal_facts(all_facts, world_ranks(comm), list(setting_facts))
    if comm.Get_size() == MPI.COMM_WORLD.Get_size():  # all ranks have started
        unlink_segments()
    if problem is not None:
        raise problem
    return settings


def _require_equal_facts(facts: Sequence[Facts], job: Sequence[int], settings: Sequence[str]) -> None:
    """Raise DisagreementError if facts about the ranks' start differ that must be equal.

    A fact is a name and a value, such as "numpy": "2.0". The rules are:

    - If settings are wrong on a rank, the error states its mistake and nothing else.
    - The name of the program's file may always differ.
    - The text of a module must be equal if all ranks have loaded the module.
    - All other facts must be equal. A fact that only some ranks have, such as a variable of the environment, differs.
    - If "check" is False on all ranks, only settings must be equal.

    Args:
        facts: the facts of each rank.
        job: the number of each rank in the job, in the order of ``facts``.
        settings: the names of the facts about settings.
    """
    for ranks, mistake in sides((rank, rank_facts.get(MISTAKE)) for rank, rank_facts in zip(job, facts)):
        if mistake is not None:
            raise DisagreementError(f"on {_name_sides(ranks)}, {mistake}")
    differing = []
    for name in name_differing_facts(facts):
        is_on_all = all(name in rank_facts for rank_facts in facts)
        if name != PROGRAM and (is_on_all or not name.startswith(MODULE)):
            differing.append(name)
    if all(rank_facts[_name_setting("check")] == "False" for rank_facts in facts):
        differing = [name for name in differing if name in settings]
    texts = []
    for name in differing:
        values = sides((rank, rank_facts.get(name, "not set")) for rank, rank_facts in zip(job, facts))
        program = f" {facts[0][PROGRAM]}" if name == TEXT else ""
        texts.append(
            f"{name}{program} is {', '.join(f'{value} on {_name_sides(ranks)}' for ranks, value in values)}"
        )
    if texts:
        advice = advise_export(re.findall(rf"{PREFIX}\w+", " ".join(differing)))
        raise DisagreementError(f"the ranks do not start alike: {'; '.join(texts)}{advice}")


def _name_sides(ranks: Sequence[int]) -> str:
    """Return ranks in words with their hosts, such as "rank 2 (node2)".

    Hosts are left out if the job has one. ``ranks`` are numbers in the job.
    """
    hosts = list_hosts(ranks)
    return f"{name_ranks(ranks)} ({hosts})" if hosts else name_ranks(ranks)


def advise_export(names: Sequence[str]) -> str:
    """Return the advice to export environment variables to other hosts; empty if it does not apply.

    It applies if variables differ in a job of Open MPI on several hosts: Open MPI passes only its own variables to
    ranks on other hosts. The advice names, for example, "mpirun -x SPMDSIM_CHECK -x SPMDSIM_TUNE".

    Args:
        names: the variables that differ between ranks; each is named once.
    """
    job = detect()
    if not names or job is None or job.launcher != "Open MPI" or not find_host_name():
        return ""
    options = " ".join(f"-x {name}" for name in dict.fromkeys(names))
    return f"; Open MPI passes variables to other hosts with mpirun {options}, and spmdsim launch passes all"


def _name_setting(setting: str) -> str:
    """Return the name of a setting's fact, such as "check (SPMDSIM_CHECK)".

    Without an environment variable, return the setting's name alone.
    """
    return f"{setting} ({VARIABLES[setting]})" if setting in VARIABLES else setting


def _describe_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings as facts: a name and the ``repr`` of a value each.

    The name has the environment variable of the setting if there is one: {"check": True} becomes
    {"check (SPMDSIM_CHECK)": "True"}. A dataclass gives one fact per field, such as "tuning (SPMDSIM_TUNE) of
    threshold".

    Args:
        settings: the values by name.
    """
    facts: dict[str, str] = {}
    for name, value in settings.items():
        if is_dataclass(value):
            for field in fields(value):
                facts[f"{_name_setting(name)} of {field.name}"] = repr(getattr(value, field.name))
        else:
            facts[_name_setting(name)] = repr(value)
    return facts


def _collect_facts() -> dict[str, str]:
    """Return the facts that are compared besides settings, by name.

    They are versions (this package, Python, NumPy, mpi4py, MPI library), this package's variables of the environment,
    and checksums of the program and its modules. Variables of :data:`APART` are left out.
    """
    variables = {k: repr(v) for k, v in os.environ.items() if k.startswith(PREFIX) and k not in APART}
    return {
        "spmdsim": __version__,
        "Python": platform.python_version(),
        "numpy": np.__version__,
        "mpi4py": mpi4py.__version__,
        "MPI": " ".join(MPI.Get_library_version().split("\n")[0].split()),
        **variables,
        **_collect_texts(),
    }


# -- the program's text -------------------------------------------------------------------------------------


def _collect_texts() -> dict[str, str]:
    """Return facts about the texts of the program and of the loaded modules.

    An example is {"the text of module model": "12 bytes with checksum 0a1b2c3d"}. Modules are those of this package and
    the user's own, which are neither in the standard library nor in a folder of installed packages. Modules without a
    ".py" file are left out.

    Returns:
        The facts by name. The fact of the program and of each module is the length and checksum of its file. The fact
        :data:`PROGRAM` is the name of the program's file, "" if it has none.
    """
    main = sys.modules.get("__main__")
    texts = {TEXT: _describe_main(main), PROGRAM: os.path.basename(getattr(main, "__file__", None) or "")}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if module is main or not isinstance(path, str) or not path.endswith(".py"):
            continue
        is_own = not path.startswith(_library_folders()) and "-packages" + os.sep not in path
        if is_own or name.partition(".")[0] == "spmdsim":
            texts[MODULE + name] = _describe_file(path)
    return texts


def _describe_main(main: ModuleType | None) -> str:
    """Return length and checksum of the program's text: "12 bytes with checksum 0a1b2c3d".

    The text is the program's file, or the code after ``-c``. Return "interactive" without either.

    Args:
        main: the module ``__main__``, or None.
    """
    path = getattr(main, "__file__", None)
    if isinstance(path, str):
        return _describe_file(os.path.abspath(path))
    command = sys.orig_argv
    if "-c" not in command[:-1]:
        return "interactive"
    return _describe_text(command[command.index("-c") + 1].encode())


@cache
def _library_folders() -> tuple[str, ...]:
    """Return the folders of the standard library and of installed packages.

    Each ends with a separator.
    """
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(sysconfig.get_paths()[kind] + os.sep for kind in kinds)


@lru_cache(maxsize=4096)
def _describe_file(path: str) -> str:
    """Return length and checksum of the file at ``path``, or "unreadable".

    The answer is remembered: later changes of the file are not seen.
    """
    try:
        with open(path, "rb") as file:
            return _describe_text(file.read())
    except OSError:
        return "unreadable"


def _describe_text(text: bytes) -> str:
    return f"{many(len(text), 'byte')} with checksum {zlib.crc32(text):08x}"
