"""Messages of a schedule, round by round, as arrays over all ranks.

If an algorithm declares that all ranks are equal up to a shift or an exclusive-or, only one rank is generated and
represents all; equal rounds in a row are stored once with a repeat count. So a ring over 65,536 ranks takes two arrays
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
from spmdsim.collectives.algorithm import evaluate_expression
from spmdsim.collectives.instructions import CEILING, chunk_sizes
from spmdsim.core.layout import largest_block, split_block
from spmdsim.cost.topology import Floats, Ints, Topology
from spmdsim.errors import InputError

#: Largest rank count for which all ranks are generated, so that uneven chunks are counted to the byte.
EXACT_UP_TO = 32

#: Most rounds times ranks that are generated for an algorithm without symmetry.
RANK_ROUND_LIMIT = 20_000_000


@dataclass(frozen=True, eq=False)
class LinkLoad:
    """Messages of equal rounds in a row.

    Attributes:
        repeat: number of rounds.
        reduced: most bytes that one rank reduces in a round.
        largest: most bytes that one rank sends or receives in a round.
        count: messages in one round, all ranks together.
        ports: most messages that one rank sends in a round.
        uniform_shift: ``("shift" or "xor", peer of rank 0)`` if every rank sends one message of one size to the rank
            at that distance; else None.
        ranks: number of ranks.
        make: builds the arrays of senders, receivers and sizes, when they are first needed.
    """

    repeat: int
    reduced: float
    largest: float
    count: int
    ports: int
    uniform_shift: tuple[str, int] | None
    ranks: int
    make: Callable[[], tuple[Ints, Ints, Floats]]

    @cached_property
    def _arrays(self) -> tuple[Ints, Ints, Floats]:
        """Senders, receivers and sizes in bytes of all messages of one round."""
        return self.make()

    @property
    def sources(self) -> Ints:
        """Sender of each message."""
        return self._arrays[0]

    @property
    def targets(self) -> Ints:
        """Receiver of each message."""
        return self._arrays[1]

    @property
    def nbytes(self) -> Floats:
        """Size of each message in bytes."""
        return self._arrays[2]


def symmetry_of(schedule: Schedule) -> str:
    """Return the symmetry by which the messages of all ranks follow from those of rank 0.

    * ``shift``: if rank 0 sends to rank p, rank r sends to rank r + p, modulo the number of ranks.
    * ``xor``: rank r sends to rank r ^ p (exclusive or).
    * "": there is none.

    The schedule's algorithm declares it, possibly with conditions on the rank count and the options; the first
    one that holds counts.

    >>> from spmdsim.collectives import schedule_of
    >>> [symmetry_of(schedule_of("all_reduce", "recursive_doubling", n)) for n in (6, 8)]
    ['', 'xor']
    """
    for clause in schedule.algorithm.symmetry.split(";"):
        condition, _, kind = clause.strip().rpartition(":")
        if kind.strip() and (
            not condition or evaluate_expression(condition, schedule.size, dict(schedule.options))
        ):
            return kind.strip()
    return ""


def link_loads(
    schedule: Schedule, nbytes: int, itemsize: int = 1, sizes: Sequence[int] | None = None
) -> Iterator[LinkLoad]:
    """Yield the messages of all ranks in a schedule, round by round.

    Without a symmetry, and up to 32 ranks (:data:`EXACT_UP_TO`), all ranks are generated, and each round is an
    entry. Otherwise the messages follow from those of rank 0: equal rounds in a row are one entry, and each
    message has the size that it has on the rank where it is largest.

    Args:
        schedule: the schedule.
        nbytes: message size as the collective counts it, rounded up to whole elements.
        itemsize: bytes per element; chunks are cut between elements.
        sizes: the bytes of each chunk; all ranks are then generated. None: chunks are cut evenly.

    Raises:
        InputError: If all ranks are generated and there are more than :data:`RANK_ROUND_LIMIT` rounds times
            ranks.
    """
    kind = symmetry_of(schedule)
    if sizes is not None:
        yield from _generate_all_ranks(schedule, list(sizes))
    elif kind and schedule.size > EXACT_UP_TO:
        yield from _derive_from_rank_0(schedule, nbytes, itemsize, kind)
    else:
        elements = schedule.chunk_elements(-(-nbytes // itemsize))
        yield from _generate_all_ranks(schedule, [items * itemsize for items in elements])


# ------------------------------------------------------------------------------ one rank represents all


class OwnChunks:
    """Chunks of rank 0 in a round. Another rank has equally many chunks in other blocks.

    ``cuts`` is the number of chunks per block.
    """

    def __init__(self, schedule: Schedule, numbers: Sequence[int]) -> None:
        self.numbers, self._n = numbers, schedule.size
        self.cuts = max(1, prod(_levels(schedule)) // self._n)

    @cached_property
    def _places(self) -> tuple[Ints, Ints]:
        """Block of each chunk, and its position in the block."""
        blocks, inner = np.divmod(np.asarray(self.numbers, np.int64) % (self._n * self.cuts), self.cuts)
        return blocks, inner

    @cached_property
    def _around(self) -> Floats:
        """Running sums of the number of chunks per block, twice around all blocks."""
        return self._sums(None)

    def _sums(self, weights: Floats | None) -> Floats:
        """Return running sums of the chunks' weights (None: 1) per block, twice around all blocks."""
        by_block = np.bincount(self._places[0], weights, minlength=self._n)
        return np.concatenate(([0.0], np.cumsum(np.concatenate((by_block, by_block)))))

    def most_below(self, limit: int) -> int:
        """Return the largest number of chunks that a rank has in blocks below ``limit``.

        This is for the symmetry ``xor``: a chunk in block b of rank 0 is in block ``b ^ r`` of rank r. For
        example, rank 0 of 4 ranks has chunks in the blocks 0 and 1, so rank 2 has them in the blocks 2 and 3.
        Below limit 2, rank 0 has both and rank 2 none; the result is 2.

        The number of ranks must be a power of two. Blocks are halved repeatedly: a rank either swaps both
        halves or not. If the limit is in the upper half, all chunks of the lower half count, and the upper half
        is the problem again with half as many blocks. Otherwise only the lower half matters.
        """
        limits = [limit]
        while 2 ** len(limits) <= self._n:
            half = self._n >> len(limits)
            limits.append(limits[-1] - half * (limits[-1] > half))
        counts = np.bincount(self._places[0], minlength=self._n)
        most = counts * (limits.pop() > 0)
        while limits:
            size = self._n >> (len(limits) - 1)
            (low, high), (below, above) = (numbers.reshape(-1, 2).T for numbers in (counts, most))
            full = limits.pop() > size // 2
            most = np.maximum(low + above, high + below) if full else np.maximum(below, above)
            counts = low + high
        return int(most[0])

    def most(self, short: Sequence[int], long: Sequence[int], longer: int) -> float:
        """Return the most elements that a rank has in these chunks, for the symmetry ``shift``.

        Rank r has rank 0's chunks r blocks later. The first ``longer`` blocks are long, the others are short. So
        a rank's excess over short blocks is that of rank 0's chunks in some window of ``longer`` consecutive
        blocks.

        Args:
            short: sizes of the chunks of a short block, in their order.
            long: sizes of the chunks of a long block, which has one element more than a short one.
            longer: number of long blocks, less than the number of ranks.
        """
        if len(self.numbers) == 1:
            return (long if longer else short)[self.numbers[0] % self.cuts]
        if self.cuts == 1:  # A long block is one chunk, which has one element more than a short one.
            running_excess, all_short = self._around, short[0] * len(self.numbers)
        else:
            inner = self._places[1]
            running_excess = self._sums(np.subtract(long, short)[inner])
            all_short = int(np.array(short)[inner].sum())
        window_excess = running_excess[longer : longer + self._n] - running_excess[: self._n]
        return all_short + float(window_excess.max())


@dataclass(frozen=True)
class RepeatedRound:
    """Equal rounds of rank 0 in a row.

    Attributes:
        repeat: number of rounds.
        sends: peer and chunks of each send of the first round.
        totals: the chunks of all sends, and those of all receives, of the first round.
        reduced: the chunks that the first round reduces.
    """

    repeat: int
    sends: tuple[tuple[int, OwnChunks], ...]
    totals: tuple[OwnChunks, OwnChunks]
    reduced: OwnChunks


@lru_cache(maxsize=32)
def compressed_rounds(schedule: Schedule) -> tuple[RepeatedRound, ...]:
    """Return the rounds of rank 0, with one entry for equal rounds in a row.

    Rounds are equal if their instructions have equal kinds, equal peers and equally many chunks, and their
    chunks have equal positions in their blocks. For example, a ring all_reduce of 8 ranks has two
    entries, each for 7 rounds: those that reduce, and those that gather.

    Args:
        schedule: a schedule with a symmetry, so that rank 0 represents all ranks.
    """
    # All blocks have chunks of equal sizes, so only the position of a chunk in its block matters.
    inner = max(1, schedule.chunk_count // schedule.size)
    firsts: list[list[Instruction]] = []
    repeats: list[int] = []
    last: object = None
    for moves in schedule.rounds(0):
        # Compare a short key, because there may be a hundred thousand rounds.
        key = [
            (what, peer, len(chunks), inner > 1 and [chunk % inner for chunk in chunks])
            for what, peer, chunks, *_ in moves
        ]
        if key == last:
            repeats[-1] += 1
            continue
        last = key
        firsts.append(moves)
        repeats.append(1)
    return tuple(_repeated(schedule, repeat, moves) for repeat, moves in zip(repeats, firsts))


def _repeated(schedule: Schedule, repeat: int, moves: list[Instruction]) -> RepeatedRound:
    """Return the entry for ``repeat`` equal rounds of rank 0 in a row.

    ``moves`` are the instructions of the first of these rounds of ``schedule``.
    """
    sends = tuple((move.peer, OwnChunks(schedule, move.chunks)) for move in moves if move.kind == "send")
    reduced = [chunk for move in moves if move.kind in ("reduce", "combine") for chunk in move.chunks]
    sent = [chunk for move in moves if move.kind == "send" for chunk in move.chunks]
    received = [chunk for move in moves if move.receives for chunk in move.chunks]
    totals = OwnChunks(schedule, sent), OwnChunks(schedule, received)
    return RepeatedRound(repeat, sends, totals, OwnChunks(schedule, reduced))


def _levels(schedule: Schedule) -> tuple[int, ...]:
    """Return the number of parts into which each level of the nested division cuts.

    A message of all_to_all has one level only: it is divided by destination.
    """
    by_pairs = "row" in (schedule.collective.before, schedule.collective.after)
    return (schedule.size,) if by_pairs else schedule.levels


def _derive_from_rank_0(schedule: Schedule, nbytes: int, itemsize: int, kind: str) -> Iterator[LinkLoad]:
    """Yield the rounds of a symmetric schedule, each with the messages of all ranks.

    Only the rounds of rank 0 are generated. By the symmetry, if rank 0 sends to rank p, rank r sends an equal number of
    chunks to ``(p + r) % n`` (shift) or ``p ^ r`` (xor). Chunks can differ in size, so all these messages count as
    large as the largest of them (:func:`most_bytes`). Equal rounds in a row are one :class:`LinkLoad` with a number of
    repeats.

    Args:
        schedule: the schedule.
        nbytes: message size as the collective counts it.
        itemsize: bytes per element.
        kind: ``shift`` or ``xor``.
    """
    n = schedule.size
    for entry in compressed_rounds(schedule):
        sizes = [most_bytes(schedule, nbytes, itemsize, kind, chunks) for _, chunks in entry.sends]
        peers = [peer for peer, _ in entry.sends]
        # Several messages need not be largest on the same rank.
        rank_bytes = max(most_bytes(schedule, nbytes, itemsize, kind, chunks) for chunks in entry.totals)
        yield LinkLoad(
            repeat=entry.repeat,
            reduced=most_bytes(schedule, nbytes, itemsize, kind, entry.reduced),
            largest=sum(sizes) if len(peers) < 2 else rank_bytes,
            count=n * len(peers),
            ports=len(peers),
            uniform_shift=(kind, peers[0]) if len(peers) == 1 else None,
            ranks=n,
            make=partial(_messages_of_all_ranks, n, kind, peers, sizes),
        )


def _messages_of_all_ranks(
    n: int, kind: str, peers: list[int], sizes: list[float]
) -> tuple[Ints, Ints, Floats]:
    """Return ``(senders, receivers, sizes)`` of all ranks' messages in a round, as arrays.

    For each message of rank 0 there is one message of every rank, of equal size. First come all messages that
    follow from rank 0's first one, ordered by sender. The arrays may be read-only.

    Args:
        n: the number of ranks.
        kind: the symmetry. ``shift`` adds a peer to the sender modulo ``n``; ``xor`` takes the exclusive or of
            both.
        peers: the ranks to which rank 0 sends; may be empty.
        sizes: the bytes of each message of rank 0.
    """
    ranks = np.arange(n, dtype=np.int64)
    targets = [ranks ^ peer if kind == "xor" else _shifted(ranks, peer) for peer in peers]
    if len(peers) == 1:  # The most frequent case, without copies.
        return ranks, targets[0], np.broadcast_to(np.float64(sizes[0]), n)
    # The empty array is for a round without peers: `concatenate` needs one array at least.
    return np.tile(ranks, len(peers)), np.concatenate([ranks[:0], *targets]), np.repeat(sizes, n)


def _shifted(ranks: Ints, peer: int) -> Ints:
    """Return ``(ranks + peer) % n`` without a division."""
    return np.concatenate([ranks[peer:], ranks[:peer]])


def most_bytes(schedule: Schedule, nbytes: int, itemsize: int, kind: str, chunks: OwnChunks) -> float:
    """Return the bytes of rank 0's chunks on the rank on which they are largest.

    The bytes depend on the rank, because the first blocks of a message may have one element more than the
    others. For example, 10 elements are 4 blocks of 3, 3, 2 and 2. A message of the last block has 2 elements
    on rank 0, but 3 on the rank for which it is the first block. The first case that holds counts:

    * The schedule rounds chunks up (``CEILING``): each chunk has the largest size, but all together have at most the
      message.
    * ``xor``, with one block per rank and one chunk per block: exact, from the largest number of chunks that a rank has
      among the longer blocks.
    * ``shift``, with one block per rank: exact. Rank r has the chunks r blocks later (:meth:`OwnChunks.most`).
    * Otherwise: the bytes of equally many of the first chunks, which are the largest. This is exact for neighbouring
      chunks and an upper bound for others.

    Args:
        schedule: the schedule.
        nbytes: message size as the collective counts it, rounded up to whole elements.
        itemsize: bytes per element.
        kind: the symmetry, ``shift`` or ``xor``.
        chunks: the chunks of rank 0 in a message, or in a reduction.
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


# ------------------------------------------------------------------------------ all ranks one by one


def _generate_all_ranks(schedule: Schedule, sizes: list[int]) -> Iterator[LinkLoad]:
    """Yield the rounds of all ranks, generated one by one.

    A rank without further rounds does nothing.

    Args:
        schedule: the schedule.
        sizes: the bytes of each chunk.

    Raises:
        InputError: If there are more than :data:`RANK_ROUND_LIMIT` rounds times ranks.
    """
    n = schedule.size
    rank_rounds = 0
    nothing: list[Instruction] = []
    for moves_of in zip_longest(*(schedule.rounds(rank) for rank in range(n)), fillvalue=nothing):
        rank_rounds += n
        if rank_rounds > RANK_ROUND_LIMIT:
            raise InputError(
                f"{schedule.name} has no symmetry and too many messages to look at each; "
                "price it without a topology, or on fewer ranks"
            )
        yield _sum_round(moves_of, sizes)


def _sum_round(moves_of: tuple[list[Instruction], ...], sizes: list[int]) -> LinkLoad:
    """Return the load of one round: its messages, and the most bytes that a rank moves and reduces.

    A message is an instruction "send" of a rank; local copies do not count. A rank's reduced bytes are those of
    its instructions "reduce" (of received chunks) and "combine" (of its own chunks).

    Args:
        moves_of: the instructions of each rank.
        sizes: the bytes of each chunk. The numbers of scratch chunks count modulo the number of chunks.
    """
    chunk_count = len(sizes)
    sources: list[int] = []
    targets: list[int] = []
    amounts: list[int] = []
    reduced = 0
    for rank, moves in enumerate(moves_of):
        own_reduced = 0
        for move in moves:
            if move.kind == "send":
                sources.append(rank)
                targets.append(move.peer)
                amounts.append(sum(sizes[chunk % chunk_count] for chunk in move.chunks))
            elif move.kind in ("reduce", "combine"):
                own_reduced += sum(sizes[chunk % chunk_count] for chunk in move.chunks)
        reduced = max(reduced, own_reduced)
    senders, receivers = np.array(sources, dtype=np.int64), np.array(targets, dtype=np.int64)
    nbytes = np.array(amounts, dtype=np.float64)
    most_bytes_of_rank = max(np.bincount(ranks, nbytes).max(initial=0.0) for ranks in (senders, receivers))
    ports = int(np.bincount(senders).max(initial=0))
    return LinkLoad(
        1,
        float(reduced),
        float(most_bytes_of_rank),
        len(sources),
        ports,
        None,
        len(moves_of),
        lambda: (senders, receivers, nbytes),
    )


@dataclass(frozen=True)
class Hotspot:
    """Busiest link of equal rounds in a row.

    Attributes:
        first: number of the first round.
        repeat: number of rounds.
        link: name of the link.
        nbytes: bytes on the link in one round.
        messages: messages on the link in one round.
        seconds: seconds for which the bytes occupy the link.
        used: share of all links that have messages.
    """

    first: int
    repeat: int
    link: str
    nbytes: float
    messages: int
    seconds: float
    used: float


def hotspots(schedule: Schedule, topology: Topology, nbytes: int, itemsize: int = 1) -> tuple[Hotspot, ...]:
    """Return the busiest link of each entry of :func:`link_loads`.

    It is the link that its bytes occupy for the longest time, which is bytes divided by capacity. If all messages are
    empty, it is the link with the most messages. Entries without messages are left out.

    Args:
        schedule: the schedule.
        topology: the network, with as many ranks as the schedule.
        nbytes: message size as the collective counts it.
        itemsize: bytes per element.

    >>> from spmdsim.collectives import schedule_of
    >>> from spmdsim.cost.topologies import Torus
    >>> links = hotspots(schedule_of("all_reduce", "recursive_doubling", 8), Torus((8,), 1e9), 1000)
    >>> [(spot.link, spot.messages) for spot in links]
    [('0 + dim 0', 1), ('1 + dim 0', 2), ('0 + dim 0', 4)]
    """
    spots = []
    number = 0
    for entry in link_loads(schedule, nbytes, itemsize):
        if entry.count:
            loads = topology.loads(entry.sources, entry.targets, entry.nbytes)
            counts = topology.loads(entry.sources, entry.targets, np.ones(len(entry.sources)))
            # Empty messages have no bytes; if all are empty, choose the link with the most messages.
            busiest = int((loads / topology.capacity if loads.any() else counts).argmax())
            spots.append(
                Hotspot(
                    number,
                    entry.repeat,
                    topology.link_name(busiest),
                    float(loads[busiest]),
                    round(float(counts[busiest])),
                    float(loads[busiest] / topology.capacity[busiest]),
                    float((counts > 0).mean()),
                )
            )
        number += entry.repeat
    return tuple(spots)
