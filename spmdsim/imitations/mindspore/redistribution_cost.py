"""MindSpore's own cost of a redistribution, in elements.

Volumes as its model counts them, not as they are: an AllGather counts half of what it gathers, an AllToAll twice the
slice however many ranks take part. After ``TensorRedistribution::ComputeCost``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from spmdsim.imitations.mindspore.map_operators import MapOperator, after_operator

ALL_TO_ALL_SCALE = 2.0
ALL_GATHER_SCALE = 0.5
COST_FACTOR = 2.0


class MapCost(NamedTuple):
    """A cost in elements times the type length.

    Attributes:
        forward: communication forward.
        backward: communication backward.
        computation: elements touched.
        memory: elements of buffers.
    """

    forward: float
    backward: float
    computation: float
    memory: float

    @property
    def communication(self) -> float:
        """Forward and backward together."""
        return self.forward + self.backward


def operator_cost(name: str, elements: int, count: int = 1, dim: int = 0, nbytes: int = 1) -> MapCost:
    """The cost of one operator.

    Args:
        name: ``Split``, ``Concat`` or ``AllToAll`` (also called Permute).
        elements: size of the slice before it.
        count: devices that take part.
        dim: the dim that is concatenated; beyond 0 the values are copied once more.
        nbytes: type length.

    >>> operator_cost("Concat", 100, 4).forward, operator_cost("AllToAll", 100, 4).communication
    (200.0, 400.0)
    >>> operator_cost("Concat", 100).forward  # of one device
    50.0
    """
    whole = elements * count
    copies = elements if dim == 0 else elements + COST_FACTOR * whole
    if name == "Concat":
        # A concat also adds what a split costs, which the original's own comment doubts.
        memory = whole if dim == 0 else copies
        one = MapCost(
            whole * ALL_GATHER_SCALE, elements * ALL_GATHER_SCALE, copies + elements, memory + elements
        )
    elif name in ("AllToAll", "Permute"):
        moved = elements * ALL_TO_ALL_SCALE
        one = MapCost(moved, moved, copies + elements, copies + elements)
    else:
        one = MapCost(0.0, 0.0, elements, elements)
    return MapCost(*(value * nbytes for value in one))


def list_cost(ops: Sequence[MapOperator], local: Sequence[int], nbytes: int = 1) -> MapCost:
    """The cost of a list of operators that starts from a local shape."""
    total = [0.0, 0.0, 0.0, 0.0]
    shape = list(local)
    for op in ops:
        elements = math.prod(shape)
        if op.name == "Reshape":
            one = MapCost(0.0, 0.0, COST_FACTOR * elements * nbytes, COST_FACTOR * elements * nbytes)
        elif op.name == "AllConcat":
            one = operator_cost("Concat", elements, len(op.args) - 1, op.args[-1], nbytes)
        elif op.name == "AllToAll":
            one = operator_cost("AllToAll", elements, op.args["count"], op.args["concat_dim"], nbytes)
        else:
            one = operator_cost("Split", elements, nbytes=nbytes)
        total = [a + b for a, b in zip(total, one)]
        shape = after_operator(op, shape)
    return MapCost(*total)
