"""broadcast, reduce and all_reduce along two binary trees at once, segment by segment.

Half of the segments go down each tree. An inner rank of one tree is a leaf of the other one, so that each rank sends about as
much as it receives. A round has a colour, 0 or 1. The edges of both trees have colours, too, such that a rank never sends
twice or receives twice in a round.

Source: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009).
"""

from __future__ import annotations

from functools import lru_cache

from spmdsim.collectives.algorithm import built_in
from spmdsim.collectives.algorithms.all_reduce import bit_tree_children, bit_tree_parent
from spmdsim.collectives.algorithms.broadcast import count_from_root
from spmdsim.collectives.algorithms.rank_arithmetic import reduce_backwards
from spmdsim.collectives.instructions import Rounds, recv, send

SOURCE = "doi 10.1016/j.parco.2009.09.001"
#: Numbers of the trees.
TREES = (0, 1)


def rename_inner(v: int, size: int, tree: int, back: bool = False) -> int:
    """Return the rank at a position of a tree, or the position of a rank if ``back``.

    Position 0 is the root, rank 0 of ``size`` ranks, in both trees. In tree 0 each rank has its own position. Tree 1 is the mirror image for an
    odd number of ranks, else it is shifted by one. So even and odd ranks, the inner ones and the leaves, swap.

    >>> [rename_inner(v, 6, 1) for v in range(6)], [rename_inner(v, 5, 1) for v in range(5)]
    ([0, 2, 3, 4, 5, 1], [0, 4, 3, 2, 1])
    """
    if tree == 0 or v == 0:
        return v
    if size % 2:
        return size - v
    return (v - 2) % (size - 1) + 1 if back else v % (size - 1) + 1


@lru_cache(maxsize=1 << 10)
def first_rounds(size: int) -> dict[tuple[int, int], int]:
    """Return the round in which each of ``size`` ranks gets the first segment of a tree, by tree and rank.

    A rank gets a further segment of the tree every other round. The root, rank 0, is left out. A rank gets the segment after
    its parent has it, in the next round of the edge's colour.

    >>> first_rounds(3)
    {(0, 2): 1, (0, 1): 3, (1, 1): 0, (1, 2): 2}
    """
    colours, rounds = _colour_edges(size), dict[tuple[int, int], int]()
    for tree in TREES:
        ends = [(0, -1)]
        while ends:
            parent, arrived = ends.pop()
            for position in bit_tree_children(parent, size):
                child = rename_inner(position, size, tree)
                after = arrived + 1
                rounds[tree, child] = after + (after + colours[tree, child]) % 2
                ends.append((position, rounds[tree, child]))
    return rounds


def _colour_edges(size: int) -> dict[tuple[int, int], int]:
    """Return a colour, 0 or 1, for each edge of two trees of ``size`` ranks, by tree and lower end.

    Two edges to one rank, and two edges from one rank, have different colours. This is possible because no rank has more than
    two of either kind.
    """
    colours: dict[tuple[int, int], int] = {}
    uncoloured = [((tree, child), 0) for child in range(1, size) for tree in TREES]
    while uncoloured:
        edge, colour = uncoloured.pop()
        if edge not in colours:
            colours[edge] = colour
            uncoloured += [(neighbour, 1 - colour) for neighbour in _adjacent_edges(*edge, size)]
    return colours


def _adjacent_edges(tree: int, child: int, size: int) -> list[tuple[int, int]]:
    """Return the edges that need another colour than the edge to ``child`` in ``tree``.

    They are the edge of the other tree to this rank, and the other edge from its parent. An edge is a pair: its tree and its
    lower end. There are ``size`` ranks.
    """
    parent = bit_tree_parent(rename_inner(child, size, tree, back=True), size)
    if parent == 0:  # The root has one edge in each tree.
        sibling = [(1 - tree, rename_inner(bit_tree_children(0, size)[0], size, 1 - tree))]
    else:
        children = [rename_inner(v, size, tree) for v in bit_tree_children(parent or 0, size)]
        sibling = [(tree, other) for other in children if other != child]
    return [(1 - tree, child), *sibling]


@built_in("broadcast", "2*s", source=SOURCE)
def broadcast_two_trees(rank: int, size: int, root: int = 0, segments: int = 4) -> Rounds:
    """Send segments down two binary trees whose inner ranks differ, one message per rank and round.

    Yields the rounds (lists of instructions) of a rank, about ``2 * (segments + log2 size)``; none for one rank. Tree t has the
    chunks t, t + 2, t + 4, ...

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank with the vector.
        segments: the number of segments of each tree.
    """
    v, first = (rank - root) % size, first_rounds(size)

    def segment_in(i: int, tree: int, child: int) -> list[int]:
        """Return the chunk that ``child`` gets in round i in a tree, as a list; [] if it gets none."""
        number, wait = divmod(i - first.get((tree, child), i + 1), 2)
        return [2 * number + tree] if not wait and 0 <= number < segments else []

    def rounds() -> Rounds:
        """Yield the rounds as counted from the root."""
        above, below = [], []
        for tree in TREES:
            position = rename_inner(v, size, tree, back=True)
            parent = bit_tree_parent(position, size)
            above += [] if parent is None else [(tree, rename_inner(parent, size, tree))]
            below += [(tree, rename_inner(child, size, tree)) for child in bit_tree_children(position, size)]
        for i in range(max(first.values(), default=-1) + 2 * segments - 1 if size > 1 else 0):
            sends = [send(child, chunk) for tree, child in below for chunk in segment_in(i, tree, child)]
            yield sends + [recv(parent, chunk) for tree, parent in above for chunk in segment_in(i, tree, v)]

    return count_from_root(rounds(), size, root)


@built_in("reduce", "2*s", in_order=False, source=SOURCE)
def reduce_two_trees(rank: int, size: int, root: int = 0, segments: int = 4) -> Rounds:
    """Send partial sums of segments up two binary trees whose inner ranks differ.

    Yields the rounds (lists of instructions) of a rank: those of the broadcast in reverse. The order of the operands is not
    kept.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank of the result.
        segments: the number of segments of each tree.
    """
    return reduce_backwards(broadcast_two_trees(rank, size, root, segments))


@built_in("all_reduce", "2*s", in_order=False, source=SOURCE)
def all_reduce_two_trees(rank: int, size: int, segments: int = 4) -> Rounds:
    """Reduce segments up two binary trees to rank 0, then broadcast them down these trees.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks. Each tree has ``segments`` segments. The order
    of the operands is not kept.
    """
    yield from reduce_two_trees(rank, size, 0, segments)
    yield from broadcast_two_trees(rank, size, 0, segments)
