"""The messages of a schedule, round by round, as arrays over all ranks.

Where an algorithm declares that all ranks do the same up to a shift or an exclusive-or, one rank is generated and
stands for all; equal rounds in a row are kept once with a repeat count. So a ring over 65,536 ranks is two arrays
and a number, not billions of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import zip_longest
from math import prod

import numpy as np

from spmdsim.collectives import Instruction, Schedule
from spmdsim.collectives.algorithm import evaluate
from spmdsim.collectives.instructions import CEILING, chunk_sizes
from spmdsim.core.layout import largest_block, split_block
from spmdsim.cost.topology import Floats, Ints, Topology
from spmdsim.errors import InputError

#: Up to this rank count all ranks are generated, so that uneven chunks are counted to the byte.
EXACT_UP_TO = 32

#: Rank-rounds beyond which an algorithm without symmetry is not generated rank by rank.
RANK_ROUND_LIMIT = 20_000_000


@dataclass(frozen=True, eq=False)
class LinkLoad:
    """A number of equal rounds in a row: all messages of one round, and the most that one rank does in it.

    Attributes:
        count: messages in one round, all ranks together.
        ports: most messages that one rank sends in one of them.
        alike: ``("shift" or "xor", peer of rank 0)`` when every rank sends one message of the same size to the rank
            that far away; None otherwise.
        make: builds senders, receivers and sizes; called when they are asked for.
    """

    repeat: int
    reduced: float
    largest: float
    count: int
    ports: int
    alike: tuple[str, int] | None
    ranks: int
    make: Callable[[], tuple[Ints, Ints, Floats]]

    @cached_property
    def _arrays(self) -> tuple[Ints, Ints, Floats]:
        return self.make()

    @property
    def sources(self) -> Ints:
        """The sender of each message."""
        return self._arrays[0]

    @property
    def targets(self) -> Ints:
        """The receiver of each message."""
        return self._arrays[1]

    @property
    def nbytes(self) -> Floats:
        """The size of each message in bytes."""
        return self._arrays[2]


def symmetry_of(schedule: Schedule) -> str:
    """Return the symmetry by which all ranks follow from rank 0: ``shift``, ``xor`` or an empty text.

    >>> from spmdsim.collectives import schedule_of
    >>> [symmetry_of(schedule_of("all_reduce", "recursive_doubling", n)) for n in (6, 8)]
    ['', 'xor']
    """
    for clause in schedule.algorithm.symmetry.split(";"):
        condition, _, kind = clause.strip().rpartition(":")
        if kind.strip() and (not condition or evaluate(condition, schedule.size, dict(schedule.options))):
            return kind.strip()
    return ""


def link_loads(schedule: Schedule, nbytes: int, itemsize: int = 1) -> Iterator[LinkLoad]:
    """Yield the rounds of a schedule in order.

    With a symmetry and more than 32 ranks, the rounds follow from rank 0 and equal rounds in a row are one entry. Otherwise
    all ranks are generated and each round is an entry.

    Raises:
        InputError: when an algorithm without symmetry would have to be generated for too many ranks.
    """
    kind = symmetry_of(schedule)
    if kind and schedule.size > EXACT_UP_TO:
        yield from _from_one_rank(schedule, nbytes, itemsize, kind)
    else:
        yield from _from_all_ranks(schedule, nbytes, itemsize)


# ------------------------------------------------------------------------------ one rank stands for all


class OwnChunks:
    """The chunks of rank 0 in a round. Another rank has the same number of chunks in other blocks."""

    def __init__(self, schedule: Schedule, numbers: Sequence[int]) -> None:
        self.numbers, self._n = numbers, schedule.size
        self.cuts = max(1, prod(_levels(schedule)) // self._n)

    @cached_property
    def _places(self) -> tuple[Ints, Ints]:
        """Return the block of each chunk and its position in the block."""
        blocks, inner = np.divmod(np.asarray(self.numbers, np.int64) % (self._n * self.cuts), self.cuts)
        return blocks, inner

    @cached_property
    def _around(self) -> Floats:
        return self._sums(None)

    def _sums(self, weights: Floats | None) -> Floats:
        by_block = np.bincount(self._places[0], weights, minlength=self._n)
        return np.concatenate(([0.0], np.cumsum(np.concatenate((by_block, by_block)))))

    def most_below(self, limit: int) -> int:
        """Return the largest number of blocks below a limit on any rank, where rank r has block b at ``b ^ r``.

        Of a half that is swapped or not, all blocks count where the limit is beyond it; the rest is the same question of
        half as many blocks.
        """
        limits = [limit]
        while 2 ** len(limits) <= self._n:
            half = self._n >> len(limits)
            limits.append(limits[-1] - half * (limits[-1] > half))
        counts = np.bincount(self._places[0], minlength=self._n)
        most = counts * (limits.pop() > 0)
        while limits:
            size = self._n >> (len(limits) - 1)
            (low, high), (below, above) = (one.reshape(-1, 2).T for one in (counts, most))
            full = limits.pop() > size // 2
            most = np.maximum(low + above, high + below) if full else np.maximum(below, above)
            counts = low + high
        return int(most[0])

    def most(self, short: Sequence[int], long: Sequence[int], longer: int) -> float:
        """Return the largest sum of the chunks on any rank, if the first blocks have longer chunks than the others."""
        if len(self.numbers) == 1:
            return (long if longer else short)[self.numbers[0] % self.cuts]
        if self.cuts == 1:
            around, least = self._around, short[0] * len(self.numbers)
        else:
            inner = self._places[1]
            around = self._sums(np.subtract(long, short)[inner])
            least = int(np.array(short)[inner].sum())
        return least + float((around[longer : longer + self._n] - around[: self._n]).max())


@dataclass(frozen=True)
class RepeatedRound:
    """A number of equal rounds of rank 0 in a row: their peers, and the sends and reduced chunks of the first one."""

    repeat: int
    sends: tuple[tuple[int, OwnChunks], ...]
    reduced: OwnChunks


@lru_cache(maxsize=32)
def compressed_rounds(schedule: Schedule) -> tuple[RepeatedRound, ...]:
    """Return the rounds of rank 0; equal rounds in a row are one entry."""
    # Chunks of a block are cut alike in all blocks: which one of its block a chunk is matters, not in which it is.
    inner = max(1, schedule.chunk_count // schedule.size)
    firsts: list[list[Instruction]] = []
    repeats: list[int] = []
    last: object = None
    for moves in schedule.rounds(0):
        # Comparing this short key is what keeps a hundred thousand rounds under two tenths of a second.
        key = [(what, peer, len(chunks), chunks and chunks[0] % inner) for what, peer, chunks, *_ in moves]
        if key == last:
            repeats[-1] += 1
            continue
        last = key
        firsts.append(moves)
        repeats.append(1)
    return tuple(_repeated(schedule, repeat, moves) for repeat, moves in zip(repeats, firsts))


def _repeated(schedule: Schedule, repeat: int, moves: list[Instruction]) -> RepeatedRound:
    sends = tuple((move.peer, OwnChunks(schedule, move.chunks)) for move in moves if move.kind == "send")
    reduced = [chunk for move in moves if move.kind in ("reduce", "combine") for chunk in move.chunks]
    return RepeatedRound(repeat, sends, OwnChunks(schedule, reduced))


def _levels(schedule: Schedule) -> tuple[int, ...]:
    """Return the number of pieces of each level of the nested cut; for all_to_all by destination."""
    by_pairs = "row" in (schedule.collective.before, schedule.collective.after)
    return (schedule.size,) if by_pairs else schedule.levels


def _from_one_rank(schedule: Schedule, nbytes: int, itemsize: int, kind: str) -> Iterator[LinkLoad]:
    """Derive the rounds of all ranks from those of rank 0."""
    n = schedule.size
    for one in compressed_rounds(schedule):
        sizes = [most_bytes(schedule, nbytes, itemsize, kind, chunks) for _, chunks in one.sends]
        peers = [peer for peer, _ in one.sends]
        yield LinkLoad(
            one.repeat,
            most_bytes(schedule, nbytes, itemsize, kind, one.reduced),
            sum(sizes),
            n * len(peers),
            len(peers),
            (kind, peers[0]) if len(peers) == 1 else None,
            n,
            partial(_everyone, n, kind, peers, sizes),
        )


def _everyone(n: int, kind: str, peers: list[int], sizes: list[float]) -> tuple[Ints, Ints, Floats]:
    """Return senders, receivers and sizes in bytes of all ranks' messages, derived from those of rank 0."""
    ranks = np.arange(n, dtype=np.int64)
    targets = [ranks ^ peer if kind == "xor" else _shifted(ranks, peer) for peer in peers]
    if len(peers) == 1:
        return ranks, targets[0], np.broadcast_to(np.float64(sizes[0]), n)
    return np.tile(ranks, len(peers)), np.concatenate([ranks[:0], *targets]), np.repeat(sizes, n)


def _shifted(ranks: Ints, peer: int) -> Ints:
    """Return ``(ranks + peer) % n`` without a division."""
    return np.concatenate([ranks[peer:], ranks[:peer]])


def most_bytes(schedule: Schedule, nbytes: int, itemsize: int, kind: str, chunks: OwnChunks) -> float:
    """Return the bytes of rank 0's chunks on the rank where they are largest.

    By a shift, rank r has them r blocks later. The first blocks have an element more than the others, so the sum follows
    from how many of the chunks lie in a window of as many blocks. By an exclusive-or it follows from how many of them some
    rank has among the first blocks. For blocks of other sizes it is the sum of as many of the largest chunks: exact for
    neighbours, else too much.
    """
    count, n, levels = -(-nbytes // itemsize), schedule.size, _levels(schedule)
    if schedule.rounding == CEILING:
        return float(min(count, len(chunks.numbers) * largest_block(count, prod(levels))) * itemsize)
    if kind == "xor" and levels == (n,) and chunks.cuts == 1:
        base, longer = divmod(count, n)
        return float((base * len(chunks.numbers) + chunks.most_below(longer)) * itemsize)
    if kind != "shift" or levels[0] != n:
        return float(split_block(0, count, prod(levels), len(chunks.numbers))[0] * itemsize)
    base, longer = divmod(count, n)
    short, long = (chunk_sizes(size, levels[1:]) for size in (base, base + 1))
    return float(chunks.most(short, long, longer) * itemsize)


# ------------------------------------------------------------------------------ every rank for itself


def _from_all_ranks(schedule: Schedule, nbytes: int, itemsize: int) -> Iterator[LinkLoad]:
    """Collect the rounds of all ranks one by one."""
    n = schedule.size
    sizes = [items * itemsize for items in schedule.chunk_elements(-(-nbytes // itemsize))]
    done = 0
    nothing: list[Instruction] = []
    for moves_of in zip_longest(*(schedule.rounds(rank) for rank in range(n)), fillvalue=nothing):
        done += n
        if done > RANK_ROUND_LIMIT:
            raise InputError(
                f"{schedule.name} has no symmetry and too many messages to look at each; "
                "price it without a topology, or on fewer ranks"
            )
        yield _one_round(moves_of, sizes)


def _one_round(moves_of: tuple[list[Instruction], ...], sizes: list[int]) -> LinkLoad:
    """Return the messages of one round of all ranks."""
    k = len(sizes)
    sources: list[int] = []
    targets: list[int] = []
    amounts: list[int] = []
    reduced = 0
    for rank, moves in enumerate(moves_of):
        mine = 0
        for move in moves:
            if move.kind == "send":
                sources.append(rank)
                targets.append(move.peer)
                amounts.append(sum(sizes[chunk % k] for chunk in move.chunks))
            elif move.kind in ("reduce", "combine"):
                mine += sum(sizes[chunk % k] for chunk in move.chunks)
        reduced = max(reduced, mine)
    arrays = (
        np.array(sources, dtype=np.int64),
        np.array(targets, dtype=np.int64),
        np.array(amounts, dtype=np.float64),
    )
    loads = [np.bincount(ends, arrays[2]).max(initial=0.0) for ends in arrays[:2]]
    ports = int(np.bincount(arrays[0]).max(initial=0))
    size = len(moves_of)
    return LinkLoad(1, float(reduced), float(max(loads)), len(sources), ports, None, size, lambda: arrays)


@dataclass(frozen=True)
class Hotspot:
    """The busiest link of equal rounds in a row: its bytes in one round, and the share of links in use."""

    first: int
    repeat: int
    link: str
    nbytes: float
    messages: int
    seconds: float
    used: float


def hotspots(schedule: Schedule, topology: Topology, nbytes: int, itemsize: int = 1) -> tuple[Hotspot, ...]:
    """Return the busiest link of each entry of :func:`link_loads`; entries without messages are left out.

    >>> from spmdsim.collectives import schedule_of
    >>> from spmdsim.cost.topologies import Torus
    >>> links = hotspots(schedule_of("all_reduce", "recursive_doubling", 8), Torus((8,), 1e9), 1000)
    >>> [(one.link, one.messages) for one in links]
    [('0 + dim 0', 1), ('1 + dim 0', 2), ('0 + dim 0', 4)]
    """
    spots = []
    number = 0
    for one in link_loads(schedule, nbytes, itemsize):
        if one.count:
            loads = topology.loads(one.sources, one.targets, one.nbytes)
            counts = topology.loads(one.sources, one.targets, np.ones(len(one.sources)))
            # Empty messages load nothing; where all are empty the most crossed link is named.
            busiest = int((loads / topology.capacity if loads.any() else counts).argmax())
            spots.append(
                Hotspot(
                    number,
                    one.repeat,
                    topology.link_name(busiest),
                    float(loads[busiest]),
                    round(float(counts[busiest])),
                    float(loads[busiest] / topology.capacity[busiest]),
                    float((counts > 0).mean()),
                )
            )
        number += one.repeat
    return tuple(spots)
