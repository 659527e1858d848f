"""Two layouts on one device matrix and one tensor shape, as MindSpore's inference wants them.

Device matrices are joined at their prefix products, tensor shapes at their suffix products; an axis cut in two
makes two dims of the dim it splits, a dim cut inside a split cuts the axis. The two are repeated until nothing
changes. Where a product does not divide the next one, the layouts are "not expandable".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

from spmdsim.core import Layout
from spmdsim.errors import PlanError

Shape = tuple[int, ...]


class NotExpandable(PlanError):
    """No common device matrix or tensor shape exists; MindSpore then gathers everything."""


class MapLayout(NamedTuple):
    """MindSpore's layout in numbers: every dim is split by at most one axis.

    Attributes:
        matrix: the device matrix.
        map: per dim the axis that splits it, counted from the right, or -1.
        shape: the global shape.
    """

    matrix: Shape
    map: Shape
    shape: Shape

    def axis_size(self, axis: int) -> int:
        """Size of an axis counted from the right; 1 for -1."""
        return 1 if axis < 0 else self.matrix[len(self.matrix) - 1 - axis]

    @property
    def slice_shape(self) -> Shape:
        """The local shape.

        Raises:
            PlanError: a dim that does not divide; MindSpore splits evenly only.
        """
        parts = [self.axis_size(axis) for axis in self.map]
        if any(size % part for size, part in zip(self.shape, parts)):
            raise PlanError(f"MindSpore splits evenly only, but {self.shape} is split in {tuple(parts)}")
        return tuple(size // part for size, part in zip(self.shape, parts))

    @staticmethod
    def of(layout: Layout, shape: Sequence[int]) -> MapLayout:
        """The numbers of a layout; a dim with several axes becomes several dims, the first axis major."""
        if layout.partial:
            raise PlanError(f"MindSpore has no pending values in a layout; reduce {layout} first")
        from_right = {axis: len(layout.mesh.axes) - 1 - i for i, axis in enumerate(layout.mesh.axes)}
        entries = [tuple(from_right[axis] for axis in entry) for entry in layout.dims]
        return expand_tuples(layout.mesh.shape, entries, tuple(shape))


def expand_tuples(matrix: Sequence[int], entries: Sequence[int | Sequence[int]], shape: Shape) -> MapLayout:
    """A map with several axes on a dim, written with one axis per dim.

    >>> expand_tuples((8, 2, 4), [[1], [0, 2]], (512, 1024))
    MapLayout(matrix=(8, 2, 4), map=(1, 0, 2), shape=(512, 4, 256))
    """
    axes: list[int] = []
    sizes: list[int] = []
    lists = [[entry] if isinstance(entry, int) else list(entry) for entry in entries]
    named = [axis for several in lists for axis in several if axis != -1]
    check_map(MapLayout(tuple(matrix), tuple(named), (1,) * len(named)))
    if len(lists) != len(shape):
        raise PlanError(f"a map has one entry per dim, but {lists} has {len(lists)} for {list(shape)}")
    for size, several in zip(shape, lists):
        several = [axis for axis in several if axis >= 0] or [-1]
        leading = [matrix[len(matrix) - 1 - axis] for axis in several[:-1]]
        if size % math.prod(leading):
            raise PlanError(
                f"MindSpore splits evenly only, but a dim of {size} is split in {leading} and more"
            )
        sizes += [*leading, size // math.prod(leading)]
        axes += several
    return MapLayout(tuple(matrix), tuple(axes), tuple(sizes))


#: A layout as three lists, or :class:`MapLayout`; a dim may be split by several axes, in a list, major first.
Written = Sequence[Sequence[Any]]


def as_numbers(layout: MapLayout | Written) -> MapLayout:
    """A layout given as three sequences: device matrix, map, shape. Several axes on a dim make it several dims.

    >>> as_numbers(([8], [0, -1], [32, 256]))
    MapLayout(matrix=(8,), map=(0, -1), shape=(32, 256))
    """
    if len(layout) != 3:
        raise PlanError(f"a layout is a device matrix, a map and a shape, but got {layout}")
    matrix, entries, shape = layout
    return expand_tuples(matrix, entries, tuple(shape))


def check_map(layout: MapLayout) -> None:
    """Refuse numbers that are no layout.

    Raises:
        PlanError: not one entry per dim, an axis that is not there, or an axis on two dims.
    """
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
    """Without device axes of size 1; the map is renumbered.

    >>> drop_ones(MapLayout((16, 1, 1), (2, 0), (128, 4096)))
    MapLayout(matrix=(16,), map=(0, -1), shape=(128, 4096))
    """
    kept = [i for i, size in enumerate(layout.matrix) if size > 1]
    number = {len(layout.matrix) - 1 - i: len(kept) - 1 - k for k, i in enumerate(kept)}
    axes = tuple(number.get(axis, -1) for axis in layout.map)
    return MapLayout(tuple(layout.matrix[i] for i in kept), axes, layout.shape)


def squeeze(layout: MapLayout) -> MapLayout:
    """Without dims of size 1."""
    kept = [i for i, size in enumerate(layout.shape) if size > 1]
    return MapLayout(layout.matrix, tuple(layout.map[i] for i in kept), tuple(layout.shape[i] for i in kept))


def unify_matrix(a: Sequence[int], b: Sequence[int]) -> Shape:
    """The factors between the merged prefix products of two device matrices.

    Raises:
        NotExpandable: a product does not divide the next one.

    >>> unify_matrix((8, 4), (2, 16))
    (2, 4, 4)
    """
    return _factors({*accumulate(a, mul), *accumulate(b, mul)}, f"device matrices {tuple(a)} and {tuple(b)}")


def expand_shape(shape: Sequence[int], other: Sequence[int]) -> Shape:
    """The factors between the merged suffix products of two shapes.

    Raises:
        NotExpandable: a product does not divide the next one.

    >>> expand_shape((2, 8, 32), (2, 4, 8))
    (2, 4, 2, 4, 8)
    """
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
    """The layout on a finer device matrix: a dim split by an axis that is cut becomes several dims.

    Raises:
        NotExpandable: the finer matrix does not cut along the layout's axes.

    >>> expand_matrix(MapLayout((8, 4), (0, 1), (512, 1024)), (4, 2, 2, 2))
    MapLayout(matrix=(4, 2, 2, 2), map=(1, 0, 3, 2), shape=(2, 256, 4, 256))
    """
    parts = _parts(layout.matrix, matrix)
    axes: list[int] = []
    sizes: list[int] = []
    for size, axis in zip(layout.shape, layout.map):
        numbers = [-1] if axis < 0 else parts[len(layout.matrix) - 1 - axis]
        leading = [matrix[len(matrix) - 1 - number] for number in numbers[:-1]]
        if size % math.prod(leading):
            raise NotExpandable(f"a dim of {size} cannot be cut in {leading}")
        sizes += [*leading, size // math.prod(leading)]
        axes += numbers
    return MapLayout(matrix, tuple(axes), tuple(sizes))


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
    """The layout for a finer shape; an axis whose blocks span several of the new dims is cut.

    Raises:
        NotExpandable: a block begins inside a new dim.

    >>> expand_tensor(MapLayout((8, 4), (1, 0), (512, 1024)), (4, 128, 1024))
    MapLayout(matrix=(4, 2, 4), map=(2, 1, 0), shape=(4, 128, 1024))
    """
    matrix = [[size] for size in layout.matrix]
    pieces: list[
        tuple[int, int]
    ] = []  # per new dim: the axis from the left it is split by, and which part of it
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
                raise NotExpandable(f"{remaining} parts cannot split a dim of {part} and what follows it")
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


def unify(a: MapLayout | Written, b: MapLayout | Written) -> tuple[MapLayout, MapLayout]:
    """Two layouts of one tensor (perhaps in two shapes) on one device matrix and one shape.

    Raises:
        NotExpandable: there is no such form.
        PlanError: numbers that are no layout.

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
