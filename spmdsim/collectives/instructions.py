"""The instructions of a collective algorithm: what one rank does in one round.

An algorithm is a generator function of ``(rank, size)``. It yields that rank's rounds; a round is a
short list of instructions over a buffer that is divided into numbered chunks::

    def ring(rank, size):
        for i in range(size - 1):
            yield [
                send((rank + 1) % size, (rank - i) % size),
                recv((rank - 1) % size, (rank - 1 - i) % size),
            ]

The messages of a round travel at one time; sends read the values from before the round. Then the received values are
stored or reduced in the order written, and then the local instructions run. A rank that is idle in a round yields an
empty list, so that round *i* is one step on all ranks.

Chunk numbers beyond the chunk count ``k`` are scratch: number ``c + k * layer`` is a private copy of
the size of chunk ``c``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import index
from typing import NamedTuple, TypeAlias

from spmdsim.core.layout import block_sizes, largest_block
from spmdsim.errors import ScheduleError

__all__ = ["Chunks", "Instruction", "Round", "combine", "copy", "recv", "recv_reduce", "send"]

Chunks: TypeAlias = "range | tuple[int, ...]"

SEND = "send"
RECV = "recv"
REDUCE = "reduce"
COPY = "copy"
COMBINE = "combine"

LOCAL = -1
"""The ``peer`` of a local instruction."""


class Instruction(NamedTuple):
    """Instruction of a rank in a round.

    Attributes:
        kind: ``"send"``, ``"recv"``, ``"reduce"`` (receive and reduce), or the local ``"copy"`` and ``"combine"``.
        peer: the other rank; :data:`LOCAL` for local instructions.
        chunks: the chunks that are sent, or that take the result.
        source: the chunks that a local instruction reads.
        left: True if the incoming (or source) value is the *left* operand of the reduction;
            None: it is the left one if its sender has the lower rank.

    >>> send(1, 0).kind
    'send'
    """

    kind: str
    peer: int
    chunks: Chunks
    source: Chunks = ()
    left: bool | None = None

    @property
    def receives(self) -> bool:
        """True if a message arrives."""
        return self.kind == RECV or self.kind == REDUCE

    def incoming_left(self, rank: int) -> bool:
        """Return True if the incoming value is the left operand on this rank."""
        return self.peer < rank if self.left is None else self.left

    def describe(self) -> str:
        """Return a text of a few words about the instruction, for messages and pictures.

        >>> recv_reduce(2, [3, 4]).describe()
        'recv_reduce from 2: chunks 3, 4'
        """
        what = name_chunks(self.chunks)
        if self.kind == SEND:
            return f"send to {self.peer}: {what}"
        if self.kind in (RECV, REDUCE):
            return f"{'recv' if self.kind == RECV else 'recv_reduce'} from {self.peer}: {what}"
        return f"{self.kind} {name_chunks(self.source)} into {what}"


Round: TypeAlias = "Sequence[Instruction]"
Rounds: TypeAlias = "Iterator[list[Instruction]]"


def send(peer: int, chunks: int | Iterable[int]) -> Instruction:
    """Return an instruction that sends chunks to a rank.

    ``chunks`` is one number, a range or a list; ``()`` is an empty message.

    >>> send(2, [0, 1]).chunks
    (0, 1)
    """
    return Instruction(SEND, peer, _convert_chunks(chunks))


def recv(peer: int, chunks: int | Iterable[int]) -> Instruction:
    """Return an instruction that receives chunks from a rank and replaces the old values.

    >>> recv(2, [0, 1]).chunks
    (0, 1)
    """
    return Instruction(RECV, peer, _convert_chunks(chunks))


def recv_reduce(peer: int, chunks: int | Iterable[int], left: bool | None = None) -> Instruction:
    """Return an instruction that receives chunks and reduces them into the own chunks.

    Args:
        peer: the sender.
        chunks: one chunk number, a range or a list.
        left: put the incoming value on the left of the operator. By default the value from the lower
            rank stands left, which keeps the order of the ranks in most algorithms.

    >>> recv_reduce(2, 0).peer
    2
    """
    return Instruction(REDUCE, peer, _convert_chunks(chunks), (), left)


def copy(source: int | Iterable[int], target: int | Iterable[int]) -> Instruction:
    """Return an instruction that copies chunks to other chunks on one rank, without a message.

    >>> copy(1, 0).kind
    'copy'
    """
    return Instruction(COPY, LOCAL, _convert_chunks(target), _convert_chunks(source))


def combine(source: int | Iterable[int], target: int | Iterable[int], left: bool) -> Instruction:
    """Return an instruction that reduces chunks on one rank.

    It is ``target = source op target`` if ``left``, else ``target op source``.

    Args:
        source: one chunk number, a range or a list; these chunks stay as they are.
        target: the chunks that take the results, as many.
        left: put the source on the left of the operator, not on the right.

    >>> combine(1, 0, left=True).kind
    'combine'
    """
    return Instruction(COMBINE, LOCAL, _convert_chunks(target), _convert_chunks(source), left)


def _convert_chunks(chunks: int | Iterable[int]) -> Chunks:
    """Return chunk numbers as a range or a tuple of ints.

    A range stays a range. One integer, also one of NumPy's, becomes a tuple of one. That the chunks exist is not
    checked.

    Args:
        chunks: a number, a range, or an iterable of numbers.

    Raises:
        TypeError: If a number is no integer.
    """
    if type(chunks) is int:
        return (chunks,)
    if type(chunks) is range:
        return chunks
    if isinstance(chunks, Iterable):
        return tuple(map(index, chunks))
    return (index(chunks),)  # an integer of another type, such as numpy's


def find_runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and last number of each run of consecutive ascending numbers, in order.

    The numbers are not sorted before. Without numbers the list is empty.

    >>> find_runs([1, 2, 3, 7]), find_runs([3, 2])
    ([(1, 3), (7, 7)], [(3, 3), (2, 2)])
    """
    ends: list[tuple[int, int]] = []
    for number in numbers:
        if ends and number == ends[-1][1] + 1:
            ends[-1] = ends[-1][0], number
        else:
            ends.append((number, number))
    return ends


def name_runs(numbers: Iterable[int]) -> list[str]:
    """Return texts for numbers, with ``first..last`` for three or more in a row.

    >>> name_runs([0, 1, 2, 5, 6])
    ['0..2', '5', '6']
    """
    words: list[str] = []
    for first, last in find_runs(numbers):
        words += [f"{first}..{last}"] if last - first > 1 else map(str, range(first, last + 1))
    return words


def name_chunks(chunks: Chunks) -> str:
    """Return chunks as words, with ``first..last`` for three or more consecutive ones.

    >>> name_chunks((1, 2, 3, 7, 8)), name_chunks((4,)), name_chunks(())
    ('chunks 1..3, 7, 8', 'chunk 4', 'no data')
    """
    if not chunks:
        return "no data"
    words = ", ".join(name_runs(chunks))
    return f"chunk {words}" if len(chunks) == 1 else f"chunks {words}"


BALANCED = "balanced"
CEILING = "ceiling"


def cut(count: int, pieces: int, rounding: str = BALANCED) -> tuple[int, ...]:
    """Divide ``count`` elements into ``pieces`` chunks and return their sizes.

    Args:
        count: number of elements.
        pieces: number of chunks.
        rounding: ``"balanced"``: the first ``count % pieces`` chunks get one more. ``"ceiling"``: chunks of
            ``ceil(count / pieces)`` until no element is left, so the last ones may be short or empty. MPICH's ring
            all_reduce and its scatter for broadcast use ceiling chunks.

    Raises:
        ScheduleError: If the rounding is unknown.

    >>> cut(10, 4), cut(10, 4, "ceiling"), cut(2, 4)
    ((3, 3, 2, 2), (3, 3, 3, 1), (1, 1, 0, 0))
    """
    if rounding == BALANCED:
        return block_sizes(count, pieces)
    if rounding == CEILING:
        piece = largest_block(count, pieces)
        return tuple(max(0, min(piece, count - i * piece)) for i in range(pieces))
    raise ScheduleError(f"rounding must be 'balanced' or 'ceiling', got {rounding!r}")


@lru_cache(maxsize=256)
def chunk_sizes(count: int, levels: Sequence[int], rounding: str = BALANCED) -> tuple[int, ...]:
    """Divide ``count`` elements level by level, and return the sizes of all chunks.

    The first level has ``levels[0]`` chunks, each of which is divided into ``levels[1]`` chunks, and so on.

    >>> chunk_sizes(1000, (2, 3))
    (167, 167, 166, 167, 167, 166)
    """
    pieces: tuple[int, ...] = (count,)
    for level in levels:
        pieces = tuple(size for piece in pieces for size in cut(piece, level, rounding))
    return pieces
