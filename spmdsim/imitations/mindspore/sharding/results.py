"""What follows the local operator: the collective that finishes its result, and the layouts it can be had in.

Semantics: ``ops_info/matmul_info.cc`` and ``gather_info.cc`` (out_strategy), ``operator_info.cc`` (forward
communication).
"""

from __future__ import annotations

from typing import Any

from spmdsim.core import Layout
from spmdsim.dialects.mindspore.layout import device_mesh, real_axes
from spmdsim.dialects.mindspore.table import ShardError
from spmdsim.imitations.mindspore.sharding.sharded import Forward

Shape = tuple[int, ...]


def forward(computed: Layout, wanted: Layout, mean: bool = False) -> list[Forward]:
    """The collective after the local operator: nothing, an AllReduce or a ReduceScatter.

    What is pending along a virtual axis is summed on the device.
    """
    axes = pending_axes(computed)
    if not axes:
        return []
    op = dict(computed.partial)[axes[0]]
    name = "ReduceScatter" if set(axes) & set(wanted.split_axes) else "AllReduce"
    divisor = computed.mesh.axis_size(*computed.partial_axes) if mean else 1
    return [Forward(name, op, axes, device_mesh(computed.mesh).groups(*axes), divisor)]


def pending_axes(computed: Layout) -> tuple[str, ...]:
    """The axes over which devices still have to reduce."""
    return tuple(axis for axis in real_axes(computed.partial_axes) if computed.mesh.axis_size(axis) > 1)


def result_layout(kind: str, computed: Layout, shape: Shape, out: Any) -> Layout:
    """The layout that an out_strategy asks for, if the operator can give it.

    Raises:
        RuntimeError: the operator takes none, or another one.
    """
    if kind == "no":
        raise ShardError("an out_strategy is not accepted: the operator's result has the layout that follows")
    entry = out[0] if isinstance(out, (tuple, list)) and out and not isinstance(out[0], int) else out
    choices = [computed.reduced]
    if kind == "product" and pending_axes(computed):
        choices.append(scattered(computed))
    if isinstance(entry, Layout):
        fitting = [c for c in choices if c.canonical == Layout(entry.mesh, entry.dims).canonical]
    else:
        if kind == "product" and len(shape) != 2:
            raise ShardError(f"an out_strategy is accepted for 2-D products only, but the result is {shape}")
        fitting = [c for c in choices if c.parts == tuple(entry)]
    if not fitting:
        raise ShardError(
            f"out_strategy {entry} cannot be had; the result is {' or '.join(map(str, choices))}"
            f" (cuts {', '.join(str(c.parts) for c in choices)})"
        )
    return fitting[0]


def scattered(computed: Layout) -> Layout:
    """Dim 0 split further, by the axes that were still to be reduced, as minor ones."""
    return Layout(computed.mesh, ((*computed.dims[0], *pending_axes(computed)), *computed.dims[1:]))
