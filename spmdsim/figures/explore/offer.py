"""What a page lets people choose: meshes, shapes, layouts, rank counts, algorithms, programs.

A page holds every answer, so what it offers is finite: all layouts of each mesh and shape, and of partial sources on
meshes of three axes and more those with one partial axis and at most one axis per dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, combinations_with_replacement, pairwise, permutations
from math import prod

from spmdsim.auto_parallel.programs.networks import require_program
from spmdsim.collectives.algorithm import Algorithm
from spmdsim.core import Layout, Mesh
from spmdsim.errors import InputError, many
from spmdsim.pictured import Pictured

Shape = tuple[int, ...]

MOST_RANKS = 8
"""More do not fit on a telephone, nor their answers into a page."""
MOST_AXES, MOST_BUSY, MOST_DIMS = 6, 3, 5
"""Axes of a mesh, those longer than 1 among them, and dims of a tensor."""
MOST_PAIRS = 7000
"""Of layouts of one mesh and shape: a page answers every one of them, or leaves some out."""


@dataclass(frozen=True)
class Offer(Pictured):
    """The choices that a page offers.

    Attributes:
        meshes: the meshes, of at most eight ranks and three axes longer than 1.
        shapes: global shapes of the tensor, of one to five dims.
        ranks: rank counts of the collective algorithms.
        algorithms: somebody's own algorithms, besides all of this package.
        programs: built-in programs that are searched.
        dtype: element type of the tensor.
        layouts: further layouts of these meshes, such as those that name axes of size 1; the first one is shown first.

    Raises:
        InputError: more than a page can hold, nothing to choose from, or an unknown program.
    """

    meshes: tuple[Mesh, ...] = field(default_factory=lambda: default_meshes())
    shapes: tuple[Shape, ...] = ((8, 8), (7, 5), (12,), (4, 6, 8))
    ranks: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    algorithms: tuple[Algorithm, ...] = ()
    programs: tuple[str, ...] = ("mlp", "tutorial")
    dtype: str = "float32"
    layouts: tuple[Layout, ...] = ()

    def __post_init__(self) -> None:
        for what in ("meshes", "shapes", "ranks"):
            if not getattr(self, what):
                raise InputError(f"a page needs {what} to choose from, but none were given")
        for mesh in self.meshes:
            _check_mesh(mesh)
        for shape in self.shapes:
            _check_shape(shape)
        for size in self.ranks:
            if not 1 <= size <= MOST_RANKS:
                raise InputError(
                    f"collectives are shown on 1 to {MOST_RANKS} ranks, but {size} were asked for"
                )
        for name in self.programs:
            require_program(name)
        for layout in self.layouts:
            if layout.mesh not in self.meshes or len(layout.dims) not in map(len, self.shapes):
                raise InputError(
                    f"layout {layout} needs its mesh and a shape of {many(len(layout.dims), 'dim')} on the page, which has the "
                    f"shapes {', '.join(map(str, self.shapes))}"
                )

    @property
    def start(self) -> Mesh:
        """The mesh shown first: that of the first further layout, else the one with two axes and the most ranks."""
        if self.layouts:
            return self.layouts[0].mesh
        return max(self.meshes, key=lambda mesh: (sum(size > 1 for size in mesh.shape) == 2, mesh.size))

    def shapes_on(self, mesh: Mesh) -> tuple[Shape, ...]:
        """Return the shapes offered on a mesh; with three axes the first shape of each number of dims."""
        if sum(size > 1 for size in mesh.shape) < 3:
            return self.shapes
        first = {len(shape): shape for shape in reversed(self.shapes)}
        return tuple(first[ndim] for ndim in dict.fromkeys(map(len, self.shapes)))


def ends_of(mesh: Mesh, ndim: int) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
    """Return the sources and targets of which a page has all plans.

    They are all layouts; if these make more than 7,000 pairs, the layouts with axes in the mesh's order; if these still
    make more, none.

    >>> [len(ends) for ends in ends_of(Mesh((2, 2, 2), ("a", "b", "c")), 3)]
    [103, 64]
    """
    sources, targets = layouts_of(mesh, ndim), layouts_of(mesh, ndim, partial=False)
    if len(sources) * len(targets) > MOST_PAIRS:
        sources, targets = (tuple(filter(_in_order, layouts)) for layouts in (sources, targets))
    return (sources, targets) if len(sources) * len(targets) <= MOST_PAIRS else ((), ())


def _in_order(layout: Layout) -> bool:
    return all(list(entry) == sorted(entry, key=layout.mesh.axes.index) for entry in layout.dims)


def default_meshes() -> tuple[Mesh, ...]:
    """Return all meshes of 2, 4, 6 and 8 ranks whose axes are longer than 1."""
    names = {1: ("x",), 2: ("dp", "tp"), 3: ("dp", "sp", "mp")}
    return tuple(Mesh(shape, names[len(shape)]) for size in (2, 4, 6, 8) for shape in _products(size))


def layouts_of(mesh: Mesh, ndim: int, *, partial: bool = True) -> tuple[Layout, ...]:
    """Return the offered layouts; layouts without pending reductions come first.

    >>> mesh = Mesh((2, 2), ("a", "b"))
    >>> len(layouts_of(mesh, 2, partial=False)), len(layouts_of(mesh, 2))
    (11, 18)
    """
    whole = tuple(dict.fromkeys(_layouts(mesh, ndim)))
    if not partial:
        return whole
    return (*whole, *(one for layout in whole for one in _partial(layout)))


def _layouts(mesh: Mesh, ndim: int) -> Iterator[Layout]:
    busy = [axis for axis, size in zip(mesh.axes, mesh.shape) if size > 1]
    for count in range(len(busy) + 1):
        for order in permutations(busy, count):
            for cuts in combinations_with_replacement(range(count + 1), ndim - 1):
                ends = (0, *cuts, count)
                yield Layout(mesh, [order[a:b] for a, b in pairwise(ends)])


def _partial(layout: Layout) -> Iterator[Layout]:
    size = layout.mesh.size_of
    busy = [axis for axis in layout.mesh.axes if size[axis] > 1]
    free = [axis for axis in busy if axis not in layout.split_axes]
    few = len(busy) > 2
    if few and any(len(entry) > 1 for entry in layout.dims):
        return
    for count in range(1, 2 if few else len(free) + 1):
        for axes in combinations(free, count):
            yield layout.with_partial(dict.fromkeys(axes, "sum"))


def _products(size: int) -> Iterator[Shape]:
    yield (size,)
    for first in range(2, size):
        if size % first == 0:
            yield from ((first, *rest) for rest in _products(size // first))


def _check_mesh(mesh: Mesh) -> None:
    busy = sum(size > 1 for size in mesh.shape)
    if mesh.size > MOST_RANKS or len(mesh.axes) > MOST_AXES or busy > MOST_BUSY:
        raise InputError(
            f"a page shows meshes of at most {MOST_RANKS} ranks and {MOST_AXES} axes, {MOST_BUSY} of them longer than 1, "
            f"but {mesh} has {many(mesh.size, 'rank')} and {many(len(mesh.axes), 'axis', 'axes')}"
        )


def _check_shape(shape: Sequence[int]) -> None:
    if not 1 <= len(shape) <= MOST_DIMS or prod(shape) < 1 or max(shape) > 1 << 20:
        raise InputError(
            f"a page shows tensors of 1 to {MOST_DIMS} dims, each from 1 to {1 << 20}, but the shape is {tuple(shape)}"
        )
