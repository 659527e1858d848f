"""Other forms of a MindSpore layout: without axes of size 1, without tuples, split again for the optimizer.

Semantics: ``tensor_layout/tensor_layout.cc`` (RemoveElementEqualToOneInDeviceArrangement, InitFromExtendVector,
GenerateOptShardSliceShape) and ``parallel/_tensor.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from spmdsim.core import Layout
from spmdsim.dialects.mindspore.layout import MindSporeLayout, check_even, from_tensor_map, real_axes
from spmdsim.errors import LayoutError


def without_ones(layout: Layout) -> MindSporeLayout:
    """The same distribution on a device matrix without axes of size 1; the map is renumbered.

    >>> found = without_ones(from_tensor_map((1, 16, 1), (2, 1)))
    >>> found.mesh.shape, found.tensor_map
    ((16,), (-1, 0))
    """
    kept = [axis for axis, size in zip(layout.mesh.axes, layout.mesh.shape) if size > 1]
    shape = [layout.mesh.axis_size(axis) for axis in kept]
    numbers = {axis: len(kept) - 1 - i for i, axis in enumerate(kept)}
    entries = [tuple(numbers[axis] for axis in entry if axis in numbers) for entry in layout.dims]
    return from_tensor_map(shape, _written(entries), layout.mesh.rank_list, kept)


def without_tuples(layout: Layout, shape: Sequence[int]) -> tuple[MindSporeLayout, tuple[int, ...]]:
    """The same distribution of a reshaped tensor in which every dim is split by at most one axis.

    A dim with several axes becomes several dims: one per axis but the last, with the axis's size, and the rest.

    Raises:
        ValueError: a dim that does not divide.

    >>> found, shape = without_tuples(from_tensor_map((4, 2, 2), ((2, 1), 0)), (8, 8))
    >>> found.tensor_map, shape
    ((2, 1, 0), (4, 2, 8))
    """
    check_even(layout, shape)
    from_right = {axis: len(layout.mesh.axes) - 1 - i for i, axis in enumerate(layout.mesh.axes)}
    entries: list[tuple[int, ...]] = []
    sizes: list[int] = []
    for size, entry in zip(shape, layout.dims):
        leading = [layout.mesh.axis_size(axis) for axis in entry[:-1]]
        sizes += [*leading, size // math.prod(leading)]
        entries += [(from_right[axis],) for axis in entry] or [()]
    mesh = layout.mesh
    return from_tensor_map(mesh.shape, _written(entries), mesh.rank_list, mesh.axes), tuple(sizes)


def optimizer_shard(layout: Layout, shape: Sequence[int]) -> Layout:
    """A parameter's layout when the devices that hold equal slices share them out along dim 0.

    The split of the model is the major part of dim 0, that of the optimizer the minor one.

    Raises:
        ValueError: no two devices hold equal slices, or dim 0 does not divide.

    >>> optimizer_shard(from_tensor_map((8, 4), (-1, 0)), (512, 1024)).local_shape((512, 1024), 0)
    (64, 256)
    """
    if not layout.ndim:
        raise LayoutError("a scalar has no dim 0 along which its devices could share it out")
    replicated = real_axes(layout.replicated_axes)
    if layout.mesh.axis_size(*replicated) == 1:
        raise LayoutError(f"no devices hold equal slices of {layout}, so there is nothing to share out")
    axes = (*layout.dims[0], *replicated)
    shared = Layout(layout.mesh, (axes, *layout.dims[1:]))
    check_even(shared, shape, "the parameter")
    return shared


def _written(entries: Sequence[tuple[int, ...]]) -> list[int | tuple[int, ...]]:
    return [-1 if not entry else entry[0] if len(entry) == 1 else entry for entry in entries]
