"""Hosts of the job's ranks, as far as worlds of this process have learnt them; errors name them beside the ranks."""

from __future__ import annotations

from collections.abc import Sequence

from spmdsim.errors import many
from spmdsim.sides import name_ranks

#: Hosts that one text names.
MOST = 4
_hosts: dict[int, str] = {}


def add_hosts(ranks: Sequence[int], names: Sequence[str]) -> None:
    """Store the host names of ranks, by their numbers in the job."""
    _hosts.update(zip(ranks, names))


def list_hosts(ranks: Sequence[int]) -> str:
    """Return the names of the hosts of some ranks, such as "node1, node2"; each host once.

    At most :data:`MOST` (4) hosts are named, as in "a, b, c, d and 3 other hosts". The text is empty if this process
    knows only one host of the job. Ranks whose host it does not know are left out.

    Args:
        ranks: the ranks, by their numbers in ``MPI.COMM_WORLD``.
    """
    hosts = list(dict.fromkeys(_hosts[rank] for rank in ranks if rank in _hosts))
    if len({*_hosts.values()}) < 2:
        return ""
    others = f" and {many(len(hosts) - MOST, 'other host')}" if len(hosts) > MOST else ""
    return f"{', '.join(hosts[:MOST])}{others}"


def name_ranks_on_hosts(ranks: Sequence[int]) -> str:
    """Return ranks in words with their hosts: "ranks 4, 5 on node3"; "ranks 4, 5" if the job has one host.

    Args:
        ranks: the ranks, by their numbers in the job.
    """
    hosts = list_hosts(ranks)
    return f"{name_ranks(ranks)} on {hosts}" if hosts else name_ranks(ranks)
