"""Modelled time: what one message and one collective cost on a machine of alpha, beta and gamma.

This is the only file that knows how a machine is described. A rank has one port out and one port in, both
usable at once: messages of a rank leave one after the other, and arrive one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spmdsim.cost.closed_forms import received_per_message, textbook_seconds
from spmdsim.errors import InputError, UsageTypeError


@dataclass(frozen=True)
class Speeds:
    """Seconds per message, per byte and per reduced byte; inside a node perhaps other ones.

    Attributes:
        alpha: seconds per message.
        beta: seconds per byte.
        gamma: seconds per reduced byte.
        ranks_per_node: consecutive ranks that share a node; 0 when all are equally far.
        near_alpha: seconds per message inside a node.
        near_beta: seconds per byte inside a node.
    """

    alpha: float = 1e-6
    beta: float = 1e-10
    gamma: float = 1e-10
    ranks_per_node: int = 0
    near_alpha: float = 0.0
    near_beta: float = 0.0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "gamma", "near_alpha", "near_beta"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise InputError(f"{name} is {value}, but a time is a finite number, zero or more")

    def link(self, ranks: Sequence[int]) -> tuple[float, float]:
        """Seconds per message and per byte between these ranks of the whole program."""
        node = self.ranks_per_node
        if node and min(ranks) // node == max(ranks) // node:
            return self.near_alpha, self.near_beta
        return self.alpha, self.beta


def speeds_of(machine: Any) -> Speeds:
    """Read a machine: None, (alpha, beta[, gamma]), a name or file, or a :class:`spmdsim.cost.Machine`.

    Raises:
        InputError: a number below zero, or no such machine.
        UsageTypeError: not a machine at all.

    >>> speeds_of((2e-6, 1e-9)).alpha
    2e-06
    """
    if machine is None:
        return Speeds()
    if isinstance(machine, Speeds):
        return machine
    if isinstance(machine, str | os.PathLike):
        from spmdsim.cost import load_machine

        return speeds_of(load_machine(os.fspath(machine)))
    if isinstance(machine, tuple | list) and 2 <= len(machine) <= 3:
        alpha, beta, gamma = (*machine, Speeds.gamma)[:3]
        return Speeds(float(alpha), float(beta), float(gamma))
    if not (hasattr(machine, "alpha") and hasattr(machine, "beta")):
        raise UsageTypeError(
            f"a machine is a name, a file, (alpha, beta, gamma) or a Machine, not {machine!r}"
        )
    near = getattr(machine, "intra", None)
    node = getattr(machine, "ranks_per_node", 0)
    speeds = (machine.alpha, machine.beta, getattr(machine, "gamma", 0.0), node)
    return Speeds(*speeds, near.alpha, near.beta) if near is not None and node else Speeds(*speeds[:3])


def collective_seconds(collective: str, ranks: Sequence[int], nbytes: int, speeds: Speeds) -> float:
    """Seconds of one collective, from the moment the last rank it needs has come: the textbook's, as plans count.

    Args:
        collective: its name in ``spmdsim.cost.closed_forms``.
        ranks: ranks of the whole program that take part.
        nbytes: bytes of the vector, or all bytes one rank exchanges with the others.
        speeds: the machine.

    >>> collective_seconds("broadcast", range(8), 1000, Speeds(1.0, 0.0, 0.0))
    3.0
    """
    received = nbytes * received_per_message(collective, len(ranks))
    return textbook_seconds(collective, len(ranks), received, *speeds.link(ranks), speeds.gamma)
