"""broadcast, reduce, all_reduce and all_gather of segments over a circulant graph, in the least number of rounds.

With s segments and n ranks, a broadcast takes ``s - 1 + ceil(log2 n)`` rounds. In round i, a rank receives from the rank
at the distance ``skips[i % q]`` before it, and sends to the rank at this distance after it; q is ceil(log2 n).

Source: Träff, "Optimal broadcast schedules in logarithmic time" (arXiv 2407.18004; also 2312.11236).
"""

from __future__ import annotations

from functools import lru_cache

from spmdsim.collectives.algorithm import Formula, built_in
from spmdsim.collectives.algorithms.broadcast import count_from_root
from spmdsim.collectives.algorithms.rank_arithmetic import circulant_skips, reduce_backwards
from spmdsim.collectives.instructions import Rounds, recv, send

SOURCE = "arXiv 2407.18004"
#: Number of a round without a block.
NO_BLOCK = -1


def near_skips(size: int) -> list[int]:
    """Return the distances of the rounds, from 1 on; each is half of the next one, rounded up.

    >>> near_skips(9)
    [1, 2, 3, 5]
    """
    return [distance for distance, _ in reversed(circulant_skips(size))]


def base_block(v: int, size: int) -> int:
    """Return the number of the last distance on the greedy path from the root to a rank; q for the root.

    The path takes the largest distance first that does not exceed the remaining one. ``v`` is the rank as counted from the
    root, ``size`` the number of ranks. The rank gets this block in its first q rounds.

    >>> [base_block(v, 9) for v in range(9)]
    [4, 0, 1, 2, 0, 3, 0, 1, 2]
    """
    skips = near_skips(size)
    for k in reversed(range(len(skips))):
        if v == skips[k]:
            return k
        v -= skips[k] if v > skips[k] else 0
    return len(skips)


@lru_cache(maxsize=1 << 12)
def received_blocks(v: int, size: int) -> tuple[int, ...]:
    """Return the block that a rank receives in each of q rounds, as counted from the round's first.

    ``v`` is the rank as counted from the root, ``size`` the number of ranks, and q is ceil(log2 size). One block is :func:`base_block`, which is 0 or more. The others are negative: blocks of earlier rounds. The search follows
    the paths to the rank in the order of their last rank (algorithm 4 of the source); it takes O(log n) steps.

    >>> received_blocks(1, 9), received_blocks(5, 9)
    ((0, -2, -3, -1), (-4, -2, -3, 3))
    """
    skips = [*near_skips(size), size, 2 * size]
    q, target = len(skips) - 2, size + v
    used, indices = {base_block(v, size)}, list[int]()

    def search(start: int, limit: int, first: int) -> None:
        """Append the first distances of the paths from ``start`` that end nearest below the target."""
        for k in range(first, -1, -1):
            end = start + skips[k]
            if k in used or len(indices) == q or not end <= target - skips[len(indices)] or end >= limit:
                continue
            if end <= target - skips[len(indices) + 1]:
                search(end, limit, k)
            if len(indices) == q or start > target - skips[len(indices) + 1]:
                return
            limit = end
            indices.append(k)
            used.add(k)

    search(0, 2 * size, q)
    return tuple(base_block(v, size) if k == q else k - q for k in indices)


@lru_cache(maxsize=1 << 12)
def arriving_segments(v: int, size: int, segments: int) -> tuple[tuple[int, int], ...]:
    """Return the distance and the segment that arrives of each round; :data:`NO_BLOCK` if none arrives.

    Each segment arrives once; none arrives at the root.

    Args:
        v: the rank as counted from the root.
        size: the number of ranks.
        segments: the number of segments.

    >>> arriving_segments(1, 3, 2)
    ((2, -1), (1, 1), (2, 0))
    """
    skips, arrived = near_skips(size), list[int]()
    q = len(skips)
    # The last of the rounds ends a run of q rounds.
    first = -(segments - 1) % q if q else 0
    rounds = range(first, first + segments - 1 + q) if q else range(0)
    for i in rounds:
        # Blocks beyond the last segment stand for the last segment.
        block = NO_BLOCK if v == 0 else received_blocks(v, size)[i % q] + i // q * q - first
        block = min(block, segments - 1)
        arrived.append(NO_BLOCK if block < 0 or block in arrived else block)
    return tuple((skips[i % q], block) for i, block in zip(rounds, arrived))


@built_in(
    "broadcast",
    "s",
    Formula("(s-1+c if n > 1 else 0)", "((s-1+c)/s if n > 1 else 0)"),
    source=SOURCE,
)
def broadcast_circulant_segments(rank: int, size: int, root: int = 0, segments: int = 4) -> Rounds:
    """Send segments over a circulant graph, in the fewest possible rounds (Traff).

    Yields the ``segments - 1 + ceil(log2 size)`` rounds (lists of instructions) of a rank; none for one rank. In each round
    a rank sends one segment and receives another one. A segment is a chunk.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank with the vector.
        segments: the number of segments.
    """
    v = (rank - root) % size

    def rounds() -> Rounds:
        """Yield the rounds as counted from the root."""
        for i, (distance, segment) in enumerate(arriving_segments(v, size, segments)):
            to = (v + distance) % size
            sent = arriving_segments(to, size, segments)[i][1]
            moves = [send(to, sent)] if sent != NO_BLOCK else []
            yield moves + ([recv((v - distance) % size, segment)] if segment != NO_BLOCK else [])

    return count_from_root(rounds(), size, root)


@built_in(
    "reduce",
    "s",
    Formula("(s-1+c if n > 1 else 0)", "((s-1+c)/s if n > 1 else 0)", "((s-1+c)/s if n > 1 else 0)"),
    in_order=False,
    source=SOURCE,
)
def reduce_circulant_segments(rank: int, size: int, root: int = 0, segments: int = 4) -> Rounds:
    """Send partial sums of segments over a circulant graph, in the fewest possible rounds (Traff).

    Yields the rounds (lists of instructions) of a rank: those of the broadcast in reverse. The order of the operands is not
    kept.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        root: the rank of the result.
        segments: the number of segments.
    """
    return reduce_backwards(broadcast_circulant_segments(rank, size, root, segments))


@built_in(
    "all_reduce",
    "s",
    Formula("(2*(s-1+c) if n > 1 else 0)", "(2*(s-1+c)/s if n > 1 else 0)", "((s-1+c)/s if n > 1 else 0)"),
    in_order=False,
    source=SOURCE,
)
def all_reduce_circulant_segments(rank: int, size: int, segments: int = 4) -> Rounds:
    """Reduce segments to rank 0, then broadcast them, both over a circulant graph (Traff).

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks. A segment is a chunk; ``segments`` is their
    number. The order of the operands is not kept.
    """
    yield from reduce_circulant_segments(rank, size, 0, segments)
    yield from broadcast_circulant_segments(rank, size, 0, segments)


@built_in("all_gather", ("n", "s"), Formula("(s-1+c if n > 1 else 0)", "q"), symmetry="shift", source=SOURCE)
def all_gather_circulant_segments(rank: int, size: int, segments: int = 2) -> Rounds:
    """Broadcast from every rank at once over a circulant graph, in segments (Traff).

    Yields the ``segments - 1 + ceil(log2 size)`` rounds (lists of instructions) of ``rank``; none for one rank. Block b has
    the chunks from ``b * segments`` on.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        segments: the number of segments of a block.
    """
    by_distance = [arriving_segments(v, size, segments) for v in range(size)]

    def arriving(at: int, i: int) -> list[int]:
        """Return the chunks that arrive at a rank in round i, of all ranks that broadcast."""
        arrived = [(root, by_distance[(at - root) % size][i][1]) for root in range(size)]
        return [root * segments + segment for root, segment in arrived if segment != NO_BLOCK]

    for i, (distance, _) in enumerate(by_distance[0]):
        to, source = (rank + distance) % size, (rank - distance) % size
        yield [send(to, arriving(to, i)), recv(source, arriving(rank, i))]


@built_in(
    "reduce_scatter",
    ("n", "s"),
    Formula("(s-1+c if n > 1 else 0)", "q", "q"),
    symmetry="shift",
    in_order=False,
    source=SOURCE,
)
def reduce_scatter_circulant_segments(rank: int, size: int, segments: int = 2) -> Rounds:
    """Reduce to every rank at once over a circulant graph, in segments (Traff).

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks: those of the all_gather in reverse. A block
    has ``segments`` chunks. The order of the operands is not kept.
    """
    return reduce_backwards(all_gather_circulant_segments(rank, size, segments))
