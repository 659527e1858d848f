"""The roofline: time of local computation from its flops and the bytes it touches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from spmdsim.cost.machine import CostModel, Machine


@dataclass(frozen=True)
class Work:
    """What one rank does locally.

    Attributes:
        flops: floating point operations.
        nbytes: bytes read and written, each operand once.

    >>> Work(2e9, 4e6) + Work(0, 1e6)
    Work(flops=2000000000.0, nbytes=5000000.0)
    """

    flops: float
    nbytes: float

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.nbytes + other.nbytes)

    @property
    def intensity(self) -> float:
        """Flops per byte touched; infinite when nothing is touched."""
        return self.flops / self.nbytes if self.nbytes else float("inf")

    def seconds(self, model: CostModel) -> float:
        """Time on a machine, or cost in a published model's unit."""
        return model.compute_seconds(self.flops, self.nbytes)

    def bound(self, machine: Machine) -> str:
        """What limits this work on this machine: ``compute`` or ``memory``.

        >>> Work(2e9, 4e6).bound(Machine.laptop()), Work(1e6, 12e6).bound(Machine.laptop())
        ('compute', 'memory')
        """
        return "compute" if self.intensity >= ridge(machine) else "memory"


def ridge(machine: Machine) -> float:
    """The flops per byte above which a machine is limited by arithmetic; 0 if memory costs nothing."""
    return machine.flops * machine.beta_memory


def work(flops: float, local_shapes: Iterable[Sequence[int]], itemsize: int) -> Work:
    """Work of an operator that touches each of its local operands and results once.

    Args:
        flops: operations of this rank.
        local_shapes: shapes of the shards read and written.
        itemsize: bytes per element.

    >>> work(2 * 4 * 5 * 6, [(4, 5), (5, 6), (4, 6)], 4)
    Work(flops=240, nbytes=296)
    """
    return Work(flops, itemsize * sum(prod(shape) for shape in local_shapes))
