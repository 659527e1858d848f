"""Find dims that are not split evenly, and move gradients to fixed layouts, for several dialects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spmdsim.arrays import Tensor
from spmdsim.arrays.ops import add
from spmdsim.core import Layout
from spmdsim.core.tape import reduce_gradients
from spmdsim.core.tensor import Gradients, MoveNode
from spmdsim.errors import many


@dataclass(frozen=True)
class Uneven:
    """Dim ``dim`` of size ``size``, which cannot be split evenly into ``parts`` blocks along ``axes``."""

    dim: int
    size: int
    parts: int
    axes: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"dim {self.dim} has size {self.size}, which cannot be split evenly into {many(self.parts, 'part')} "
            f"(along {', '.join(self.axes)}); use a multiple of {self.parts}"
        )


def first_uneven(layout: Layout, shape: Sequence[int]) -> Uneven | None:
    """Return the first dim that a layout does not split evenly, or None if it splits all evenly.

    The library itself splits such dims; JAX, MindSpore and Paddle refuse them. Dims of size 0 are even.

    Raises:
        LayoutError: If the shape has another number of dims than the layout.

    >>> from spmdsim.core import Mesh
    >>> print(first_uneven(Mesh((2, 4), ("dp", "mp"))(None, "mp"), (3, 6)))
    dim 1 has size 6, which cannot be split evenly into 4 parts (along mp); use a multiple of 4
    """
    layout.check_shape(shape)
    for dim, (size, parts) in enumerate(zip(shape, layout.cuts)):
        if size % parts:
            return Uneven(dim, size, parts, layout.dims[dim])
    return None


def plus_bias(y: Tensor, bias: Any) -> Tensor:
    """Return ``y + bias``, or ``y`` if ``bias`` is None.

    Pending sums of ``y`` are reduced before the addition.
    """
    return y if bias is None else add(y.to(y.layout.reduced), bias)


class GradientMove(MoveNode):
    """Identity whose gradient passes through a given layout.

    OneFlow's ``grad_sbp`` and level 1 of MindSpore's ``hsdp`` need it.
    """

    __slots__ = ("layout",)

    def __init__(self, operand: Tensor, layout: Layout) -> None:
        super().__init__(operand)
        self.layout = layout

    def pull(self, gradients: list[Gradients]) -> list[Gradients]:
        """Return the sum of the gradients in the layout, with all reductions complete."""
        return [[reduce_gradients(gradients[0], self.layout.reduced)]]
