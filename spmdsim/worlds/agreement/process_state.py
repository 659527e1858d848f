"""The machine and the process of a rank, and whether the process runs."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from spmdsim.cost.node_map import NodeMap
from spmdsim.settings import RANKS_PER_NODE
from spmdsim.shutdown.processes import read_status

#: States of a process: it runs, was stopped by a signal or a debugger, has ended, its node does not answer although its
#: host confirms what it receives, or its host is not reachable.
RUNNING, STOPPED, ENDED, SILENT, LOST = range(1, 6)
#: States by the letters of ``ps``; all others are running processes.
_STATES = {"T": STOPPED, "t": STOPPED, "Z": ENDED, "X": ENDED}


class ProcessPlace(NamedTuple):
    """Machine, id and host of a process. Processes of one machine and one namespace see each other."""

    machine: str
    process: int
    host: str = ""


def find_own_place(rank: int) -> ProcessPlace:
    """Return the machine and the process id of this process, which is rank ``rank`` of the job.

    The machine is a text that is equal for processes that see each other: the id of the system's boot and the namespace
    of its process ids. It is empty if /proc does not have them.

    If ``SPMDSIM_RANKS_PER_NODE`` is set, one machine plays several nodes: " part" and the number of the rank's node are
    appended. For example, with 2 ranks per node, rank 3 gets " part 1".

    Raises:
        SpmdError: If the setting is wrong.
    """
    ranks_per_node = RANKS_PER_NODE.read()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine = f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # no such system
        machine = ""
    node_text = "" if ranks_per_node is None else f" part {rank // ranks_per_node}"
    return ProcessPlace(machine + node_text, os.getpid(), platform.node())


def map_nodes(places: Sequence[ProcessPlace]) -> NodeMap:
    """Return the node of each rank from the places of all ranks, in rank order.

    Ranks of one machine share a node. A rank on a machine without identity has a node of its own. A node has the name
    of its host; several nodes of one host get a number, such as ``host.0`` and ``host.1``. Numbers that would give the
    name of another host are left out.

    >>> print(map_nodes([ProcessPlace("x", 1, "left"), ProcessPlace("y", 1, "right"), ProcessPlace("x", 2, "left")]))
    left: ranks 0, 2; right: rank 1
    >>> map_nodes([ProcessPlace("x", 1, "host"), ProcessPlace("", 2, "host"), ProcessPlace("", 3, "host")]).hosts
    ('host.0', 'host.1', 'host.2')
    """
    machines = [place.machine or f"alone {rank}" for rank, place in enumerate(places)]
    host_of_machine = {machine: place.host or "host" for machine, place in zip(machines, places)}
    hosts = list(host_of_machine.values())
    machine_counts = Counter(hosts)
    numbers = {host: count() for host in machine_counts}
    names = []
    for host in hosts:
        numbered_names = (f"{host}.{number}" for number in numbers[host])
        is_single = machine_counts[host] == 1
        names.append(
            host if is_single else next(name for name in numbered_names if name not in machine_counts)
        )
    return NodeMap(machines, names)


def find_process_state(process: int) -> int:
    """Return the state of a process of this machine: ``RUNNING``, ``STOPPED`` or ``ENDED``.

    A zombie has ended; a process that a signal or a debugger stopped is ``STOPPED``. A process of another user, or one
    whose status cannot be read, counts as ``RUNNING``.

    Args:
        process: the process id.
    """
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ENDED
    except OSError:  # the process belongs to another user
        return RUNNING
    status = read_status(process)
    return RUNNING if status is None else _STATES.get(status.state, RUNNING)
