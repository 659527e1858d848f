"""all_to_all: rank d ends with block d of every rank. The chunk from rank s to rank d is number s*n + d."""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, built_in
from spmdsim.collectives.algorithms import negabinary
from spmdsim.collectives.algorithms.rails import Rails, pad_rounds
from spmdsim.collectives.algorithms.rank_arithmetic import Fold
from spmdsim.collectives.factors import powers_below
from spmdsim.collectives.instructions import Chunks, Instruction, Rounds, recv, send


def _exchange(rank: int, size: int, to: int, source: int) -> list[Instruction]:
    """Return the instructions that send the block for ``to`` and receive that of ``source``."""
    return [send(to, rank * size + to), recv(source, source * size + rank)]


@built_in(
    "all_to_all",
    "n*n",
    Formula("n-1", "q"),
    symmetry="n == p: xor; shift",
    mpich="pairwise",
    openmpi="pairwise two_proc 2",
)
def pairwise(rank: int, size: int) -> Rounds:
    """Exchange blocks with another rank in each round; every block travels once.

    Yields the ``size - 1`` rounds (lists of instructions) of ``rank`` among ``size`` ranks. In round i, from 1,
    rank r swaps blocks with r^i if ``size`` is a power of two. Otherwise it sends to r+i and receives from r-i,
    modulo ``size``.
    """
    for i in range(1, size):
        if size & (size - 1) == 0:
            yield _exchange(rank, size, rank ^ i, rank ^ i)
        else:
            yield _exchange(rank, size, (rank + i) % size, (rank - i) % size)


@built_in(
    "all_to_all",
    "n*n",
    Formula("(1 if n > 1 else 0)", "q"),
    ports="max(1, n-1)",
    symmetry="shift",
    mpich="scattered",
    openmpi="linear linear_sync basic_linear 1 4",
)
def linear(rank: int, size: int) -> Rounds:
    """Send the blocks for all other ranks in one round, which needs n - 1 ports.

    Yields the only round (a list of instructions) of ``rank`` among ``size`` ranks; none for one rank. The sends
    go to r+1, r+2, ..., the receives are from r-1, r-2, ... MPICH calls it scattered, Open MPI linear.
    """
    if size > 1:
        yield [
            move
            for i in range(1, size)
            for move in _exchange(rank, size, (rank + i) % size, (rank - i) % size)
        ]


@built_in(
    "all_to_all",
    "n*n",
    Formula("c", "bits/n"),
    symmetry="shift",
    mpich="brucks",
    openmpi="modified_bruck bruck 3",
)
def bruck(rank: int, size: int) -> Rounds:
    """Move blocks along the binary digits of their distance, in ceil(log2 n) rounds.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks: those of :func:`radix_bruck` with radix 2.
    """
    return radix_bruck(rank, size, radix=2)


@built_in("all_to_all", "n*n", Formula("dk", "nzk/n"), symmetry="shift", source="doi 10.1109/71.642949")
def radix_bruck(rank: int, size: int, radix: int = 4) -> Rounds:
    """Move blocks along the digits of their distance in any base, in radix - 1 rounds for each digit.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks. The distance of a block is destination minus
    source, modulo ``size``. One round moves all blocks whose distance has a certain digit at a certain place, in one message.
    In base 2, a block with distance 5 = 4 + 1 passes one other rank. A larger base has more rounds and fewer bytes.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        radix: the base; 2 or more.
    """
    for k in powers_below(size, radix):
        for step in range(k, min(radix * k, size), k):
            distances = [j for j in range(size) if j % (radix * k) - j % k == step]
            to, source = (rank + step) % size, (rank - step) % size
            yield [
                send(to, _resting(rank, size, k, distances)),
                recv(source, _resting(source, size, k, distances)),
            ]


def _resting(rank: int, size: int, k: int, distances: list[int]) -> list[int]:
    """Return the blocks with the given distances that are on a rank before the rounds of one digit.

    Args:
        rank: the rank.
        size: the number of ranks.
        k: the value of the digit's place, a power of the radix of :func:`radix_bruck`.
        distances: for each block, its destination minus its source, modulo ``size``.
    """
    # The rounds before have moved a block by the lower digits of its distance.
    sources = ((rank - distance % k) % size for distance in distances)
    return [source * size + (source + distance) % size for source, distance in zip(sources, distances)]


@built_in("all_to_all", "n*n", Formula("g-1 + h-1", "(2*n - g - h)/n", only="n % g == 0"))
def two_level_pairwise(rank: int, size: int, group: int = 2) -> Rounds:
    """Exchange in each group, then between groups, with one message for each group.

    In the group, a rank gives local rank i the blocks for the local ranks i of all groups. These then travel on rail i,
    which connects the local ranks i. A rank sends one message to each other group, not one to each of its ranks. If the
    last group is smaller, its ranks serve several rails each, one after the other.

    For example, 4 ranks in groups of 2: rank 0 sends rank 1 its blocks for the ranks 1 and 3. Then it sends rank 2 what
    ranks 0 and 1 have for rank 2.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        group: the number of ranks of a group.
    """
    rails, own_group = Rails(size, group), rank // group
    members, count = rails.members(rank), rails.group_count

    def exchange_inside() -> Rounds:
        for i in range(1, len(members)):
            to, source = (members[(rank - members.start + sign * i) % len(members)] for sign in (1, -1))
            yield [
                send(to, _blocks((rank,), rails.owners_served_by(to), size)),
                recv(source, _blocks((source,), rails.owners_served_by(rank), size)),
            ]

    def exchange_on(rail: int) -> Rounds:
        ranks, owners = rails.ranks_on(rail), rails.owners_on(rail)
        for i in range(1, count):
            to, source = (own_group + i) % count, (own_group - i) % count
            sent = _blocks(members, owners[to], size)
            received = _blocks(rails.members(ranks[source]), owners[own_group], size)
            moves = [send(ranks[to], sent), recv(ranks[source], received)]
            yield [move for move in moves if move.chunks]

    yield from pad_rounds(exchange_inside(), rails.largest - 1)
    yield from rails.take_turns(rank, exchange_on, count - 1)


def _blocks(sources: Chunks, targets: Chunks, size: int) -> list[int]:
    """Return the numbers of the blocks from some ranks to some ranks, in the order of the sources."""
    return [source * size + target for source in sources for target in targets]


@built_in("all_to_all", "n*n", Formula("f", "f/2", only="n == p"), source="arXiv 2508.17311")
def bine(rank: int, size: int) -> Rounds:
    """Forward half of the blocks in each of log2 n rounds, at distances 1, 1, 3, 5, ... (Bine).

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks.
    A rank sends its partner all blocks, of all
    ranks from which it has some, for the ranks that the partner reaches later. If the rank count is no power of two, the
    first ranks form pairs: the even rank sends all its blocks to the odd one, idles, and gets the blocks for it at the end.
    """
    fold, everyone = Fold.of(size), range(size)
    # The survivors whose blocks a survivor has before a step.
    sources: dict[int, tuple[int, ...]] = {new: (new,) for new in range(fold.power)}

    def list_chunks(holder: int, targets: Chunks) -> Chunks:
        owners = negabinary.join_blocks(fold, sources[holder])
        return tuple(source * size + to for source in owners for to in targets)

    def exchange(peer: int, targets_here: Chunks, targets_there: Chunks) -> list[Instruction]:
        return [
            send(peer, list_chunks(fold.new(rank), targets_there)),
            recv(peer, list_chunks(fold.new(peer), targets_here)),
        ]

    received, sent = ([source * size + to for to in everyone] for source in (rank ^ 1, rank))
    yield from fold.pair_round(rank, [recv(rank ^ 1, received)], [send(rank ^ 1, sent)])
    for step, moves in enumerate(negabinary.exchange_rounds(rank, fold, exchange)):
        yield moves
        sources = {
            new: (*ranks, *sources[negabinary.partner(new, step, fold.power)])
            for new, ranks in sources.items()
        }
    sent, received = ([source * size + to for source in everyone] for to in (rank ^ 1, rank))
    yield from fold.pair_round(rank, [send(rank ^ 1, sent)], [recv(rank ^ 1, received)])
