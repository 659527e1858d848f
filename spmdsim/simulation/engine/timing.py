"""Modelled time: what one message and one collective cost on a machine.

A rank has one port out and one port in, both usable at once: messages of a rank leave one after the other, and arrive
one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from spmdsim.cost.closed_forms import Link, received_per_message
from spmdsim.cost.machine import Machine
from spmdsim.errors import UsageTypeError

#: What may be said of a machine: its name or file, (alpha, beta[, gamma]), itself, or nothing.
MachineLike = Machine | str | os.PathLike[str] | Sequence[float] | None

_PLAIN = Machine("a plain network", alpha=1e-6, beta=1e-10, gamma=1e-10)


def as_machine(machine: MachineLike) -> Machine:
    """Read a machine: None, (alpha, beta[, gamma]), a name or file, or a :class:`spmdsim.cost.Machine`.

    Raises:
        InputError: a number below zero, or no such machine.
        UsageTypeError: not a machine at all.

    >>> as_machine((2e-6, 1e-9)).alpha
    2e-06
    """
    if machine is None:
        return _PLAIN
    if isinstance(machine, Machine):
        return machine
    if isinstance(machine, str | os.PathLike):
        from spmdsim.cost import load_machine

        return load_machine(os.fspath(machine))
    if isinstance(machine, tuple | list) and 2 <= len(machine) <= 3:
        alpha, beta, gamma = (*machine, _PLAIN.gamma)[:3]
        return Machine("given numbers", float(alpha), float(beta), float(gamma))
    raise UsageTypeError(f"a machine is a name, a file, (alpha, beta, gamma) or a Machine, not {machine!r}")


def share_a_node(machine: Machine, ranks: Sequence[int]) -> bool:
    """Whether ranks of the whole program are in one node of a machine that has nodes."""
    node = machine.ranks_per_node
    return bool(node) and min(ranks) // node == max(ranks) // node


def message_link(machine: Machine, ranks: Sequence[int], nbytes: int) -> Link:
    """Seconds per message, and per byte, of messages of a size between these ranks of the whole program.

    >>> message_link(_PLAIN, (0, 1), 8)
    Link(alpha=1e-06, beta=1e-10)
    """
    inside = machine.intra if share_a_node(machine, ranks) else None
    return inside or machine.piece(nbytes)


def collective_seconds(collective: str, ranks: Sequence[int], nbytes: int, machine: Machine) -> float:
    """Seconds of one collective, from the moment the last rank it needs has come: the price that plans count.

    Args:
        collective: its name in ``spmdsim.cost.closed_forms``.
        ranks: ranks of the whole program that take part.
        nbytes: bytes of the vector, or all bytes one rank exchanges with the others.
        machine: the machine.

    >>> collective_seconds("broadcast", range(8), 1000, Machine("m", 1.0, 0.0))
    3.0
    """
    received = nbytes * received_per_message(collective, len(ranks))
    span = 1 if share_a_node(machine, ranks) else machine.ranks_per_node + 1
    return machine.seconds(collective, len(ranks), received, span=span)
