"""all_gather: every rank ends with the blocks of all ranks."""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, built_in
from spmdsim.collectives.algorithms import negabinary
from spmdsim.collectives.algorithms.rails import Rails
from spmdsim.collectives.algorithms.rank_arithmetic import (
    Fold,
    around,
    circulant_gather,
    doublings,
    ring_rounds,
)
from spmdsim.collectives.factors import powers_below
from spmdsim.collectives.instructions import Instruction, Rounds, recv, send


@built_in(
    "all_gather", "n", Formula("n-1", "q"), symmetry="shift", mpich="ring", openmpi="ring 4", nccl="ring"
)
def ring(rank: int, size: int) -> Rounds:
    """Send blocks around the ring.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks; none for one rank. In round i, counted
    from 0, rank r sends block r-i to rank r+1.
    """
    return ring_rounds((rank + 1) % size, (rank - 1) % size, size, rank)


@built_in(
    "all_gather",
    "n",
    Formula("f", "q", only="n == p"),
    symmetry="n == p: xor",
    mpich="recursive_doubling",
    openmpi="recursive_doubling 3",
)
def recursive_doubling(rank: int, size: int) -> Rounds:
    """Exchange all blocks gathered so far with partners at distance 1, 2, 4 and so on.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks; none for one rank. For example,
    rank 0 of 4 exchanges block 0 for block 1 with rank 1, then blocks 0 and 1 for blocks 2 and 3 with rank 2. At
    distance k, the partner of rank r is r ^ k. Each of them sends the blocks of its aligned group of k ranks.

    If ``size`` exceeds a power of two by e, the first 2 * e ranks form pairs of neighbours. The even rank of a
    pair sends its block to the odd one, is idle (``[]``) meanwhile, and gets all other blocks at the end. The
    remaining ranks are renumbered, and exchange as above by their new numbers. Their groups include the blocks of
    the even ranks.
    """
    fold = Fold.of(size)

    def swap(peer: int, new: int, peer_new: int, k: int) -> list[Instruction]:
        # The first new numbers of the two aligned groups of k.
        first, theirs = new & -k, peer_new & -k
        return [send(peer, fold.blocks(first, first + k)), recv(peer, fold.blocks(theirs, theirs + k))]

    yield from _before(rank, fold)
    yield from fold.meetings(rank, doublings(fold.power), swap)
    yield from _after(rank, size, fold)


def _before(rank: int, fold: Fold) -> Rounds:
    """Yield the round in which ranks that drop out send their blocks to their partners."""
    return fold.pair_round(rank, [recv(rank ^ 1, rank ^ 1)], [send(rank ^ 1, rank)])


def _after(rank: int, size: int, fold: Fold) -> Rounds:
    """Yield the round in which ranks that dropped out get all other blocks from their partners.

    The partner of a rank is ``rank ^ 1``. No round is yielded without pairs.
    """
    if fold.extra:
        missing_there = [block for block in range(size) if block != rank ^ 1]
        missing_here = [block for block in range(size) if block != rank]
        yield from fold.pair_round(rank, [send(rank ^ 1, missing_there)], [recv(rank ^ 1, missing_here)])


@built_in(
    "all_gather", "n", Formula("c", "q"), symmetry="shift", mpich="brucks", openmpi="bruck bruck_k_fanout 2"
)
def bruck(rank: int, size: int) -> Rounds:
    """Send the blocks gathered so far to rank r-1, r-2, r-4, ..., in ceil(log2 n) rounds.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks: those of :func:`radix_bruck` with radix 2.
    """
    return radix_bruck(rank, size, radix=2)


@built_in("all_gather", "n", Formula("dk", "q"), symmetry="shift", source="doi 10.1109/71.642949")
def radix_bruck(rank: int, size: int, radix: int = 4) -> Rounds:
    """Multiply the blocks of a rank by the radix, in radix - 1 rounds for each digit of the distance.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks; none for one rank. A rank r that
    has k blocks, r to r+k-1, sends them to the ranks r-k, r-2k, ..., r-(radix-1)k, one after the other, and receives as many
    from the ranks r+k, r+2k, ... A round moves only missing blocks. All numbers are modulo n. Block b is chunk b.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        radix: 2 or more.
    """
    for k in powers_below(size, radix):
        for distance in range(k, min(radix * k, size), k):
            count = min(k, size - distance)
            yield [
                send((rank - distance) % size, around(rank, count, size)),
                recv((rank + distance) % size, around(rank + distance, count, size)),
            ]


@built_in("all_gather", "n", Formula("n/2", "q", only="n % 2 == 0"), openmpi="neighbor 5")
def neighbor_exchange(rank: int, size: int) -> Rounds:
    """Send two blocks per round to alternating neighbours.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks; none for one rank. A rank swaps
    its block with the partner of its pair. In each further round it swaps the two newest blocks with the
    neighbour on the other side than before. With an odd number of ranks, the first one leaves its block to the
    second, which takes part for both.
    """
    if size == 1:
        return
    fold = Fold(size - size % 2, size % 2)
    yield from _before(rank, fold)
    if fold.survives(rank):
        yield from _swap_with_neighbours(fold.new(rank), fold)
    else:
        yield from ([] for _ in range(fold.power // 2))
    yield from _after(rank, size, fold)


def _swap_with_neighbours(survivor: int, fold: Fold) -> Rounds:
    """Yield a survivor's rounds in :func:`neighbor_exchange`: half as many as survivors.

    First, the survivors 0 and 1, 2 and 3, ... swap their blocks. In each later round a survivor exchanges two blocks
    with a neighbour, in turn on the other side and on the side of the first round. It sends the two newest blocks (at
    first those of its pair), and receives two others. For example, survivor 0 of 6:

    * round 0: sends block 0 to survivor 1, and gets block 1;
    * round 1: sends blocks 0, 1 to survivor 5, and gets blocks 4, 5;
    * round 2: sends blocks 4, 5 to survivor 1, and gets blocks 2, 3.

    Args:
        survivor: the number of the rank among the survivors.
        fold: the fold, which leaves an even number of ranks, the survivors.
    """
    size, sign = fold.power, 1 if survivor % 2 == 0 else -1
    neighbours = ((survivor + sign) % size, (survivor - sign) % size)
    peers = [fold.old(neighbour) for neighbour in neighbours]
    yield [send(peers[0], fold.blocks(survivor)), recv(peers[0], fold.blocks(neighbours[0]))]
    pair = survivor - survivor % 2
    send_start = pair
    # The first survivor of the pair whose blocks came last from each side; each visit moves it away by one pair.
    arrived = [pair, pair]
    for i in range(1, size // 2):
        side = i % 2
        arrived[side] = (arrived[side] + (2 * sign if side == 0 else -2 * sign)) % size
        receive_start = arrived[side]
        yield [
            send(peers[side], fold.blocks(send_start, send_start + 2)),
            recv(peers[side], fold.blocks(receive_start, receive_start + 2)),
        ]
        send_start = receive_start


@built_in("all_gather", "n", Formula("c", "q"), symmetry="shift", openmpi="sparbit 7")
def sparbit(rank: int, size: int) -> Rounds:
    """Send down a binomial tree from every rank at once, farthest first; blocks stay in order.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks; none for one rank. The distances
    are powers of two, the largest below ``size`` first. At distance d, rank r has the blocks r, r-2d, r-4d, ...,
    and sends to rank r+d as many of them as that rank lacks. Block b is chunk b.
    """
    owned = 1
    for distance in reversed(list(doublings(size))):
        count = min(owned, -(-size // distance) - owned)
        sent = [(rank - 2 * i * distance) % size for i in range(count)]
        received = [(rank - (2 * i + 1) * distance) % size for i in range(count)]
        yield [send((rank + distance) % size, sent), recv((rank - distance) % size, received)]
        owned += count


@built_in("all_gather", "n", Formula("c", "q"), symmetry="shift", source="arXiv 2410.14234")
def circulant(rank: int, size: int) -> Rounds:
    """Double the distance, rounded down, in each of ceil(log2 n) rounds (Traff).

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks.
    Unlike :func:`bruck`, the last round is not
    shorter: the numbers of blocks differ by one at most from half of those that a rank has afterwards.
    """
    return circulant_gather(rank, size)


@built_in("all_gather", "n", Formula("f", "q", only="n == p"), source="arXiv 2508.17311")
def bine(rank: int, size: int) -> Rounds:
    """Exchange all blocks at distances ..., 11, 5, 3, 1, 1 (Bine).

    Most blocks go to the nearest ranks. Yields the rounds (lists of instructions) of
    ``rank`` among ``size`` ranks. Block b is chunk b. If the rank count is no
    power of two, the first ranks form pairs as by :func:`recursive_doubling`.
    """
    fold = Fold.of(size)
    yield from _before(rank, fold)
    yield from negabinary.exchange_rounds(
        rank, fold, lambda peer, owned, missing: [send(peer, owned), recv(peer, missing)], far_first=True
    )
    yield from _after(rank, size, fold)


@built_in("all_gather", "n", Formula("n-1", "q"), symmetry="shift", openmpi="linear direct two_proc 1 6 8")
def linear(rank: int, size: int) -> Rounds:
    """Send each block straight to every rank, one partner per round.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks; none for one rank. In round i, counted
    from 1, rank r sends its own block to rank r+i and receives a block from rank r-i.
    """
    for i in range(1, size):
        to, source = (rank + i) % size, (rank - i) % size
        yield [send(to, rank), recv(source, source)]


@built_in("all_gather", "n", Formula("g-1 + h-1", "q", only="n % g == 0"))
def two_level_ring(rank: int, size: int, group: int = 2) -> Rounds:
    """Run rings between groups, one for each place in a group, then a ring in each group.

    Local rank i of each group gathers the blocks of the local ranks i, on rail i. Then it passes these blocks around its
    group. So each block enters a group once. If the last group is smaller, its ranks serve several rails each, one
    after the other.

    For example, 4 ranks in groups of 2: rank 0 swaps blocks with rank 2, then sends the blocks 0 and 2 to rank 1.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks, and of blocks.
        group: the number of ranks of a group.
    """
    rails = Rails(size, group)

    def gather_on(rail: int) -> Rounds:
        return rails.ring_between(rank, rail, rails.owners_on(rail))

    yield from rails.take_turns(rank, gather_on, rails.group_count - 1)
    yield from rails.ring_inside(rank, [rails.owners_served_by(member) for member in rails.members(rank)])
