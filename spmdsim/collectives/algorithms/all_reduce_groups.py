"""all_reduce in two levels: inside groups of neighbouring ranks (a node), and between the groups."""

from __future__ import annotations

from spmdsim.collectives.algorithm import Formula, declare
from spmdsim.collectives.algorithms import broadcast, reduce
from spmdsim.collectives.algorithms.all_reduce import recursive_doubling
from spmdsim.collectives.instructions import Instruction, Rounds, recv, recv_reduce, send


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
    formula=Formula(
        "2*(g-1) + 2*(h-1)",
        "2*(g-1)/g + 2*(h-1)/(h*g)",
        "(g-1)/g + (h-1)/(h*g)",
        "g-1 + h-1",
        only="n % g == 0",
    ),
    libraries=(("astra-sim", "hierarchical"),),
    in_order=False,
)
def two_level_ring(rank: int, size: int, group: int = 2) -> Rounds:
    """Also called rail rings; local rank i of each group works on shard i.

    If the last group is smaller, its ranks work on several shards each, and serve the rings of these shards one
    after the other.
    """
    groups, mine = -(-size // group), rank // group
    local, base = rank % group, rank - rank % group
    members, fewest = min(group, size - base), size - (groups - 1) * group

    def shards(i: int) -> range:
        """The shards that a local rank works on."""
        return range(i % members * group // members, (i % members + 1) * group // members)

    def chunks(i: int) -> range:
        return range(shards(i).start * groups, shards(i).stop * groups)

    right, left = base + (local + 1) % members, base + (local - 1) % members
    inside: list[list[Instruction]] = [
        [send(right, chunks(local - 1 - i)), recv_reduce(left, chunks(local - 2 - i), left=True)]
        for i in range(members - 1)
    ]
    yield from _padded(iter(inside), group - 1)
    owners = [range(i * group // fewest, (i + 1) * group // fewest) for i in range(fewest)]
    for turn in range(max(len(owned) for owned in owners)):
        served = [(last, owned[turn]) for last, owned in enumerate(owners) if turn < len(owned)]
        for last, shard in served:
            if shard in shards(local):
                ring = [*(g * group + shard for g in range(groups - 1)), (groups - 1) * group + last]
                yield from _ring(ring, mine, shard * groups)
                break
        else:
            yield from ([] for _ in range(2 * (groups - 1)))
    outside: list[list[Instruction]] = [
        [send(right, chunks(local - i)), recv(left, chunks(local - 1 - i))] for i in range(members - 1)
    ]
    yield from outside


def _ring(ranks: list[int], mine: int, first: int) -> Rounds:
    """Ring all_reduce among the given ranks, of which this is number ``mine``, on the chunks from ``first`` on."""
    size = len(ranks)
    right, left = ranks[(mine + 1) % size], ranks[(mine - 1) % size]
    for i in range(size - 1):
        sent, got = (mine - 1 - i) % size, (mine - 2 - i) % size
        yield [send(right, first + sent), recv_reduce(left, first + got, left=True)]
    for i in range(size - 1):
        sent, got = (mine - i) % size, (mine - 1 - i) % size
        yield [send(right, first + sent), recv(left, first + got)]
