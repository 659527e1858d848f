"""Compute the fewest elements that must enter a node through its network port in a redistribution.

Ranks of a node pass elements on through memory. So an element that a node wants has to enter it at most once, and does
not enter it if its ranks own the element, or all addends of a sum. If no two nodes own one addend, a sum over ``n``
nodes for ``N`` nodes enters nodes ``(n - 1) + (N - 1)`` times, and once more if no node with addends wants it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from spmdsim.core import Layout
from spmdsim.redistribution.bound.lower_bound import kept_axes, reduced_axes
from spmdsim.redistribution.grid import piece_numbers, ranks_of, split_bounds

#: The largest number of marks, ranks times boxes between cuts, for which the bound is computed.
MOST_MARKS = 20_000_000


class _Shards(NamedTuple):
    """Shards of all mesh positions in one layout.

    Attributes:
        boxes: for each dimension, the range of cells of each shard, as an array ``[start|stop, dim, shard]``.
        kept_addends: for each shard, the number of the addend that stays pending after the redistribution.
        reduced_addends: for each shard, the number of the addend that the redistribution reduces; 0 after it.
    """

    boxes: np.ndarray
    kept_addends: np.ndarray
    reduced_addends: np.ndarray

    def mark(self, positions: np.ndarray, marks: np.ndarray) -> None:
        """Set the marks ``[kept addend, reduced addend, cell, ...]`` of the shards of mesh positions to True."""
        rows = np.concatenate([self.kept_addends[None], self.reduced_addends[None], *self.boxes])[
            :, positions
        ]
        dims = self.boxes.shape[1]
        for kept_addend, reduced_addend, *ends in np.unique(rows, axis=1).T.tolist():
            marks[(kept_addend, reduced_addend, *map(slice, ends[:dims], ends[dims:]))] = True


def node_bound(
    src: Layout, dst: Layout, shape: tuple[int, ...], nodes_of: Callable[[np.ndarray], np.ndarray]
) -> int | None:
    """Return a number of elements that some node must receive from other nodes, by any algorithm.

    An element that several ranks of a node need has to enter the node only once. Addends of pending sums may be added
    up inside a node before they leave it.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape.
        nodes_of: the function from an array of ranks to the numbers of their nodes.

    Returns:
        The bound. None if it is not computed: if an axis is pending in ``dst`` but not in ``src``, or if the product
        of the numbers of ranks, of addends and of boxes exceeds :data:`MOST_MARKS` (20 million). A box is a block whose
        elements all have equal owners.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2, 2), ("dp", "tp"))
    >>> # Ranks 0 and 1 are node 0. They own 4 of the 8 elements and need all.
    >>> node_bound(mesh(("dp", "tp")), mesh(None), (8,), lambda ranks: ranks // 2)
    4
    """
    partial_axes, reduced = kept_axes(src, dst), reduced_axes(src, dst)
    if len(dst.partial) > len(partial_axes):
        return None
    # Cut each dim at the ends of all shards before and after; the blocks between the cuts form a grid of cells.
    bounds = [split_bounds(layout.mesh, layout.dims, shape) for layout in (src, dst)]
    edges = [
        np.unique(np.concatenate([ends[:, dim].ravel() for ends in bounds])) for dim in range(len(shape))
    ]
    cells = [max(len(edge) - 1, 0) for edge in edges]
    kept_addends, reduced_addends = src.mesh.axis_size(*partial_axes), src.mesh.axis_size(*reduced)
    if max(src.mesh.size, dst.mesh.size) * kept_addends * reduced_addends * math.prod(cells) > MOST_MARKS:
        return None
    # Describe each shard by its ranges of cells and its addends.
    sides = []
    for layout, ends, addend_axes in zip((src, dst), bounds, (reduced, ())):
        boxes = np.array([np.searchsorted(edge, ends[:, dim]) for dim, edge in enumerate(edges)])
        boxes = boxes.reshape(len(shape), 2, layout.mesh.size).transpose(1, 0, 2)
        numbers = [piece_numbers(layout.mesh, axes) for axes in (partial_axes, addend_axes)]
        sides.append(_Shards(boxes, *numbers))
    # Count the elements of each cell.
    volumes = np.ones(cells, np.int64)
    for dim, edge in enumerate(edges):
        volumes *= np.diff(edge).reshape([-1 if d == dim else 1 for d in range(len(edges))])
    nodes = [nodes_of(ranks_of(layout.mesh).rank) for layout in (src, dst)]
    return _count_entering(sides, nodes, (kept_addends, reduced_addends, *cells), volumes)


def _count_entering(
    sides: list[_Shards], nodes: list[np.ndarray], marks_shape: tuple[int, ...], volumes: np.ndarray
) -> int:
    """Return the bound of :func:`node_bound` for sums whose owners are marked on a grid of cells.

    It is the larger one of two numbers:

    - the elements that a node needs and of which it does not own all addends, for the node with the most of them;
    - the mean over all nodes of what enters them: an element that p nodes add and w nodes want enters p + w - 1
      nodes, one less if a node does both. This counts only if no two nodes own one addend.

    Args:
        sides: the shards before and after.
        nodes: the node of each mesh position before and after.
        marks_shape: the number of addends that stay pending, of addends that are reduced, and of cells in each
            dimension.
        volumes: the elements of each cell.
    """
    all_nodes = np.unique(np.concatenate(nodes))
    owners = np.zeros(marks_shape, np.int64)  # of each addend
    adding, wanting, both = (np.zeros((marks_shape[0], *marks_shape[2:]), np.int64) for _ in range(3))
    busiest = 0
    for node in all_nodes:
        owned = np.zeros(marks_shape, bool)
        wanted = np.zeros((marks_shape[0], 1, *marks_shape[2:]), bool)
        sides[0].mark(np.flatnonzero(nodes[0] == node), owned)
        sides[1].mark(np.flatnonzero(nodes[1] == node), wanted)
        wants, adds = wanted[:, 0], owned.any(axis=1)
        busiest = max(busiest, int((volumes * (wants & ~owned.all(axis=1))).sum()))
        owners += owned
        adding, wanting, both = adding + adds, wanting + wants, both + (adds & wants)
    if owners.max(initial=0) > 1:
        return busiest
    total = int((volumes * np.where(wanting > 0, adding + wanting - 1 - (both > 0), 0)).sum())
    return max(busiest, -(-total // len(all_nodes)))
