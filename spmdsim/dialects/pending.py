"""Tensors brought into layouts that may be pending, which the systems of the dialects allow."""

from __future__ import annotations

from spmdsim.core import Layout
from spmdsim.core.tensor import follow
from spmdsim.redistribution import plan
from spmdsim.tensor import Tensor


def laid_out(value: Tensor, layout: Layout) -> Tensor:
    """The same tensor in another layout; of a sum that is to be pending each value is on one rank, where others have 0.

    >>> from spmdsim import Mesh, Tensor
    >>> mesh = Mesh((2,), ("dp",))
    >>> y = laid_out(Tensor.from_global([1.0, 2.0], mesh("dp")), Layout(mesh, [()], {"dp": "sum"}))
    >>> y.layout.short(), y.full().tolist()
    ('P(sum)', [1.0, 2.0])
    """
    if not layout.partial or layout == value.layout:
        return value.to(layout)
    route = plan(value.layout, layout, value.shape, value.dtype, value.world.machine, partial_target=True)
    return follow(value, route)
