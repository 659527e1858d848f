"""MindSpore's cost terms of operators, by its names and constants.

Costs are bytes, not seconds: computation and memory count the bytes of slices, communication those that collectives
carry. The objective weighs them: ``alpha * computation + beta * communication``.

Source: ``operator_costmodel.cc``, ``costmodel.cc``; the weights and the refinement for short messages are in
:class:`spmdsim.imitations.cost_models.MindSporeModel`, the costs of redistributions in
:mod:`spmdsim.imitations.mindspore.redistribution_cost`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spmdsim.errors import InputError
from spmdsim.imitations.cost_models import MindSporeModel

Shape = Sequence[int]


@dataclass(frozen=True)
class OperatorCost:
    """MindSpore's cost fields of one operator, in bytes."""

    forward_comm: float
    backward_comm: float
    forward_computation: float
    backward_computation: float

    @property
    def communication(self) -> float:
        """Forward and backward."""
        return self.forward_comm + self.backward_comm

    @property
    def computation(self) -> float:
        """Forward and backward."""
        return self.forward_computation + self.backward_computation

    def objective(self, model: MindSporeModel | None = None) -> float:
        """``alpha * computation + beta * communication_with_partial_para``.

        What parameters' gradients communicate (the backward part) overlaps with computation and counts by gamma
        only.
        """
        model = model or MindSporeModel()
        partial = self.forward_comm + model.gamma * self.backward_comm
        return model.alpha * self.computation + model.beta * partial


def operator_cost(
    slices: Sequence[Shape],
    shapes: Sequence[Shape],
    output_slices: Sequence[Shape],
    parameters: Sequence[bool],
    itemsize: int = 4,
    *,
    reduces: bool = False,
    devices: int | None = None,
) -> OperatorCost:
    """Costs of an operator from its slices.

    Forward, the results are communicated where a summed dim is split, which MindSpore tells from the last dim of the
    first operand; computation is the operands' slices, and the results' where they are communicated. Backward, every
    parameter that is replicated somewhere is communicated and computed on.

    Args:
        slices: per operand the shape of a rank's slice.
        shapes: per operand the global shape.
        output_slices: per result the slice.
        parameters: per operand whether it is a parameter.
        itemsize: bytes per element.
        reduces: whether the operator sums over the last dim of its first operand.
        devices: ranks; as many as the operands' cuts make together if left out.

    Raises:
        InputError: numbers of operands that differ, or slices that do not divide their shapes.

    >>> operator_cost([(8, 32, 8, 8), (32,)], [(32, 32, 32, 32), (32,)], [(8, 32, 8, 8)], [False, True])
    OperatorCost(forward_comm=0, backward_comm=128, forward_computation=65664, backward_computation=128)
    """
    if not len(slices) == len(shapes) == len(parameters):
        raise InputError(
            f"{len(slices)} slices, {len(shapes)} shapes and {len(parameters)} flags do not go together"
        )
    cuts = [_cuts(part, shape) for part, shape in zip(slices, shapes)]
    ranks = devices or _ranks(cuts, reduces)
    nbytes = [itemsize * math.prod(part) for part in slices]
    split = reduces and bool(cuts[0]) and cuts[0][-1] > 1
    results = sum(itemsize * math.prod(part) for part in output_slices) if split else 0
    backward = sum(n for n, cut, own in zip(nbytes, cuts, parameters) if own and math.prod(cut) != ranks)
    return OperatorCost(results, backward, sum(nbytes) + results, backward)


def _ranks(cuts: Sequence[Sequence[int]], reduces: bool) -> int:
    """Ranks that distinct work is done on, as far as the operands' cuts show it."""
    if reduces and len(cuts) == 2:
        return math.prod(cuts[0]) * math.prod(cuts[1]) // cuts[0][-1]
    return max(map(math.prod, cuts), default=1)


def _cuts(part: Shape, shape: Shape) -> list[int]:
    if len(part) != len(shape) or any(b <= 0 or a % b for a, b in zip(shape, part)):
        raise InputError(f"a slice of shape {tuple(part)} does not divide a tensor of shape {tuple(shape)}")
    return [a // b for a, b in zip(shape, part)]
