"""The virtual axis ``interleaved_parallel``: devices and groups of a mesh that has one.

A device matrix whose last axis is virtual describes *virtual ranks*: virtual rank ``device * n + i`` is micro-shard
``i`` of a device, where ``n`` is the size of the axis. Operators work on one micro-shard after the other, so
collectives go over devices only, and what is summed along the virtual axis is summed on the device itself.
Semantics: ``parallel/shard.py`` (Layout), ``tensor_layout/tensor_layout.cc`` (the real device matrix has size 1 in
place of the axis), ``ops_info/operator_info.cc`` (UpdateOutputTensorInfoForInterleaved).

>>> mesh = Mesh((2, 2, 3), ("dp", "sp", VIRTUAL))
>>> device_mesh(mesh).shape, device_mesh(mesh).groups("dp"), micro_shards(mesh)
((2, 2, 1), ((0, 2), (1, 3)), 3)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spmdsim.core import Layout, Mesh
from spmdsim.errors import LayoutError

VIRTUAL = "interleaved_parallel"
"""The alias of a virtual last axis: every device holds that many micro-shards of the tensor."""


def micro_shards(mesh: Mesh) -> int:
    """How many micro-shards a device holds: the size of the virtual axis, 1 if there is none."""
    return mesh.axis_size(VIRTUAL) if VIRTUAL in mesh.axes else 1


def real_axes(axes: Iterable[str]) -> tuple[str, ...]:
    """The axes along which devices differ."""
    return tuple(axis for axis in axes if axis != VIRTUAL)


def device_mesh(mesh: Mesh) -> Mesh:
    """The mesh of devices: the virtual axis has size 1. A mesh without one is returned as it is.

    Raises:
        LayoutError: an order of ranks in which the micro-shards of a device do not stand side by side.
    """
    times = micro_shards(mesh)
    if VIRTUAL not in mesh.axes:
        return mesh
    shape = (*mesh.shape[:-1], 1)
    if mesh.ranks is None:
        return Mesh(shape, mesh.axes)
    blocks = [mesh.ranks[at : at + times] for at in range(0, mesh.size, times)]
    for block in blocks:
        if block[0] % times or block != tuple(range(block[0], block[0] + times)):
            raise LayoutError(
                f"a device plays {times} virtual ranks, device * {times} + i, which stand side by side in "
                f"rank_list, but got {block} in {list(mesh.ranks)}"
            )
    return Mesh(shape, mesh.axes, [block[0] // times for block in blocks])


def device_layout(layout: Layout) -> Layout:
    """The layout of whole devices: the micro-shards of a device as one shard.

    What the virtual axis splits is whole on the device, and a sum pending along it is done there. Where the virtual
    axis is the minor one of its dim, as it should be, this shard is exactly the device's micro-shards, one after
    the other.
    """
    if VIRTUAL not in layout.mesh.axes:
        return layout
    partial = [(axis, op) for axis, op in layout.partial if axis != VIRTUAL]
    return Layout(device_mesh(layout.mesh), [real_axes(entry) for entry in layout.dims], partial)


def check_devices(layouts: Sequence[Layout], devices: int | Sequence[int] | None) -> None:
    """Refuse layouts that are for another number of devices.

    Raises:
        LayoutError: naming both numbers.
    """
    count = None if devices is None else devices if isinstance(devices, int) else len(devices)
    for layout in layouts:
        needed = layout.mesh.size // micro_shards(layout.mesh)
        if count not in (None, needed):
            raise LayoutError(f"the layouts are for {needed} devices, but there are {count}")
