"""Reference of ``dialects.mindspore.optimizer_shard``: MindSpore's layout of a parameter that the optimizer shards."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spmdsim.dialects.imitations.mindspore.map_layouts import MapLayout, Shape, Sizes, expand_tuples
from spmdsim.errors import PlanError

Entry = int | Sizes


def optimizer_shard_layout(
    matrix: Sizes, entries: Sequence[Entry], step: int, size: int, shape: Sizes
) -> MapLayout:
    """Return the layout of a parameter whose slices the optimizer splits once more along dim 0.

    The model's split of dim 0 is the major one, and the optimizer's split is the minor one. Each axis of both becomes a
    separate dim. If slices repeat along the first axis only, the device matrix is the cuts of the dims, like in MindSpore
    (``_construct_tensor_layout_for_opt_shard``).

    Args:
        matrix: the device matrix.
        entries: the axes of each dim, counted from the right; -1 for an uncut dim.
        step: the distance of the ranks that share a slice; 0 for no sharing. If slices repeat along a single axis, it is
            the product of the axes to the right of this axis.
        size: the number of ranks that share a slice; -1 for all ranks with the slice, 0 for no sharing.
        shape: the global shape.

    Raises:
        PlanError: If no slices repeat, ``step`` or ``size`` does not fit the repeated axes, or dim 0 is not divisible.
    """
    matrix, shape = tuple(matrix), tuple(shape)
    if not step or not size:
        return expand_tuples(matrix, entries, shape)
    several = any(not isinstance(entry, int) for entry in entries)
    repeated = _repeated(matrix, entries)
    if not several and len(repeated) == 1 and step != math.prod(matrix[repeated[0] + 1 :]):
        raise PlanError(
            f"slices repeat every {math.prod(matrix[repeated[0] + 1 :])} ranks of {matrix}, but the step is {step}"
        )
    total = math.prod(matrix[at] for at in repeated)
    count = total if size < 0 else size
    if total % count:
        raise PlanError(f"{count} ranks cannot share what {total} hold")
    model = math.prod(_size(matrix, axis) for axis in _axes(entries[0]))
    if shape[0] % (model * count):
        raise PlanError(f"dim 0 of {shape} cannot be split in {model} times {count}")
    if not several and repeated == [*range(len(repeated))] and len(repeated) in (1, len(matrix)):
        as_cuts = _as_cuts(matrix, [_axes(entry) for entry in entries], total // count, count, shape)
        if as_cuts is not None:
            return as_cuts
    return _as_axes(matrix, entries, repeated, count, (model, *shape))


def _as_cuts(
    matrix: Shape, entries: Sequence[Sizes], times: int, count: int, shape: Shape
) -> MapLayout | None:
    """Return the layout whose device matrix is the optimizer's axis and the cuts of the dims.

    Args:
        matrix: the device matrix.
        entries: the axes of each dim, counted from the right.
        times: the number of replicas of each slice of the optimizer.
        count: the number of ranks that share a slice of the model.
        shape: the global shape.

    Returns:
        The layout, or None if the axes of the dims are not in the order of the device matrix.
    """
    used = [axis for entry in entries for axis in entry if _size(matrix, axis) > 1]
    if used != sorted(used, reverse=True):
        return None
    cuts = [math.prod(_size(matrix, axis) for axis in entry) for entry in entries]
    numbers = [len(cuts) - 1 - d if cut > 1 else -1 for d, cut in enumerate(cuts)]
    leading = (times, count) if times > 1 else (count,)
    axes = (numbers[0], len(cuts), *numbers[1:])
    return MapLayout((*leading, *cuts), axes, (cuts[0], shape[0] // cuts[0], *shape[1:]))


def _as_axes(matrix: Shape, entries: Sequence[Entry], repeated: Sizes, count: int, sizes: Shape) -> MapLayout:
    """Return the layout in which repeated axes of the device matrix split dim 0, from the right on.

    The last of these axes is cut into two axes if only a fraction of its ranks share a slice.

    Args:
        matrix: the device matrix.
        entries: the axes of each dim, counted from the right.
        repeated: the indices of the axes along which slices repeat, from the left.
        count: the number of ranks that share a slice of the model.
        sizes: the model's number of blocks of dim 0, then the global shape.

    Raises:
        PlanError: If ``count`` ranks cannot share along these axes.
    """
    shared: list[int] = []
    for at in reversed(repeated):
        block_count = math.gcd(count, matrix[at]) if count < matrix[at] else matrix[at]
        if count % block_count or (block_count < matrix[at] and block_count != count):
            raise PlanError(f"{count} ranks cannot share along axis {at} of {matrix}, which has {matrix[at]}")
        if block_count < matrix[at]:
            left = len(matrix) - 1 - at
            entries = [[axis + (axis > left) for axis in _axes(entry)] for entry in entries]
            matrix = (*matrix[:at], matrix[at] // block_count, block_count, *matrix[at + 1 :])
            shared = [other + 1 for other in shared]
            at += 1
        shared.insert(0, at)
        count //= block_count
        if count == 1:
            break
    model, first, *others = sizes
    major_sizes = [matrix[at] for at in shared[:-1]]
    axes: list[Entry] = [entries[0], *(len(matrix) - 1 - at for at in shared), *entries[1:]]
    last_size = first // model // math.prod(major_sizes)
    return expand_tuples(matrix, axes, (model, *major_sizes, last_size, *others))


def _repeated(matrix: Shape, entries: Sequence[Entry]) -> list[int]:
    used = {len(matrix) - 1 - axis for entry in entries for axis in _axes(entry)}
    free = [at for at, size in enumerate(matrix) if size > 1 and at not in used]
    if not free:
        raise PlanError(
            f"no slices of {tuple(entries)} repeat on {matrix}, so the optimizer has nothing to share out"
        )
    return free


def _axes(entry: Entry) -> list[int]:
    return [axis for axis in ([entry] if isinstance(entry, int) else entry) if axis >= 0]


def _size(matrix: Shape, axis: int) -> int:
    return matrix[len(matrix) - 1 - axis]
