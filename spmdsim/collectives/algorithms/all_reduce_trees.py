"""all_reduce made of a reduce and a broadcast, and NCCL's double binary tree."""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, declare
from spmdsim.collectives.algorithms import broadcast, reduce
from spmdsim.collectives.instructions import Instruction, Rounds, recv, recv_reduce, send


@declare(
    "all_reduce",
    "reduce_broadcast",
    chunks="1",
    about="binomial reduce to rank 0, binomial broadcast from there",
    formula=Formula("2*c", "2*c", "c", "c"),
    libraries=(("openmpi", "nonoverlapping 2"),),
    in_order=True,
)
def reduce_broadcast(rank: int, size: int) -> Rounds:
    """Reduce, then broadcast, both by the binomial tree of rank 0."""
    yield from reduce.binomial(rank, size)
    yield from broadcast.binomial(rank, size)


@declare(
    "all_reduce",
    "linear",
    chunks="1",
    about="everyone sends to rank 0, which sends the result to everyone",
    formula=Formula("2*(n-1)", "2*(n-1)", "n-1", "n-1"),
    libraries=(("openmpi", "basic_linear linear 1"),),
    in_order=True,
)
def linear(rank: int, size: int) -> Rounds:
    """One message at a time into rank 0 and out of it."""
    yield from reduce.linear(rank, size)
    yield from broadcast.linear(rank, size)


def bit_tree_parent(rank: int, size: int) -> int | None:
    """Parent in the tree where a rank with lowest set bit b hangs under the next rank with lowest set bit 2b.

    >>> [bit_tree_parent(r, 6) for r in range(6)]
    [None, 2, 4, 2, 0, 4]
    """
    if rank == 0:
        return None
    low = rank & -rank
    up = (rank ^ low) | low << 1
    return up if up < size else rank ^ low


def _place(rank: int, size: int, tree: int) -> int:
    """The rank of the first tree whose place this rank has in ``tree``."""
    if tree == 0:
        return rank
    return size - 1 - rank if size % 2 == 0 else (rank - 1) % size


def _rank_at(place: int, size: int, tree: int) -> int:
    if tree == 0:
        return place
    return size - 1 - place if size % 2 == 0 else (place + 1) % size


def bit_tree_children(rank: int, size: int) -> list[int]:
    """The ranks whose parent in the bit tree is ``rank``, lowest first."""
    low = rank & -rank if rank else 1 << size.bit_length()
    near = {rank - (low >> 1), *(rank + (low >> 1 + i) for i in range(low.bit_length()))}
    return sorted(c for c in near if 0 < c < size and bit_tree_parent(c, size) == rank)


def bit_tree_depth(rank: int, size: int) -> int:
    """Edges between the rank and the root, rank 0."""
    depth, above = 0, bit_tree_parent(rank, size)
    while above is not None:
        depth, above = depth + 1, bit_tree_parent(above, size)
    return depth


@declare(
    "all_reduce",
    "double_binary_tree",
    chunks="2",
    about="each half of the vector up and down its own binary tree; an inner rank of one tree is a leaf of the other",
    ports="2",
    libraries=(("nccl", "tree"),),
)
def double_binary_tree(rank: int, size: int) -> Rounds:
    """NCCL's two trees; all ranks of one depth send in the same round."""
    deepest = (size - 1).bit_length()
    for level in range(deepest, 0, -1):
        yield [m for tree in (0, 1) for m in _tree_moves(rank, size, tree, level, up=True)]
    for level in range(1, deepest + 1):
        yield [m for tree in (0, 1) for m in _tree_moves(rank, size, tree, level, up=False)]


def _tree_moves(rank: int, size: int, tree: int, level: int, up: bool) -> list[Instruction]:
    """Messages between depth ``level`` and the depth above it, in one tree."""
    place = _place(rank, size, tree)
    depth = bit_tree_depth(place, size)
    moves = []
    if depth == level:
        parent = bit_tree_parent(place, size)
        peer = _rank_at(parent or 0, size, tree)
        moves.append(send(peer, tree) if up else recv(peer, tree))
    elif depth == level - 1:
        for child in bit_tree_children(place, size):
            peer = _rank_at(child, size, tree)
            moves.append(recv_reduce(peer, tree) if up else send(peer, tree))
    return moves
