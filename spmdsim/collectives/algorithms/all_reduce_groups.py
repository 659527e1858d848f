"""all_reduce in two levels: inside groups of neighbouring ranks (a node), and between the groups."""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, declare
from spmdsim.collectives.algorithms import broadcast, reduce
from spmdsim.collectives.algorithms.all_reduce import recursive_doubling
from spmdsim.collectives.moves import Move, Rounds, recv, recv_reduce, send


def _renamed(rounds: Rounds, first: int, stride: int) -> Rounds:
    """The rounds of a group's algorithm with its local ranks replaced by real ones."""
    for moves in rounds:
        yield [move._replace(peer=first + stride * move.peer) for move in moves]


def _padded(rounds: Rounds, length: int) -> Rounds:
    """Idle rounds appended, so that groups of different sizes stay in step."""
    done = 0
    for moves in rounds:
        done += 1
        yield moves
    yield from ([] for _ in range(length - done))


def _recursive_doubling_length(size: int) -> int:
    return size.bit_length() - 1 + 2 * (size & (size - 1) != 0)


@declare(
    "all_reduce",
    "hierarchical_leader",
    chunks="1",
    about="binomial reduce in each group, recursive doubling among the leaders, binomial broadcast in each group",
    formula=Formula("2*cg + fh + 2*xh", "2*cg + fh + 2*xh", "cg + fh + xh", only="n % g == 0"),
    libraries=(("mpich", "smp"),),
    in_order=True,
)
def hierarchical_leader(rank: int, size: int, group: int = 2) -> Rounds:
    """``group`` consecutive ranks share a leader, their first; the last group may be smaller."""
    leaders, inside = -(-size // group), (min(group, size) - 1).bit_length()
    first = rank - rank % group
    members = min(group, size - first)
    up, down = reduce.binomial(rank - first, members), broadcast.binomial(rank - first, members)
    between: Rounds = iter(())
    if rank == first:
        between = _renamed(recursive_doubling(rank // group, leaders), 0, group)
    yield from _padded(_renamed(up, first, 1), inside)
    yield from _padded(between, _recursive_doubling_length(leaders))
    yield from _padded(_renamed(down, first, 1), inside)


@declare(
    "all_reduce",
    "two_level_ring",
    chunks=("g", "h"),
    about="ring reduce_scatter in the group, ring all_reduce between groups on each shard, ring all_gather in the group",
    formula=Formula("2*(g-1) + 2*(h-1)", "2*(g-1)/g + 2*(h-1)/(h*g)", "(g-1)/g + (h-1)/(h*g)", "g-1 + h-1"),
    condition="n % g == 0",
    condition_words="a rank count divisible by the group size",
    libraries=(("astra-sim", "hierarchical"),),
    in_order=False,
)
def two_level_ring(rank: int, size: int, group: int = 2) -> Rounds:
    """Also called rail rings; local rank i of each group works on shard i."""
    groups, base, local, mine = size // group, rank - rank % group, rank % group, rank // group
    right, left = base + (local + 1) % group, base + (local - 1) % group

    def shard(i: int) -> range:
        return range(i % group * groups, (i % group + 1) * groups)

    for i in range(group - 1):
        yield [send(right, shard(local - 1 - i)), recv_reduce(left, shard(local - 2 - i), left=True)]
    yield from _between(rank, size, group, mine, local * groups)
    for i in range(group - 1):
        yield [send(right, shard(local - i)), recv(left, shard(local - 1 - i))]


def _between(rank: int, size: int, group: int, mine: int, first: int) -> Rounds:
    """Ring all_reduce among the ranks with the same local number, on the chunks from ``first`` on."""
    groups = size // group
    right, left = (rank + group) % size, (rank - group) % size
    for i in range(groups - 1):
        sent, got = (mine - 1 - i) % groups, (mine - 2 - i) % groups
        moves: list[Move] = [send(right, first + sent), recv_reduce(left, first + got, left=True)]
        yield moves
    for i in range(groups - 1):
        sent, got = (mine - i) % groups, (mine - 1 - i) % groups
        yield [send(right, first + sent), recv(left, first + got)]
