"""Hosts of a job: read them from the command line or from a file, and spread ranks over them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from spmdsim.errors import InputError
from spmdsim.reading import HOST_WORD, require_file

#: Variables of Slurm and Grid Engine with the number of tasks of a job.
TASKS = ("SLURM_NTASKS", "NSLOTS")
#: Variables of PBS and LSF with the path of a file that names the hosts of a job, one line per task.
HOST_FILES = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE")
#: What may follow a host's name in a file of Open MPI. The largest number of slots is not used here.
OPTIONS = re.compile(r"(?:slots\s*=\s*(?P<slots>[1-9]\d*))?\s*(?:max[-_]slots\s*=\s*\d+)?")


def find_task_variable(environment: Mapping[str, str]) -> str | None:
    """Return the variable with the number of tasks of this batch job, or None outside of one.

    >>> find_task_variable({"SLURM_NTASKS": "8"})
    'SLURM_NTASKS'
    """
    for name in TASKS:
        if environment.get(name, "").isdecimal() and int(environment[name]):
            return name
    return None


def read_task_count(environment: Mapping[str, str]) -> int:
    """Return the number of tasks of this batch job; 0 outside of one."""
    name = find_task_variable(environment)
    return int(environment[name]) if name else 0


def find_host_file_variable(environment: Mapping[str, str]) -> str | None:
    """Return the variable that has the path of this batch job's file of hosts, or None.

    >>> find_host_file_variable({"PBS_NODEFILE": "/var/spool/pbs/aux/7.node1"})
    'PBS_NODEFILE'
    """
    return next((name for name in HOST_FILES if environment.get(name)), None)


class Host(NamedTuple):
    """A host by name, and the number of ranks that it gets before the next host gets some."""

    name: str
    slots: int


def parse_hosts(text: str) -> list[Host]:
    """Return the hosts of a text such as ``"node1:2,node2:2"``; a host without a number has 1 slot.

    The slots of a host that occurs several times are added up.

    Raises:
        InputError: If a word is no host.

    >>> parse_hosts("node1:2,node2")
    [Host(name='node1', slots=2), Host(name='node2', slots=1)]
    """
    matches = [HOST_WORD.fullmatch(word.strip()) for word in text.split(",")]
    if None in matches:
        raise InputError(f"--hosts must be names with numbers of slots, such as node1:2,node2:2, got {text}")
    return _add_slots((match["name"], match["count"]) for match in matches if match)


def read_hostfile(path: str) -> list[Host]:
    """Return the hosts of a file of Open MPI, of MPICH, or of a batch system, by its path.

    A line is ``node1 slots=2``, ``node1:2``, or ``node1`` for 1 slot. If a host is on several lines, its slots are
    added up. Text after ``#`` is a comment.

    Raises:
        InputError: If there is no such file, it has no host, or a line is no host.
    """
    require_file(path, "host file")
    entries = []
    lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        name, *options = line.partition("#")[0].split(maxsplit=1) or [""]
        if not name:
            continue
        word, option = HOST_WORD.fullmatch(name), OPTIONS.fullmatch(" ".join(options).strip())
        if word is None or option is None:
            raise InputError(
                f"{path}, line {number}: a host must be written like node1 slots=2 or node1:2, got {line.strip()}"
            )
        entries.append((word["name"], word["count"] or option["slots"]))
    if not entries:
        raise InputError(f"{path} must name at least one host, got no line with one")
    return _add_slots(entries)


def _add_slots(entries: Iterable[tuple[str, str | None]]) -> list[Host]:
    """Return each host once, in the order of the first entries, with the sum of its slots.

    ``entries`` are pairs (name, number of slots); None is 1 slot.
    """
    slots: dict[str, int] = {}
    for name, count in entries:
        slots[name] = slots.get(name, 0) + int(count or 1)
    return [Host(name, count) for name, count in slots.items()]


def count_slots(hosts: Iterable[Host]) -> int:
    """Return the sum of the hosts' slots."""
    return sum(host.slots for host in hosts)


def spread_ranks(hosts: Sequence[Host], n: int) -> list[Host]:
    """Return the hosts that ``n`` ranks use; ``slots`` is the number of ranks of each.

    Ranks fill the slots in the order of the hosts; hosts without ranks are left out. If there are more ranks than
    slots, the ranks are divided equally over all slots, and the first slots get the remainder, one rank each.

    >>> spread_ranks(parse_hosts("a:2,b:2"), 3)
    [Host(name='a', slots=2), Host(name='b', slots=1)]
    >>> spread_ranks(parse_hosts("a,b,c"), 8)
    [Host(name='a', slots=3), Host(name='b', slots=3), Host(name='c', slots=2)]
    """
    rounds, remainder = divmod(n, count_slots(hosts))
    spread = []
    for name, slots in hosts:
        extra = min(slots, remainder)
        remainder -= extra
        spread.append(Host(name, slots * rounds + extra))
    return [host for host in spread if host.slots]


def format_hosts(hosts: Iterable[Host]) -> str:
    """Return hosts in the notation of launchers, such as ``node1:2,node2:2``."""
    return ",".join(f"{name}:{slots}" for name, slots in hosts)
