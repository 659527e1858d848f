"""PAT, parallel aggregated trees: all_gather and reduce_scatter with binomial trees of all ranks at once.

Every rank sends its block down a binomial tree, all trees at one time. A message has the blocks of several trees, at most as
many as the option ``aggregation`` says. So few rounds (many blocks) or short messages and small buffers (few) can be chosen.

Source: Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale" (arXiv 2506.20252).
"""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, built_in
from spmdsim.collectives.algorithms.rank_arithmetic import reduce_backwards
from spmdsim.collectives.instructions import Rounds, recv, send

SOURCE = "arXiv 2506.20252"


@built_in("all_gather", "n", Formula("a + min(n, 2**(c-a)) - 1", "q"), symmetry="shift", source=SOURCE)
def all_gather_pat(rank: int, size: int, aggregation: int = 4) -> Rounds:
    """Send down binomial trees from every rank, limited blocks per message (PAT).

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks; none for one rank. Block b is chunk b.

    1. At the largest powers of two below ``size``, farthest first, a rank sends all blocks that it has, until it has
       ``aggregation`` blocks.
    2. The subtrees that remain are visited in depth first order, all subtrees in one message. So a block is in use for
       log2 n rounds of the other subtrees at most.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        aggregation: the most blocks of a message, rounded down to a power of two.
    """
    levels = (size - 1).bit_length()
    far_levels = min(aggregation.bit_length() - 1, levels)
    subtree = 1 << (levels - far_levels)
    # The distance of each round, and the offset of the first block that is sent: of its rank from the sender.
    far = [(1 << level, 0, 2 << level) for level in reversed(range(levels - far_levels, levels))]
    near = [(node & -node, node & node - 1, subtree) for node in range(1, min(subtree, size))]
    for distance, offset, stride in far + near:
        offsets = range(offset, size - distance, stride)
        yield [
            send((rank + distance) % size, [(rank - o) % size for o in offsets]),
            recv((rank - distance) % size, [(rank - distance - o) % size for o in offsets]),
        ]


@built_in(
    "reduce_scatter",
    "n",
    Formula("a + min(n, 2**(c-a)) - 1", "q", "q"),
    symmetry="shift",
    in_order=False,
    source=SOURCE,
)
def reduce_scatter_pat(rank: int, size: int, aggregation: int = 4) -> Rounds:
    """Send partial sums up binomial trees to every rank, limited blocks per message (PAT).

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks: those of the all_gather in reverse. A message
    has ``aggregation`` blocks at most. The order of the operands is not kept.
    """
    return reduce_backwards(all_gather_pat(rank, size, aggregation))
