"""Declare the choices of a page: meshes, shapes, layouts, rank counts, algorithms, programs.

A page has all answers, so the choices are finite: all layouts of each mesh and shape. On meshes of three or more
axes, partial sources have one partial axis and at most one axis per dim.
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
"""Largest number of ranks that fits on a telephone, with answers that fit on a page."""
MOST_AXES, MOST_BUSY, MOST_DIMS = 6, 3, 5
"""Largest numbers of axes of a mesh, of its axes longer than 1, and of dims of a tensor."""
MOST_PAIRS = 7000
"""Largest number of pairs of layouts of one mesh and shape; a page has the plan of each pair."""


@dataclass(frozen=True)
class Offer(Pictured):
    """The choices that a page offers.

    Attributes:
        meshes: the meshes, of at most eight ranks and three axes longer than 1.
        shapes: global shapes of the tensor, of one to five dims.
        ranks: rank counts of the collective algorithms.
        algorithms: further algorithms, besides all of this package.
        programs: built-in programs that are searched.
        dtype: element type of the tensor.
        layouts: further layouts of these meshes, such as layouts with axes of size 1; the page opens with the first
            one.

    Raises:
        InputError: If a choice is too large for a page, a list is empty, or a program is unknown.
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
                raise InputError(f"Offer: {what} must have at least one item, got none")
        for mesh in self.meshes:
            _check_mesh(mesh)
        for shape in self.shapes:
            _check_shape(shape)
        for size in self.ranks:
            if not 1 <= size <= MOST_RANKS:
                raise InputError(f"Offer: ranks must be 1 to {MOST_RANKS}, got {size}")
        for name in self.programs:
            require_program(name)
        for layout in self.layouts:
            if layout.mesh not in self.meshes or len(layout.dims) not in map(len, self.shapes):
                raise InputError(
                    f"Offer: layout {layout} needs its mesh in meshes and a shape of {many(len(layout.dims), 'dim')} in shapes, "
                    f"got shapes {', '.join(map(str, self.shapes))}"
                )

    @property
    def start(self) -> Mesh:
        """The first mesh of the page: the mesh of the first further layout, or a large one with two axes."""
        if self.layouts:
            return self.layouts[0].mesh
        return max(self.meshes, key=lambda mesh: (sum(size > 1 for size in mesh.shape) == 2, mesh.size))

    def shapes_on(self, mesh: Mesh) -> tuple[Shape, ...]:
        """Return the shapes that the page offers for a mesh, in the offer's order.

        For a mesh with three axes longer than 1, they are the first shape of each number of dimensions; for any other
        mesh all shapes.
        """
        if sum(size > 1 for size in mesh.shape) < 3:
            return self.shapes
        first = {len(shape): shape for shape in reversed(self.shapes)}
        return tuple(first[ndim] for ndim in dict.fromkeys(map(len, self.shapes)))


def list_plan_ends(mesh: Mesh, ndim: int) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
    """Return the sources and targets whose plans a page has.

    By default all offered layouts are sources, and all without pending reductions are targets. If these are more than
    7,000 pairs, only layouts whose dims name their axes in the mesh's order are used. If there are still more than
    7,000 pairs, both tuples are empty.

    Args:
        mesh: the mesh.
        ndim: number of dimensions of the tensor.

    >>> [len(ends) for ends in list_plan_ends(Mesh((2, 2, 2), ("a", "b", "c")), 3)]
    [103, 64]
    """
    sources, targets = layouts_of(mesh, ndim), layouts_of(mesh, ndim, partial=False)
    if len(sources) * len(targets) > MOST_PAIRS:
        sources, targets = (tuple(filter(_is_in_mesh_order, layouts)) for layouts in (sources, targets))
    return (sources, targets) if len(sources) * len(targets) <= MOST_PAIRS else ((), ())


def _is_in_mesh_order(layout: Layout) -> bool:
    """Return True if the axes of each dim are in the mesh's order."""
    return all(list(entry) == sorted(entry, key=layout.mesh.axes.index) for entry in layout.dims)


def default_meshes() -> tuple[Mesh, ...]:
    """Return all meshes of 2, 4, 6 and 8 ranks whose axes are longer than 1."""
    names = {1: ("x",), 2: ("dp", "tp"), 3: ("dp", "sp", "mp")}
    return tuple(Mesh(shape, names[len(shape)]) for size in (2, 4, 6, 8) for shape in _products(size))


def layouts_of(mesh: Mesh, ndim: int, *, partial: bool = True) -> tuple[Layout, ...]:
    """Return all offered layouts of a mesh, each once.

    Layouts without pending reductions come first.

    Args:
        mesh: the mesh.
        ndim: number of dimensions of the tensor.
        partial: False to leave out layouts with pending reductions. For their limits see :func:`_partial_layouts`.

    >>> mesh = Mesh((2, 2), ("a", "b"))
    >>> len(layouts_of(mesh, 2, partial=False)), len(layouts_of(mesh, 2))
    (11, 18)
    """
    reduced = tuple(dict.fromkeys(_reduced_layouts(mesh, ndim)))
    if not partial:
        return reduced
    return (*reduced, *(partial_layout for layout in reduced for partial_layout in _partial_layouts(layout)))


def _reduced_layouts(mesh: Mesh, ndim: int) -> Iterator[Layout]:
    """Yield all layouts of ``ndim`` dimensions on ``mesh`` without pending reductions.

    Each selection of axes, in each order, is divided between the dimensions. For example, the order (a, b) gives two
    dimensions ``(), (a, b)``, then ``(a), (b)`` and ``(a, b), ()``. Axes of size 1 split nothing. Some layouts are
    yielded several times.
    """
    busy = [axis for axis, size in zip(mesh.axes, mesh.shape) if size > 1]
    for count in range(len(busy) + 1):
        for order in permutations(busy, count):
            for cuts in combinations_with_replacement(range(count + 1), ndim - 1):
                bounds = (0, *cuts, count)
                yield Layout(mesh, [order[start:stop] for start, stop in pairwise(bounds)])


def _partial_layouts(layout: Layout) -> Iterator[Layout]:
    """Yield the layout with sums pending over each nonempty set of axes that it does not use.

    Axes of size 1 are in no set. If the mesh has three axes longer than 1, the sets have one axis, and layouts that
    split a dimension over several axes yield nothing. ``layout`` has no pending reductions.
    """
    size = layout.mesh.size_of
    busy = [axis for axis in layout.mesh.axes if size[axis] > 1]
    free = [axis for axis in busy if axis not in layout.split_axes]
    is_large = len(busy) > 2
    if is_large and any(len(entry) > 1 for entry in layout.dims):
        return
    for count in range(1, 2 if is_large else len(free) + 1):
        for axes in combinations(free, count):
            yield layout.with_partial(dict.fromkeys(axes, "sum"))


def _products(size: int) -> Iterator[Shape]:
    """Yield all ordered factorisations of a number in factors above 1."""
    yield (size,)
    for first in range(2, size):
        if size % first == 0:
            yield from ((first, *other_factors) for other_factors in _products(size // first))


def _check_mesh(mesh: Mesh) -> None:
    """Raise InputError if a mesh has too many ranks or axes for a page.

    The limits are :data:`MOST_RANKS` (8) ranks, :data:`MOST_AXES` (6) axes, and :data:`MOST_BUSY` (3) axes longer than
    1.
    """
    busy = sum(size > 1 for size in mesh.shape)
    if mesh.size > MOST_RANKS or len(mesh.axes) > MOST_AXES or busy > MOST_BUSY:
        raise InputError(
            f"Offer: a mesh must have at most {MOST_RANKS} ranks and {MOST_AXES} axes, {MOST_BUSY} of them longer than 1, "
            f"got {mesh} with {many(mesh.size, 'rank')} and {many(len(mesh.axes), 'axis', 'axes')}"
        )


def _check_shape(shape: Sequence[int]) -> None:
    """Raise InputError if a shape has too many dimensions or elements for a page, or no element.

    It must have 1 to :data:`MOST_DIMS` dimensions of 1 to 2**20 elements.
    """
    if not 1 <= len(shape) <= MOST_DIMS or prod(shape) < 1 or max(shape) > 1 << 20:
        raise InputError(
            f"Offer: a shape must have 1 to {MOST_DIMS} dims of 1 to {1 << 20} elements, got {tuple(shape)}"
        )
