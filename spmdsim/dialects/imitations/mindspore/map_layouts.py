"""MindSpore's layouts in numbers: two in one form, and the operators inferred between them.

Device matrices are joined at their prefix products, tensor shapes at their suffix products; an axis cut in two
makes two dims of the dim it splits, a dim cut inside a split cuts the axis. The two are repeated until nothing
changes. Where a product does not divide the next one, the layouts are "not expandable".

The inference is a greedy loop over the dims whose axis is not yet the wanted one: split what can be split, exchange an
axis that another dim holds, gather what nobody wants, and if nothing of this is possible gather the first dim. Volumes
play no part, so the result is correct but not the cheapest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

from spmdsim.core import Layout
from spmdsim.errors import PlanError, many

Shape = tuple[int, ...]
Sizes = Sequence[int]


class NotExpandable(PlanError):
    """No common device matrix or tensor shape exists; MindSpore then gathers everything."""


class MapLayout(NamedTuple):
    """MindSpore's layout in numbers: device matrix, per dim the axis that splits it, from the right, or -1, and shape."""

    matrix: Shape
    map: Shape
    shape: Shape

    def axis_size(self, axis: int) -> int:
        """Size of an axis counted from the right; 1 for -1."""
        return 1 if axis < 0 else self.matrix[len(self.matrix) - 1 - axis]

    @property
    def slice_shape(self) -> Shape:
        """The local shape; a dim that does not divide is refused."""
        parts = [self.axis_size(axis) for axis in self.map]
        if any(size % part for size, part in zip(self.shape, parts)):
            raise PlanError(f"MindSpore splits evenly only, but {self.shape} is split in {tuple(parts)}")
        return tuple(size // part for size, part in zip(self.shape, parts))

    @staticmethod
    def of(layout: Layout, shape: Sizes) -> MapLayout:
        """The numbers of a layout; a dim with several axes becomes several dims, the first axis major."""
        if layout.partial:
            raise PlanError(f"MindSpore has no pending values in a layout; reduce {layout} first")
        return expand_tuples(layout.mesh.shape, from_right(layout), tuple(shape))


def from_right(layout: Layout) -> list[tuple[int, ...]]:
    """Per dim the axes that split it, counted from the right, the first one major."""
    numbers = {axis: len(layout.mesh.axes) - 1 - i for i, axis in enumerate(layout.mesh.axes)}
    return [tuple(numbers[axis] for axis in entry) for entry in layout.dims]


def expand_tuples(matrix: Sizes, entries: Sequence[int | Sizes], shape: Shape) -> MapLayout:
    """A map with several axes on a dim, written with one axis per dim."""
    lists = [[entry] if isinstance(entry, int) else list(entry) for entry in entries]
    named = [axis for several in lists for axis in several if axis != -1]
    check_map(MapLayout(tuple(matrix), tuple(named), (1,) * len(named)))
    if len(lists) != len(shape):
        raise PlanError(f"a map has one entry per dim, but {lists} has {len(lists)} for {list(shape)}")
    lists = [[axis for axis in several if axis >= 0] or [-1] for several in lists]
    uneven = "MindSpore splits evenly only, but a dim of {} is split in {} and more"
    return _one_axis_each(tuple(matrix), lists, shape, PlanError, uneven)


def _one_axis_each(
    matrix: Shape, lists: Sequence[list[int]], shape: Shape, error: type[PlanError], uneven: str
) -> MapLayout:
    """Dims split by several axes as several dims, the first ones as long as their axes."""
    axes: list[int] = []
    sizes: list[int] = []
    for size, several in zip(shape, lists):
        leading = [matrix[len(matrix) - 1 - axis] for axis in several[:-1]]
        if size % math.prod(leading):
            raise error(uneven.format(size, leading))
        sizes += [*leading, size // math.prod(leading)]
        axes += several
    return MapLayout(matrix, tuple(axes), tuple(sizes))


#: A layout as three lists, or :class:`MapLayout`; a dim may be split by several axes, in a list, major first.
Written = Sequence[Sequence[Any]]
AnyLayout = MapLayout | Written


def as_numbers(layout: AnyLayout) -> MapLayout:
    """A layout given as three sequences: device matrix, map, shape. Several axes on a dim make it several dims."""
    if len(layout) != 3:
        raise PlanError(f"a layout is a device matrix, a map and a shape, but got {layout}")
    matrix, entries, shape = layout
    return expand_tuples(matrix, entries, tuple(shape))


def check_map(layout: MapLayout) -> None:
    """Refuse numbers that are no layout."""
    if len(layout.map) != len(layout.shape):
        raise PlanError(
            f"a map has one entry per dim, but {list(layout.map)} has {len(layout.map)} for {list(layout.shape)}"
        )
    axes = [axis for axis in layout.map if axis != -1]
    wrong = [axis for axis in axes if not 0 <= axis < len(layout.matrix)]
    if wrong:
        raise PlanError(
            f"the device matrix {list(layout.matrix)} has axes 0..{len(layout.matrix) - 1} from the right,"
            f" but the map {list(layout.map)} names {wrong[0]}"
        )
    if len(set(axes)) < len(axes):
        raise PlanError(f"an axis splits one dim, but the map {list(layout.map)} names one twice")


def drop_ones(layout: MapLayout) -> MapLayout:
    """Without device axes of size 1; the map is renumbered."""
    kept = [i for i, size in enumerate(layout.matrix) if size > 1]
    number = {len(layout.matrix) - 1 - i: len(kept) - 1 - k for k, i in enumerate(kept)}
    axes = tuple(number.get(axis, -1) for axis in layout.map)
    return MapLayout(tuple(layout.matrix[i] for i in kept), axes, layout.shape)


def squeeze(layout: MapLayout) -> MapLayout:
    """Without dims of size 1."""
    kept = [i for i, size in enumerate(layout.shape) if size > 1]
    return MapLayout(layout.matrix, tuple(layout.map[i] for i in kept), tuple(layout.shape[i] for i in kept))


def unify_matrix(a: Sizes, b: Sizes) -> Shape:
    """The factors between the merged prefix products of two device matrices."""
    return _factors({*accumulate(a, mul), *accumulate(b, mul)}, f"device matrices {tuple(a)} and {tuple(b)}")


def expand_shape(shape: Sizes, other: Sizes) -> Shape:
    """The factors between the merged suffix products of two shapes."""
    ends = {*accumulate(reversed(shape), mul), *accumulate(reversed(other), mul)}
    return tuple(reversed(_factors(ends, f"shapes {tuple(shape)} and {tuple(other)}")))


def _factors(products: Iterable[int], what: str) -> Shape:
    factors, below = [], 1
    for product in sorted({*products} - {1}):
        if product % below:
            raise NotExpandable(f"{what} have no common form: {below} does not divide {product}")
        factors.append(product // below)
        below = product
    return tuple(factors)


def expand_matrix(layout: MapLayout, matrix: Shape) -> MapLayout:
    """The layout on a finer device matrix: a dim split by an axis that is cut becomes several dims."""
    parts = _parts(layout.matrix, matrix)
    lists = [[-1] if axis < 0 else parts[len(layout.matrix) - 1 - axis] for axis in layout.map]
    return _one_axis_each(matrix, lists, layout.shape, NotExpandable, "a dim of {} cannot be cut in {}")


def _parts(matrix: Shape, finer: Shape) -> list[list[int]]:
    """Per axis of a matrix the axes of the finer one it consists of, counted from the right."""
    parts: list[list[int]] = []
    at = 0
    for size in matrix:
        here, product = [], 1
        while product < size and at < len(finer):
            product *= finer[at]
            here.append(len(finer) - 1 - at)
            at += 1
        if product != size:
            raise NotExpandable(f"device matrix {finer} does not refine {matrix}")
        parts.append(here)
    return parts


def expand_tensor(layout: MapLayout, shape: Shape) -> MapLayout:
    """The layout for a finer shape; an axis whose blocks span several of the new dims is cut."""
    matrix = [[size] for size in layout.matrix]
    #: Per new dim the axis from the left it is split by, and which part of it.
    pieces: list[tuple[int, int]] = []
    at = 0
    for size, axis in zip(layout.shape, layout.map):
        left = len(layout.matrix) - 1 - axis
        cut: list[int] = []
        remaining, covered = layout.axis_size(axis), 1
        while covered < size:
            part = shape[at]
            covered *= part
            at += 1
            share = math.gcd(part, remaining)
            if remaining > 1 and share not in (part, remaining):
                raise NotExpandable(
                    f"{many(remaining, 'part')} cannot split a dim of {part} and what follows it"
                )
            pieces.append((left, len(cut)) if share > 1 else (-1, 0))
            if share > 1:
                cut.append(share)
            remaining //= share
        if covered != size or remaining > 1:
            raise NotExpandable(f"shape {shape} does not refine {layout.shape}")
        if cut:
            matrix[left] = cut
    starts = [0, *accumulate(len(cut) for cut in matrix)]
    finer = tuple(size for cut in matrix for size in cut)
    axes = tuple(-1 if left < 0 else len(finer) - 1 - starts[left] - part for left, part in pieces)
    return MapLayout(finer, axes, tuple(shape))


def unify(a: AnyLayout, b: AnyLayout) -> tuple[MapLayout, MapLayout]:
    """Two layouts of one tensor (perhaps in two shapes) on one device matrix and one shape.

    >>> one, other = unify(MapLayout((8, 4), (1, 0), (512, 1024)), MapLayout((2, 16), (0, 1), (512, 1024)))
    >>> one
    MapLayout(matrix=(2, 2, 2, 4), map=(3, 2, 1, 0), shape=(2, 2, 128, 1024))
    >>> other.map
    (2, 1, 0, 3)
    """
    a, b = squeeze(drop_ones(as_numbers(a))), squeeze(drop_ones(as_numbers(b)))
    while a.matrix != b.matrix or a.shape != b.shape:
        matrix = unify_matrix(a.matrix, b.matrix)
        a, b = expand_matrix(a, matrix), expand_matrix(b, matrix)
        shape = expand_shape(a.shape, b.shape)
        a, b = expand_tensor(a, shape), expand_tensor(b, shape)
    return a, b


#: MindSpore keeps the open dims in a hash table. Up to six dims ascending order gives its published results; for seven
#: to twelve this is the order in which its table is walked.
_FEW_DIMS = 6
_WALK = (0, 4, 8, 3, 11, 10, 1, 5, 6, 7, 9, 2)


class Abstract(NamedTuple):
    """One inferred operator, Split, Concat or AllToAll: of a dim, along an axis from the right of so many parts.

    AllToAll splits the dim and concatenates another one.
    """

    name: str
    dim: int
    axis: int
    parts: int
    concat_dim: int = -1

    def arguments(self) -> list[int]:
        """``[dim, axis, count]``; for AllToAll ``[split dim, concat dim, axis, count]``."""
        between = [self.concat_dim] if self.name == "AllToAll" else []
        return [self.dim, *between, self.axis, self.parts]


def infer_operators(matrix: Sizes, from_map: Sizes, to_map: Sizes, all2all: bool = False) -> list[Abstract]:
    """The operators from one map to another on a device matrix.

    Without ``all2all`` axes are exchanged by Concat and Split, as in MindSpore's offline transforms.
    """
    if len(from_map) != len(to_map):
        raise PlanError(f"two maps of one tensor are equally long, not {list(from_map)} and {list(to_map)}")
    for mapping in (from_map, to_map):
        check_map(MapLayout(tuple(matrix), tuple(mapping), (1,) * len(mapping)))
    return _Inference(tuple(matrix), tuple(from_map), tuple(to_map), all2all).run()


class _Inference:
    def __init__(
        self, matrix: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...], all2all: bool
    ):
        self.matrix, self.before, self.after, self.all2all = matrix, before, after, all2all
        self.open = {dim: before[dim] for dim in _visited(len(before))}
        self.operators: list[Abstract] = []

    def run(self) -> list[Abstract]:
        while self.open:
            count = len(self.operators)
            self._until_still(self._split_and_permute)
            self._concat()
            if self.open and len(self.operators) == count:
                self._gather(next(iter(self.open)))
        return self.operators

    def _until_still(self, step: Callable[[], None]) -> None:
        """Repeat a step until it adds nothing."""
        count = -1
        while count != len(self.operators):
            count = len(self.operators)
            step()

    def _split_and_permute(self) -> None:
        self._split()
        self._until_still(self._permute)

    def _split(self) -> None:
        for dim, axis in list(self.open.items()):
            wanted = self.after[dim]
            if axis == wanted:
                del self.open[dim]
            elif axis == -1 and wanted not in self.open.values():
                self._add("Split", dim, wanted)
                del self.open[dim]

    def _permute(self) -> None:
        for dim in list(self.open):
            wanted = self.after[dim]
            if self.open[dim] != -1 or wanted == -1 or wanted not in self.open.values():
                continue
            holder = self.before.index(wanted)
            if self.all2all:
                self.operators.append(Abstract("AllToAll", dim, wanted, self._size(wanted), holder))
            else:
                self._add("Concat", holder, wanted)
                self._add("Split", dim, wanted)
            del self.open[dim]
            self.open[holder] = -1

    def _concat(self) -> None:
        for dim, axis in list(self.open.items()):
            if axis != -1 and axis not in self.after:
                self._gather(dim)

    def _gather(self, dim: int) -> None:
        """Append a Concat that removes the split of a dim; mark the dim as done if its target is not split."""
        self._add("Concat", dim, self.open[dim])
        if self.after[dim] == -1:
            del self.open[dim]
        else:
            self.open[dim] = -1

    def _add(self, name: str, dim: int, axis: int) -> None:
        self.operators.append(Abstract(name, dim, axis, self._size(axis)))

    def _size(self, axis: int) -> int:
        return self.matrix[len(self.matrix) - 1 - axis]


def _visited(ndim: int) -> list[int]:
    """The dims in the order in which they are looked at."""
    if not _FEW_DIMS < ndim <= len(_WALK):
        return list(range(ndim))
    return [dim for dim in _WALK if dim < ndim]
