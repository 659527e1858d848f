"""Gradients of programs' tensors: those of 16-bit floats are added up in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from spmdsim.core import tensor
from spmdsim.core.elements import each, in_type
from spmdsim.core.tape import like
from spmdsim.core.tensor import Meta
from spmdsim.core.world import performed
from spmdsim.layout.element_type import accumulator

if TYPE_CHECKING:
    from spmdsim.worlds.base import World

T = TypeVar("T", bound="SummedTensor")


class SummedTensor(tensor.Tensor):
    """A tensor whose gradients are added up without loss."""

    __slots__ = ()

    world: World

    def _plus(self: T, others: Sequence[T], more_to_come: bool = False) -> T:
        """Where more is to come, what was rounded is kept, so that sums over many calls do not stand still either."""
        meta, kind = self.meta, accumulator("sum", self.meta.held)
        lists = [x.sums or (x.held if kind is meta.held else in_type(x.held, kind)) for x in (self, *others)]
        sums = performed(partial(each, lambda *arrays: reduce(add, arrays)), *lists)
        origin = self.world.derived_origin(None, [self, *others])
        held = sums if kind is meta.held else in_type(sums, meta.held)
        total = type(self)(self.world, meta, held, origin=origin)
        if more_to_come and kind is not meta.held:
            total.sums = sums
        return total

    def backward(self: T, gradient: T | None = None, *, retain_graph: bool = False) -> None:
        """Compute the gradients of everything this tensor depends on, and add them to ``.grad``.

        Those of complex tensors point uphill, as torch's do: ``dy * conj(dy/dx)`` of a function with a derivative.

        Args:
            gradient: that of the final result with respect to this tensor; 1 for a tensor of one element.
            retain_graph: keep what a second pass through the same operators needs; it is dropped otherwise.

        Raises:
            LayoutError: a gradient of another shape, or none for more than one element.
            UsageTypeError: it needs no gradient; a second pass, where the first did not retain the graph.
        """
        typed = (
            gradient if gradient is None or gradient.dtype == self.dtype else _in_type(gradient, self.dtype)
        )
        super().backward(typed, retain_graph=retain_graph)


def _in_type(gradient: T, dtype: np.dtype) -> T:
    whole, world = gradient.detach().to(gradient.layout.reduced), gradient.world
    shards = [like(x, dtype) if world.has_data else world.empty(x.shape, dtype) for x in whole.shards]
    return type(gradient)(world, Meta.of(whole.layout, whole.shape, dtype), shards)
