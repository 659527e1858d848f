"""gather: the root ends with all blocks. scatter: every rank ends with its block of the root's vector."""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, built_in
from spmdsim.collectives.algorithms.rank_arithmetic import around, opposite, star_rounds, tree_rounds
from spmdsim.collectives.instructions import Instruction, Rounds, recv, send


@built_in("gather", "n", Formula("n-1", "q"), openmpi="basic_linear linear_sync linear 1 3")
def gather_linear(rank: int, size: int, root: int = 0) -> Rounds:
    """Receive at the root from one rank after another.

    Round i: rank root + i sends its block.
    """
    others = ((root + i) % size for i in range(1, size))
    return star_rounds(rank, root, others, lambda source: recv(source, source), send(root, rank))


@built_in("gather", "n", Formula("c", "q"), mpich="binomial", openmpi="binomial 2")
def gather_binomial(rank: int, size: int, root: int = 0) -> Rounds:
    """Send blocks of whole subtrees up the binomial tree to the root.

    Returns the rounds (lists of instructions) of a rank. A rank at distance v from the root collects the blocks
    at the distances v to v + m - 1, and sends them to the rank at distance v - m; m is the lowest set bit of v.
    Block b is chunk b, and belongs to rank b.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank that ends with all blocks.
    """
    v = (rank - root) % size

    def collect(child: int, mask: int) -> Instruction:
        peer = (child + root) % size
        return recv(peer, around(peer, min(mask, size - child), size))

    def give(parent: int, mask: int) -> Instruction:
        return send((parent + root) % size, around(rank, min(mask, size - v), size))

    return tree_rounds(v, size, collect, give)


@built_in("scatter", "n", Formula("n-1", "q"), openmpi="basic_linear linear_nb linear 1 3")
def scatter_linear(rank: int, size: int, root: int = 0) -> Rounds:
    """Send from the root to one rank after another.

    Round i: the root sends rank root + i its block.
    """
    return opposite(gather_linear(rank, size, root))


@built_in("scatter", "n", Formula("c", "q"), mpich="binomial", openmpi="binomial 2")
def scatter_binomial(rank: int, size: int, root: int = 0) -> Rounds:
    """Send blocks of whole subtrees down the binomial tree.

    This is the binomial gather in reverse.
    """
    return opposite(reversed(list(gather_binomial(rank, size, root))))
