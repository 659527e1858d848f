"""gather: the root ends with all blocks. scatter: every rank ends with its block of the root's vector."""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, built_in
from spmdsim.collectives.algorithms import negabinary
from spmdsim.collectives.algorithms.rank_arithmetic import Fold, around, opposite, star_rounds, tree_rounds
from spmdsim.collectives.instructions import Chunks, Instruction, Rounds, recv, send


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


@built_in("gather", "n", Formula("c", "q", only="n == p"), source="arXiv 2508.17311")
def gather_bine_tree(rank: int, size: int, root: int = 0) -> Rounds:
    """Send blocks of whole subtrees up the Bine tree to the root.

    Returns the rounds (lists of instructions) of a rank: those of the scatter in reverse. Block b is chunk b.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank that ends with all blocks.
    """
    return opposite(reversed(list(scatter_bine_tree(rank, size, root))))


@built_in("scatter", "n", Formula("c", "q", only="n == p"), source="arXiv 2508.17311")
def scatter_bine_tree(rank: int, size: int, root: int = 0) -> Rounds:
    """Send blocks of whole subtrees down the Bine tree.

    Yields the rounds (lists of instructions) of a rank. Block b is chunk b. If the rank count is no power of two, the first
    ranks form pairs, of which the even rank gets both blocks and sends one on.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank with the vector.
    """
    v, fold = (rank - root) % size, Fold.of(size, survivor=0)

    def rotate(blocks: Chunks) -> Chunks:
        return tuple((block + root) % size for block in blocks)

    yield from negabinary.tree_down(
        v,
        fold,
        lambda child, _, blocks: [send((child + root) % size, rotate(blocks))],
        lambda parent, blocks, _: [recv((parent + root) % size, rotate(blocks))],
    )
    other = ((v ^ 1) + root) % size
    yield from fold.pair_round(v, [send(other, other)], [recv(other, rank)])
