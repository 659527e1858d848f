"""MindSpore's layouts in numbers: unify two layouts, and infer the operators between them.

Device matrices are unified at their prefix products, tensor shapes at their suffix products. If an axis is cut in
two, the dim it splits becomes two dims. If a dim is cut inside a split, the axis is cut. Both rules repeat until
nothing changes. If a product does not divide the next one, the layouts are "not expandable".

The inference is a greedy loop over the dims whose axis is not the wanted one. It splits dims where possible,
exchanges axes that another dim uses, and gathers axes that no target dim has. If none of this is possible, it gathers
the first dim. The loop counts no bytes, so the result is correct but not the cheapest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, count
from operator import mul
from typing import NamedTuple

from spmdsim.core import Layout
from spmdsim.errors import PlanError, many

Shape = tuple[int, ...]
Sizes = Sequence[int]


class NotExpandable(PlanError):
    """Error: no common device matrix or tensor shape exists.

    MindSpore then gathers everything.
    """


class MapLayout(NamedTuple):
    """MindSpore's layout in numbers.

    Attributes:
        matrix: device matrix.
        map: per dim the axis that splits it, counted from the right; -1 for none.
        shape: global shape of the tensor.
    """

    matrix: Shape
    map: Shape
    shape: Shape

    def axis_size(self, axis: int) -> int:
        """Return the size of an axis counted from the right; 1 for -1."""
        return 1 if axis < 0 else self.matrix[len(self.matrix) - 1 - axis]

    @property
    def slice_shape(self) -> Shape:
        """Shape of a shard. Raises PlanError if a dim is not split evenly."""
        parts = [self.axis_size(axis) for axis in self.map]
        if any(size % count for size, count in zip(self.shape, parts)):
            raise PlanError(f"MindSpore splits evenly only, but {self.shape} is split in {tuple(parts)}")
        return tuple(size // count for size, count in zip(self.shape, parts))

    @staticmethod
    def of(layout: Layout, shape: Sizes) -> MapLayout:
        """Return the numbers of a layout; a dim with several axes becomes several dims, major axis first.

        Raises:
            PlanError: If the layout has pending reductions or splits a dim unevenly.
        """
        if layout.partial:
            raise PlanError(f"MindSpore has no pending reductions in a layout, got {layout}; reduce it first")
        return expand_tuples(layout.mesh.shape, from_right(layout), tuple(shape))


def from_right(layout: Layout) -> list[tuple[int, ...]]:
    """Return per dim the axes that split it, counted from the right, the major axis first."""
    numbers = {axis: len(layout.mesh.axes) - 1 - i for i, axis in enumerate(layout.mesh.axes)}
    return [tuple(numbers[axis] for axis in entry) for entry in layout.dims]


def expand_tuples(matrix: Sizes, entries: Sequence[int | Sizes], shape: Shape) -> MapLayout:
    """Return the layout with one axis per dim; a dim with several axes becomes several dims.

    See `_one_axis_each` for their sizes.

    Args:
        matrix: device matrix.
        entries: per dim an axis from the right, -1, or several axes, major first (-1 among them is ignored).
        shape: global shape of the tensor.

    Raises:
        PlanError: If an axis is unknown or used twice, entries and shape differ in length, or a dim with several axes
            is not divided by all of them but the last. Whether the last one divides is not checked.

    >>> expand_tuples((2, 4), [(1, 0), -1], (16, 3))
    MapLayout(matrix=(2, 4), map=(1, 0, -1), shape=(2, 8, 3))
    """
    lists = [[entry] if isinstance(entry, int) else list(entry) for entry in entries]
    named = [axis for dim_axes in lists for axis in dim_axes if axis != -1]
    check_map(MapLayout(tuple(matrix), tuple(named), (1,) * len(named)))
    if len(lists) != len(shape):
        raise PlanError(f"a map has one entry per dim, but {lists} has {len(lists)} for {list(shape)}")
    lists = [[axis for axis in dim_axes if axis >= 0] or [-1] for dim_axes in lists]
    uneven = "MindSpore splits evenly only, but a dim of {} is split in {} and more"
    return _one_axis_each(tuple(matrix), lists, shape, PlanError, uneven)


def _one_axis_each(
    matrix: Shape, lists: Sequence[list[int]], shape: Shape, error: type[PlanError], uneven: str
) -> MapLayout:
    """Replace each dim with several axes by several dims, one per axis; return the layout.

    All of these dims but the last are as long as their axes; the last one has the remaining size. For example, a dim of
    size 16 that axes of sizes 2 and 4 split becomes dims of sizes 2 and 8.

    Args:
        matrix: device matrix.
        lists: per dim its axes from the right, major first; ``[-1]`` for none.
        shape: global shape.
        error: class of the error for a dim that the axes do not divide.
        uneven: format of its message, with the size of the dim and the list of the leading axes' sizes.

    Raises:
        PlanError: Of class ``error``, if all axes of a dim but the last do not divide it.
    """
    axes: list[int] = []
    sizes: list[int] = []
    for size, dim_axes in zip(shape, lists):
        leading_sizes = [matrix[len(matrix) - 1 - axis] for axis in dim_axes[:-1]]
        last_size, remainder = divmod(size, math.prod(leading_sizes))
        if remainder:
            raise error(uneven.format(size, leading_sizes))
        sizes += [*leading_sizes, last_size]
        axes += dim_axes
    return MapLayout(matrix, tuple(axes), tuple(sizes))


def check_map(layout: MapLayout) -> None:
    """Raise PlanError if the map has a wrong length, names an unknown axis, or names an axis twice.

    Sizes are not compared: axes may divide dims unevenly.

    Args:
        layout: device matrix, map and shape; only the length of the shape counts.
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
        raise PlanError(
            f"a map must name each axis at most once, got {list(layout.map)}; use -1 for a dim that is not split"
        )


def drop_ones(layout: MapLayout) -> MapLayout:
    """Return the layout without device axes of size 1; the map is renumbered."""
    positions = [i for i, size in enumerate(layout.matrix) if size > 1]
    number = {len(layout.matrix) - 1 - i: len(positions) - 1 - k for k, i in enumerate(positions)}
    axes = tuple(number.get(axis, -1) for axis in layout.map)
    return MapLayout(tuple(layout.matrix[i] for i in positions), axes, layout.shape)


def squeeze(layout: MapLayout) -> MapLayout:
    """Return the layout without dims of size 1."""
    dims = [i for i, size in enumerate(layout.shape) if size > 1]
    return MapLayout(layout.matrix, tuple(layout.map[i] for i in dims), tuple(layout.shape[i] for i in dims))


def unify_matrix(a: Sizes, b: Sizes) -> Shape:
    """Return the coarsest device matrix that refines both: the ratios of the merged prefix products."""
    return _find_ratios(
        {*accumulate(a, mul), *accumulate(b, mul)}, f"device matrices {tuple(a)} and {tuple(b)}"
    )


def expand_shape(shape: Sizes, other_shape: Sizes) -> Shape:
    """Return the coarsest shape that refines both: the ratios of the merged suffix products."""
    ends = {*accumulate(reversed(shape), mul), *accumulate(reversed(other_shape), mul)}
    return tuple(reversed(_find_ratios(ends, f"shapes {tuple(shape)} and {tuple(other_shape)}")))


def _find_ratios(products: Iterable[int], what: str) -> Shape:
    """Return the sizes whose prefix products are given numbers: the ratios of successive products.

    ``_find_ratios({2, 8, 16}, ...)`` is ``(2, 4, 2)``. The products are sorted first; 1 is left out.
    """
    factors, below = [], 1
    for product in sorted({*products} - {1}):
        if product % below:
            raise NotExpandable(f"{what} have no common form: {below} does not divide {product}")
        factors.append(product // below)
        below = product
    return tuple(factors)


def expand_matrix(layout: MapLayout, matrix: Shape) -> MapLayout:
    """Return the layout on a finer device matrix; a dim whose axis is cut becomes several dims.

    Raises NotExpandable if the matrix does not refine that of the layout, or a dim does not divide.
    """
    parts = _refine_axes(layout.matrix, matrix)
    lists = [[-1] if axis < 0 else parts[len(layout.matrix) - 1 - axis] for axis in layout.map]
    return _one_axis_each(matrix, lists, layout.shape, NotExpandable, "a dim of {} cannot be cut in {}")


def _refine_axes(matrix: Shape, finer: Shape) -> list[list[int]]:
    """Return, per axis of a device matrix, the axes of a finer one that it consists of.

    Axes of the finer one count from the right, the major one first. For example, the axes of (8, 2) consist of
    the axes ``[[2, 1], [0]]`` of (2, 4, 2). An axis of size 1 consists of none. Axes of ``finer`` that remain at the end
    are not checked: both matrices must have equally many devices.

    Args:
        matrix: device matrix.
        finer: device matrix whose successive axes multiply to those of ``matrix``.

    Raises:
        NotExpandable: If ``finer`` does not refine ``matrix``.
    """
    parts: list[list[int]] = []
    at = 0
    for size in matrix:
        refined, product = [], 1
        while product < size and at < len(finer):
            product *= finer[at]
            refined.append(len(finer) - 1 - at)
            at += 1
        if product != size:
            raise NotExpandable(f"device matrix {finer} does not refine {matrix}")
        parts.append(refined)
    return parts


def expand_tensor(layout: MapLayout, shape: Shape) -> MapLayout:
    """Return the layout for a finer shape; an axis that splits several of the new dims is cut.

    Each dim of the layout must be the product of the next dims of ``shape``. Its axis splits the first of these dims
    first. For example, an axis of 8 that splits a dim of 16 becomes axes 4 and 2 for the dims 4 and 4.

    Args:
        layout: the layout.
        shape: the finer shape; dims of size 1 may be anywhere in it.

    Raises:
        NotExpandable: If the shape does not refine that of the layout, or an axis cannot be cut to fit it.
    """
    matrix = [[size] for size in layout.matrix]
    #: Per new dim the axis (from the left) that splits it, and the number of the axis's part; (-1, 0) if none does.
    pieces: list[tuple[int, int]] = []
    new_dim = 0
    for dim, axis in enumerate(layout.map):
        from_left = len(layout.matrix) - 1 - axis
        block_counts = _split_new_dims(layout, dim, shape, new_dim)
        new_dim += len(block_counts)
        part_sizes = [blocks for blocks in block_counts if blocks > 1]
        part_numbers = count()
        pieces += [(from_left, next(part_numbers)) if blocks > 1 else (-1, 0) for blocks in block_counts]
        if part_sizes:
            matrix[from_left] = part_sizes
    if new_dim < len(shape):
        raise NotExpandable(f"shape {shape} does not refine {layout.shape}")
    starts = [0, *accumulate(len(part_sizes) for part_sizes in matrix)]
    finer = tuple(size for part_sizes in matrix for size in part_sizes)
    axes = tuple(
        -1 if from_left < 0 else len(finer) - 1 - starts[from_left] - number for from_left, number in pieces
    )
    return MapLayout(finer, axes, tuple(shape))


def _split_new_dims(layout: MapLayout, dim: int, shape: Shape, at: int) -> list[int]:
    """Return the number of blocks of each new dim that replaces one dim of a layout.

    The new dims are the first ones of ``shape[at:]`` that multiply to the size of the dim, and dims of size 1
    behind them. The axis is shared out from the first new dim on: each gets the greatest common divisor of its
    size and the part of the axis that remains. For example, an axis of 8 that splits a dim of 16 gives 4 and 2
    blocks for the new dims 4 and 4. A dim that is not split has 1.

    Args:
        layout: the layout.
        dim: the dim of the layout.
        shape: the finer shape.
        at: position of the first new dim in ``shape``.

    Raises:
        NotExpandable: If the new dims do not multiply to the size, or a part of the axis remains after the last
            one. Or if a new dim is not split into single elements although a part of the axis remains for the
            next dim.
    """
    size = layout.shape[dim]
    block_counts: list[int] = []
    # `covered` is the product of the new dims so far; `remaining` is the part of the axis that splits none of them yet.
    remaining, covered = layout.axis_size(layout.map[dim]), 1
    for new_size in shape[at:]:
        if covered >= size and new_size != 1:
            break
        blocks = math.gcd(new_size, remaining)
        # The next dim can be split only if this one is split into single elements.
        if remaining > 1 and blocks not in (new_size, remaining):
            raise NotExpandable(
                f"{many(remaining, 'part')} cannot split a dim of {new_size} and what follows it"
            )
        block_counts.append(blocks)
        covered *= new_size
        remaining //= blocks
    if covered != size or remaining > 1:
        raise NotExpandable(f"shape {shape} does not refine {layout.shape}")
    return block_counts


def unify(a: MapLayout, b: MapLayout) -> tuple[MapLayout, MapLayout]:
    """Return two layouts of one tensor (perhaps in two shapes) on one device matrix and one shape.

    Axes and dims of size 1 are removed. Then matrices and shapes are refined in turn until both are equal.

    Args:
        a: a layout.
        b: the other layout.

    Raises:
        NotExpandable: If no common form exists.

    >>> first, second = unify(MapLayout((8, 4), (1, 0), (512, 1024)), MapLayout((2, 16), (0, 1), (512, 1024)))
    >>> first
    MapLayout(matrix=(2, 2, 2, 4), map=(3, 2, 1, 0), shape=(2, 2, 128, 1024))
    >>> second.map
    (2, 1, 0, 3)
    """
    a, b = squeeze(drop_ones(a)), squeeze(drop_ones(b))
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
    """Inferred operator: Split, Concat or AllToAll.

    Attributes:
        name: name of the operator.
        dim: dim that is split or concatenated; AllToAll splits it.
        axis: device axis, from the right.
        parts: size of this axis.
        concat_dim: dim that AllToAll concatenates, else -1.
    """

    name: str
    dim: int
    axis: int
    parts: int
    concat_dim: int = -1

    def arguments(self) -> list[int]:
        """Return ``[dim, axis, count]``; for AllToAll ``[split dim, concat dim, axis, count]``."""
        between = [self.concat_dim] if self.name == "AllToAll" else []
        return [self.dim, *between, self.axis, self.parts]


def infer_operators(matrix: Sizes, from_map: Sizes, to_map: Sizes, all2all: bool = False) -> list[Abstract]:
    """Return the operators that change one tensor map into another on a device matrix, in order.

    The operators are Split, Concat and AllToAll; equal maps need none. See the module for the algorithm: the number of
    bytes plays no role.

    Args:
        matrix: device matrix.
        from_map: map before: per dim an axis from the right, or -1.
        to_map: map after.
        all2all: exchange axes by AllToAll; by default by Concat and Split, as in MindSpore's offline transforms.

    Raises:
        PlanError: If the maps differ in length or do not fit the device matrix.

    >>> [(op.name, op.arguments()) for op in infer_operators((2, 4), (1, -1), (-1, 1))]
    [('Concat', [0, 1, 2]), ('Split', [1, 1, 2])]
    """
    if len(from_map) != len(to_map):
        raise PlanError(
            f"both maps must have one entry per dim of one tensor, got {list(from_map)} and {list(to_map)}; make them "
            "equally long"
        )
    for mapping in (from_map, to_map):
        check_map(MapLayout(tuple(matrix), tuple(mapping), (1,) * len(mapping)))
    return _Inference(tuple(matrix), tuple(from_map), tuple(to_map), all2all).run()


class _Inference:
    """State of the greedy loop: ``open`` maps each unfinished dim to its current axis."""

    def __init__(
        self, matrix: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...], all2all: bool
    ):
        self.matrix, self.before, self.after, self.all2all = matrix, before, after, all2all
        self.open = {dim: before[dim] for dim in _visited_dims(len(before))}
        self.operators: list[Abstract] = []

    def run(self) -> list[Abstract]:
        """Add operators until every dim has the axis of the target map; return the operators.

        Each turn of the loop splits and exchanges dims as often as possible, and then gathers axes that no dim of the
        target has. If a turn adds no operator, the first unfinished dim is gathered, so that the next turn can go on.
        The state is used up: call it once.
        """
        while self.open:
            count = len(self.operators)
            self._repeat(self._split_and_exchange)
            self._gather_unwanted()
            if self.open and len(self.operators) == count:
                self._gather(next(iter(self.open)))
        return self.operators

    def _repeat(self, step: Callable[[], None]) -> None:
        """Repeat a step until it appends no operator."""
        count = -1
        while count != len(self.operators):
            count = len(self.operators)
            step()

    def _split_and_exchange(self) -> None:
        """Append all possible splits, then repeat exchanges until none is possible."""
        self._split_dims()
        self._repeat(self._exchange_axes)

    def _split_dims(self) -> None:
        """Remove finished dims from ``open``; append a Split for each dim that can be split now.

        ``open`` maps each unfinished dim to its present axis (-1 for a whole dim). A whole dim can be split if its
        wanted axis splits no unfinished dim. The dim is finished then.
        """
        for dim, axis in list(self.open.items()):
            wanted = self.after[dim]
            if axis == wanted:
                del self.open[dim]
            elif axis == -1 and wanted not in self.open.values():
                self._add("Split", dim, wanted)
                del self.open[dim]

    def _exchange_axes(self) -> None:
        """Append the exchanges in which a whole dim takes its wanted axis from an open dim.

        ``open`` maps each unfinished dim to its present axis (-1 for a whole dim). The method passes over
        it once. For example, dim 0 is whole and wants axis 1; axis 1 splits dim 2, which is unfinished, too.
        After the exchange axis 1 splits dim 0, so dim 0 is removed from ``open``; dim 2 is whole and stays.
        Dim 2 may now take its wanted axis from another dim, so the caller repeats the pass until it appends
        nothing.

        If ``all2all`` is set, an exchange is one AllToAll. Otherwise it is a Concat of the dim that has the
        axis, then a Split of the dim that wants it.
        """
        for dim in list(self.open):
            wanted = self.after[dim]
            if self.open[dim] != -1 or wanted == -1 or wanted not in self.open.values():
                continue
            # An open dim has its first axis or none, because a dim that gets an axis is finished.
            holder = self.before.index(wanted)
            if self.all2all:
                self.operators.append(Abstract("AllToAll", dim, wanted, self._size(wanted), holder))
            else:
                self._add("Concat", holder, wanted)
                self._add("Split", dim, wanted)
            del self.open[dim]
            self.open[holder] = -1

    def _gather_unwanted(self) -> None:
        """Gather every dim whose axis appears nowhere in the target map."""
        for dim, axis in list(self.open.items()):
            if axis != -1 and axis not in self.after:
                self._gather(dim)

    def _gather(self, dim: int) -> None:
        """Append a Concat that removes the split of a dim.

        If the target does not split the dim, the dim is finished and removed from ``open`` (the unfinished dims with
        their axes). Otherwise ``open[dim]`` becomes -1: the dim is whole, and its target axis must still split it.
        """
        self._add("Concat", dim, self.open[dim])
        if self.after[dim] == -1:
            del self.open[dim]
        else:
            self.open[dim] = -1

    def _add(self, name: str, dim: int, axis: int) -> None:
        """Append a Split or Concat of ``dim`` along ``axis``."""
        self.operators.append(Abstract(name, dim, axis, self._size(axis)))

    def _size(self, axis: int) -> int:
        """Return the size of an axis counted from the right."""
        return self.matrix[len(self.matrix) - 1 - axis]


def _visited_dims(ndim: int) -> list[int]:
    """Return the dims in the order in which MindSpore visits them."""
    if not _FEW_DIMS < ndim <= len(_WALK):
        return list(range(ndim))
    return [dim for dim in _WALK if dim < ndim]
