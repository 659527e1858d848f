"""The reference of ``dialects.mindspore.optimizer_shard``: how MindSpore writes a parameter that the optimizer shares out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spmdsim.dialects.imitations.mindspore.map_layouts import MapLayout, Shape, Sizes, expand_tuples
from spmdsim.errors import PlanError

Entry = int | Sizes


def optimizer_shard_layout(
    matrix: Sizes, entries: Sequence[Entry], step: int, size: int, shape: Sizes
) -> MapLayout:
    """The layout of a parameter whose slices the optimizer shares out along dim 0: it is split once more there.

    The split of the model is the major one, that of the optimizer the minor one; both become dims of their own, one per
    axis. Where slices repeat along the first axis only, the device matrix is written as the cuts of the dims, as
    MindSpore does (``_construct_tensor_layout_for_opt_shard``). ``step`` is the distance of the ranks that share a slice:
    the product of the axes to the right of the repeated one, where there is a single one; ``size`` of them share, -1 for
    all. 0 for no sharing.
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
    """The cuts of the dims as device matrix, the optimizer's axis on their left; None if it is another order."""
    used = [axis for entry in entries for axis in entry if _size(matrix, axis) > 1]
    if used != sorted(used, reverse=True):
        return None
    cuts = [math.prod(_size(matrix, axis) for axis in entry) for entry in entries]
    numbers = [len(cuts) - 1 - d if cut > 1 else -1 for d, cut in enumerate(cuts)]
    leading = (times, count) if times > 1 else (count,)
    axes = (numbers[0], len(cuts), *numbers[1:])
    return MapLayout((*leading, *cuts), axes, (cuts[0], shape[0] // cuts[0], *shape[1:]))


def _as_axes(matrix: Shape, entries: Sequence[Entry], repeated: Sizes, count: int, sizes: Shape) -> MapLayout:
    """The axes of the device matrix share, those on the right first; the last one is cut in two if need be."""
    shared: list[int] = []
    for at in reversed(repeated):
        part = math.gcd(count, matrix[at]) if count < matrix[at] else matrix[at]
        if count % part or (part < matrix[at] and part != count):
            raise PlanError(f"{count} ranks cannot share along axis {at} of {matrix}, which has {matrix[at]}")
        if part < matrix[at]:
            left = len(matrix) - 1 - at
            entries = [[axis + (axis > left) for axis in _axes(entry)] for entry in entries]
            matrix = (*matrix[:at], matrix[at] // part, part, *matrix[at + 1 :])
            shared = [other + 1 for other in shared]
            at += 1
        shared.insert(0, at)
        count //= part
        if count == 1:
            break
    model, first, *others = sizes
    parts = [matrix[at] for at in shared[:-1]]
    axes: list[Entry] = [entries[0], *(len(matrix) - 1 - at for at in shared), *entries[1:]]
    rest = first // model // math.prod(parts)
    return expand_tuples(matrix, axes, (model, *parts, rest, *others))


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
