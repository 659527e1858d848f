"""Describe the shards of a layout as a grid: positions of the cuts, and the rank that owns each cell.

A layout cuts each dimension independently, so its distinct shards form a grid. The shards that overlap a box, and
their owners, follow dimension by dimension from sorted cuts, without a list of pairs of ranks. A *piece* is a block of
one dimension and may be empty; a *cell* is a piece that is not empty. A *position* is the row-major number of a rank
in its mesh.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from spmdsim.core import Bounds, Layout, Mesh
from spmdsim.core.layout import split_block

#: The axes that split each dim, major first.
Entries = tuple[tuple[str, ...], ...]


class Ends(NamedTuple):
    """Input of an exchange: a tensor's shape and its two splits.

    Attributes:
        have: the mesh before the exchange.
        src: the axes of ``have`` that split each dimension before the exchange.
        want: the mesh after the exchange.
        dst: the axes of ``want`` that split each dimension after the exchange.
        shape: the tensor's global shape.
    """

    have: Mesh
    src: Entries
    want: Mesh
    dst: Entries
    shape: tuple[int, ...]


def block_counts(mesh: Mesh, entry: tuple[str, ...]) -> tuple[int, ...]:
    """Return the number of blocks into which each axis of an entry cuts a dimension."""
    return tuple([mesh.size_of[axis] for axis in entry])


def idle_axes(ends: Ends) -> tuple[str, ...]:
    """Return the axes of a common mesh that split neither source nor target; () for two meshes.

    They are in mesh order. Ranks that differ in their coordinates along these axes exchange nothing.

    Args:
        ends: the splits before and after the exchange.
    """
    have, src, want, dst, _ = ends
    if have != want:
        return ()
    used = {axis for entry in (*src, *dst) for axis in entry}
    return tuple([axis for axis in have.axes if axis not in used])


class Cuts:
    """Dimension of ``size`` elements, cut by nested balanced splits.

    ``start`` and ``stop`` are arrays with the bounds of each piece.

    >>> cuts(5, (2, 2)).edges, cuts(1, (2, 2)).cell.tolist()
    ([0, 2, 3, 4, 5], [0, -1, -1, -1])
    """

    def __init__(self, size: int, parts: Sequence[int]) -> None:
        self.size = size
        start, length = nested_block_arrays(size, parts)
        self.start, self.stop = start, start + length

    @cached_property
    def piece(self) -> np.ndarray:
        """Piece number of each cell."""
        return np.flatnonzero(self.stop > self.start)

    @cached_property
    def cell(self) -> np.ndarray:
        """Cell number of each piece, -1 for an empty piece."""
        full = self.stop > self.start
        return np.where(full, np.cumsum(full) - 1, -1)

    @cached_property
    def edge_array(self) -> np.ndarray:
        """Start of each cell, followed by the end of the last cell."""
        return np.append(self.start[self.piece], self.size)

    @cached_property
    def edges(self) -> list[int]:
        """Values of ``edge_array`` as Python integers."""
        edges: list[int] = self.edge_array.tolist()
        return edges

    @property
    def count(self) -> int:
        """Number of cells."""
        return len(self.edges) - 1

    def cells_in(self, start: int, stop: int) -> tuple[int, int]:
        """Return ``(first, stop)``: the range of cells that share an element with ``[start, stop)``.

        The interval must not be empty.
        """
        return bisect_right(self.edges, start) - 1, bisect_left(self.edges, stop)

    def cell_ranges(self, start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the ranges of :meth:`cells_in` for arrays of intervals, as two arrays."""
        first = np.searchsorted(self.edge_array, start, "right") - 1
        return first, np.searchsorted(self.edge_array, stop, "left")


cuts = lru_cache(maxsize=4096)(Cuts)


class Ranks:
    """Conversion between rank numbers and mesh positions of a mesh, for arrays.

    ``rank`` is the array of the rank numbers by position.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.size = mesh.size
        self.rank: np.ndarray = (
            np.arange(mesh.size) if mesh.ranks is None else np.asarray(mesh.ranks, np.int64)
        )
        if mesh.ranks is None:
            self._position = None
        else:
            self._position = np.full(max(mesh.ranks) + 1, -1, np.int64)
            self._position[self.rank] = np.arange(mesh.size)

    def positions(self, ranks: np.ndarray) -> np.ndarray:
        """Return the mesh positions of ranks, -1 for a rank that is not in the mesh."""
        table = self._position
        if table is None:
            return np.where(ranks < self.size, ranks, -1)
        return np.where(ranks < len(table), table[np.minimum(ranks, len(table) - 1)], -1)


ranks_of = lru_cache(maxsize=512)(Ranks)


@lru_cache(maxsize=2048)
def _mesh_offsets(mesh: Mesh, axes: tuple[str, ...]) -> np.ndarray:
    """Return the distance in mesh positions to each combination of coordinates on ``axes``.

    A position is the row-major number of a rank in its mesh; the distance is counted from coordinates 0. The
    combinations are in row-major order; the first axis is the major one. Without axes, the result is ``[0]``. The int64
    array is cached; do not write to it.

    >>> _mesh_offsets(Mesh((2, 3), ("a", "b")), ("b", "a")).tolist()  # b steps by 1, a by 3
    [0, 3, 1, 4, 2, 5]
    """
    strides = dict(zip(mesh.axes, mesh._strides))
    offsets = np.zeros(1, np.int64)
    for axis in axes:
        offsets = (offsets[:, None] + np.arange(mesh.size_of[axis]) * strides[axis]).ravel()
    return offsets


@lru_cache(maxsize=2048)
def piece_numbers(mesh: Mesh, axes: tuple[str, ...]) -> np.ndarray:
    """Return the number of the block that each mesh position owns, if ``axes`` split a dimension.

    It is the row-major number of the position's coordinates on ``axes``; the first axis is the major one. Without
    axes, all numbers are 0. The int64 array, by mesh position, is cached; do not write to it.

    >>> piece_numbers(Mesh((2, 3), ("a", "b")), ("b", "a")).tolist()
    [0, 2, 4, 1, 3, 5]
    """
    coordinates = np.indices(mesh.shape, sparse=True)
    numbers = np.zeros((1,) * len(mesh.shape), np.int64)
    for axis in axes:
        numbers = numbers * mesh.size_of[axis] + coordinates[mesh.axis_index(axis)]
    return np.broadcast_to(numbers, mesh.shape).reshape(-1)


class Grid:
    """Cells of a tensor whose dimensions are split.

    Ranks that differ only on axes in no entry own copies of a cell. The copies are numbered by the coordinates on
    these axes.

    Attributes:
        mesh: the mesh.
        entries: the axes that split each dimension.
        sizes: the tensor's shape.
        ranks: the conversion of rank numbers.
        cuts: the cuts of each dimension.
        free: the axes of copies.
        copies: the number of copies of each cell.
    """

    def __init__(self, mesh: Mesh, entries: Entries, sizes: tuple[int, ...]) -> None:
        self.mesh, self.entries, self.sizes = mesh, entries, sizes
        self.ranks = ranks_of(mesh)
        self.cuts = [cuts(size, block_counts(mesh, entry)) for size, entry in zip(sizes, entries)]
        used = {axis for entry in entries for axis in entry}
        self.free = tuple(axis for axis in mesh.axes if axis not in used)
        self.copies = mesh.axis_size(*self.free)

    @cached_property
    def offsets(self) -> list[np.ndarray]:
        """Mesh offset of each cell, one array per dimension.

        The sum of a cell's offsets over the dimensions is the position of its first copy.
        """
        return [_mesh_offsets(self.mesh, entry)[cut.piece] for entry, cut in zip(self.entries, self.cuts)]

    @cached_property
    def copy_offsets(self) -> np.ndarray:
        """Mesh offset of each copy."""
        return _mesh_offsets(self.mesh, self.free)

    @cached_property
    def pieces(self) -> list[np.ndarray]:
        """Piece that each mesh position owns, one array per dimension."""
        return [piece_numbers(self.mesh, entry) for entry in self.entries]

    @cached_property
    def volumes(self) -> np.ndarray:
        """Number of elements that each mesh position owns."""
        lengths = [(cut.stop - cut.start)[piece] for cut, piece in zip(self.cuts, self.pieces)]
        volumes: np.ndarray = math.prod(lengths, start=np.ones(self.mesh.size, np.int64))
        return volumes

    @cached_property
    def cells(self) -> list[np.ndarray]:
        """Cell that each mesh position owns, one array per dimension; -1 for an empty piece."""
        return [cut.cell[piece] for cut, piece in zip(self.cuts, self.pieces)]

    @cached_property
    def copy_numbers(self) -> np.ndarray:
        """Copy number of each mesh position."""
        return piece_numbers(self.mesh, self.free)

    def spans(self, box: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return ``(first, stop)`` of the cells that a box overlaps, in each dimension.

        ``box`` is ``(start, stop)`` in each dimension; it must not be empty.
        """
        return [cut.cells_in(*interval) for cut, interval in zip(self.cuts, box)]

    def list_edges(
        self, spans: Sequence[tuple[int, int]], box: Sequence[tuple[int, int]]
    ) -> list[np.ndarray]:
        """Return, per dimension, the start of a box, the edges of cells inside it, and its stop.

        For cells that start at 0, 2 and 4 and the box (1, 5), it is ``[1, 2, 4, 5]``.

        Args:
            spans: ``(first, stop)`` of the cells that the box overlaps, as :meth:`spans` returns them.
            box: ``(start, stop)`` in each dimension; the dimensions after these are left out.
        """
        dims = zip(self.cuts, spans, box)
        return [
            np.concatenate(([start], cut.edge_array[first + 1 : last], [stop]))
            for cut, (first, last), (start, stop) in dims
        ]

    def positions(self, spans: Sequence[tuple[int, int]]) -> np.ndarray:
        """Return the mesh positions of the first copies of ranges of cells, in row-major order of the cells."""
        out = np.zeros(1, np.int64)
        for offset, (a, b) in zip(self.offsets, spans):
            out = (out[:, None] + offset[a:b]).ravel()
        return out

    def box(self, position: int) -> list[tuple[int, int]]:
        """Return ``(start, stop)`` in each dimension of the shard at a mesh position."""
        return [
            (int(cut.start[piece[position]]), int(cut.stop[piece[position]]))
            for cut, piece in zip(self.cuts, self.pieces)
        ]


grid = lru_cache(maxsize=1024)(Grid)


@lru_cache(maxsize=1024)
def grids(src: Layout, dst: Layout, shape: tuple[int, ...]) -> tuple[Grid, Grid, int]:
    """Return the grids of two layouts of one tensor, and its number of dimensions.

    On one mesh, ranks exchange nothing along axes that split neither layout. Each axis of this kind that is longer
    than 1 becomes a further dimension at the end, split in both grids, so that every rank stays in its slice of the
    mesh. For example, 8 elements go from "a" to replicated on a mesh of axes a and b of length 2: the grids have the
    shape (8, 2). Between two meshes no dimension is added.

    Args:
        src: the layout before; its pending reductions are ignored.
        dst: the layout after; its pending reductions are ignored.
        shape: the global shape.

    Returns:
        ``(source grid, target grid, number of tensor dimensions)``, cached by value.
    """
    if src.mesh != dst.mesh:
        return grid(src.mesh, src.dims, shape), grid(dst.mesh, dst.dims, shape), len(shape)
    split_axes = {*src.split_axes, *dst.split_axes}
    free_axes = tuple(
        (axis,) for axis in src.mesh.axes if axis not in split_axes and src.mesh.size_of[axis] > 1
    )
    sizes = shape + tuple(src.mesh.size_of[axis] for (axis,) in free_axes)
    return (
        grid(src.mesh, src.dims + free_axes, sizes),
        grid(dst.mesh, dst.dims + free_axes, sizes),
        len(shape),
    )


def nested_block_arrays(size: int, parts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts and the lengths of all blocks of nested balanced splits, as int64 arrays.

    ``size`` elements are cut into ``parts[0]`` blocks, each of these into ``parts[1]`` blocks, and so on. Blocks are
    in order; a block may be empty. Without parts, there is one block.

    >>> [array.tolist() for array in nested_block_arrays(5, (2, 2))]
    [[0, 2, 3, 4], [2, 1, 1, 1]]
    """
    start, length = np.zeros(1, np.int64), np.full(1, size, np.int64)
    for count in parts:
        start, length = split_block(start[:, None], length[:, None], count, np.arange(count))
        start, length = start.ravel(), length.ravel()
    return start, length


@lru_cache(maxsize=4096)
def split_bounds(mesh: Mesh, dims: Entries, shape: tuple[int, ...]) -> np.ndarray:
    """Return the bounds of each position's block: integers ``[start|stop, dim, position]``.

    Index 0 of the first dimension has the starts, index 1 the stops. The array is cached, so it is read-only.

    Args:
        mesh: the mesh; positions are the row-major numbers of its ranks.
        dims: the axes that split each dimension.
        shape: the global shape.
    """
    bounds = np.empty((2, len(shape), mesh.size), np.int64)
    for dim, (size, entry) in enumerate(zip(shape, dims)):
        cut, numbers = cuts(size, block_counts(mesh, entry)), piece_numbers(mesh, entry)
        bounds[0, dim], bounds[1, dim] = cut.start[numbers], cut.stop[numbers]
    bounds.flags.writeable = False
    return bounds


@lru_cache(maxsize=1024)
def list_boxes(layout: Layout, shape: tuple[int, ...]) -> list[Bounds]:
    """Return the bounds of every rank's shard by mesh position, as Python integers."""
    bounds = split_bounds(layout.mesh, layout.dims, shape)
    return [tuple(map(tuple, box)) for box in bounds.transpose(2, 1, 0).tolist()]


@lru_cache(maxsize=512)
def source_positions(have: Mesh, want: Mesh) -> np.ndarray:
    """Return, for each target position, the source position of its rank.

    It is -1 if the rank is not in the source mesh.
    """
    return ranks_of(have).positions(ranks_of(want).rank)


def count_common_axes(before: tuple[str, ...], after: tuple[str, ...]) -> int:
    """Return the number of leading axes that two entries have in common."""
    for count, (axis, axis_after) in enumerate(zip(before, after)):
        if axis != axis_after:
            return count
    return min(len(before), len(after))


def next_axes(entry: tuple[str, ...], target: tuple[str, ...], allowed: set[str]) -> tuple[str, ...]:
    """Return the axes that follow ``entry`` in ``target``, up to the first forbidden one.

    The result is () if ``target`` does not start with ``entry``, equals it, or goes on with a forbidden axis.

    Args:
        entry: the axes that split a dimension, the major one first.
        target: the axes that shall split it.
        allowed: the axes that may be appended; all others are forbidden.

    >>> next_axes(("a",), ("a", "b", "c"), {"b"})
    ('b',)
    """
    if len(target) <= len(entry) or target[: len(entry)] != entry:
        return ()
    stop = len(entry)
    while stop < len(target) and target[stop] in allowed:
        stop += 1
    return target[len(entry) : stop]
