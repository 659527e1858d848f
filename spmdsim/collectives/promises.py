"""Specification of each collective, as data: which ranks own which chunks before and after.

A collective of ``n`` ranks works on ``k`` chunks. Three words describe it:

* ``before``: the ranks with input. ``everyone`` (each rank its own version of all chunks), ``owner`` (rank
  ``c * n // k`` has chunk ``c``), ``root`` (the root has all), ``row`` (rank ``r`` has the chunks
  ``r * n + d`` for each destination ``d``).
* ``after``: the ranks that must have output; also ``column``: rank ``r`` ends with the chunks ``s * n + r``.
* ``value``: the output. ``copy`` of the input, ``sum`` over all ranks, ``prefix`` (ranks up to
  and including the own one), ``earlier`` (ranks before the own one).
"""

from __future__ import annotations

from dataclasses import dataclass

from spmdsim.collectives.instructions import Chunks
from spmdsim.errors import ScheduleError, SpmdError, many, unknown
from spmdsim.pictured import Pictured

__all__ = ["COLLECTIVES", "Collective", "collective"]


@dataclass(frozen=True)
class Collective(Pictured):
    """A collective: its name, its precondition and its postcondition.

    Attributes:
        name: as in ``all_reduce``.
        before: the ranks with input: ``everyone``, ``owner``, ``root``, ``row`` or ``nobody``.
        after: the ranks that must have output: ``everyone``, ``owner``, ``root``, ``column`` or ``nobody``.
        value: ``copy``, ``sum``, ``prefix``, ``earlier`` or ``nothing``.
        size_means: definition of the message size of this collective, in words.

    >>> from spmdsim.collectives import collective
    >>> collective("all_gather").after
    'everyone'
    """

    name: str
    before: str
    after: str
    value: str
    size_means: str

    @property
    def reduces(self) -> bool:
        """True if the collective applies an operator."""
        return self.value in ("sum", "prefix", "earlier")

    @property
    def rooted(self) -> bool:
        """True if the collective has a root."""
        return "root" in (self.before, self.after)

    def starts_with(self, rank: int, size: int, chunk_count: int, root: int = 0) -> Chunks:
        """Return the chunks of which a rank has input."""
        return _owned_chunks(self.before, rank, size, chunk_count, root)

    def ends_with(self, rank: int, size: int, chunk_count: int, root: int = 0) -> Chunks:
        """Return the chunks that a rank must have at the end."""
        if self.value == "earlier" and rank == 0:
            return range(0)
        return _owned_chunks(self.after, rank, size, chunk_count, root)

    def contributors(self, rank: int, size: int, chunk: int, chunk_count: int, root: int) -> range:
        """Return the ranks whose inputs are combined, or copied, into one chunk of a rank's output.

        By ``value``: "sum": all ranks; "prefix": the ranks up to ``rank``; "earlier": the ranks before it. For a
        copy it is one rank: the root, or the rank that owns the chunk before the collective.

        Args:
            rank: the rank that has the output.
            size: the number of ranks.
            chunk: the number of the chunk.
            chunk_count: the number of chunks.
            root: the root; used by collectives that start at a root.
        """
        if self.value == "prefix":
            return range(rank + 1)
        if self.value == "earlier":
            return range(rank)
        if self.value == "sum":
            return range(size)
        if self.before == "root":
            return range(root, root + 1)
        origin = chunk // size if self.before == "row" else chunk * size // chunk_count
        return range(origin, origin + 1)

    def check_chunk_count(self, size: int, chunk_count: int) -> None:
        """Raise an error if the collective cannot be divided into this number of chunks.

        * all_to_all needs ``size * size`` chunks, one per pair of ranks.
        * Collectives in which each rank owns chunks, such as all_gather, need a multiple of ``size``, but not 0.
        * Others, such as all_reduce, take any number.

        Args:
            size: the number of ranks.
            chunk_count: the number of chunks.

        Raises:
            ScheduleError: If the number does not fit.
        """
        words = (self.before, self.after)
        if "row" in words and chunk_count != size * size:
            raise ScheduleError(
                f"{self.name} on {many(size, 'rank')} has one chunk per pair of ranks, {size * size} in all;"
                f" the algorithm uses {chunk_count}"
            )
        if "owner" in words and (chunk_count % size or chunk_count == 0):
            raise ScheduleError(
                f"{self.name} on {many(size, 'rank')} needs the same number of chunks for every rank;"
                f" the algorithm uses {chunk_count}"
            )


def _owned_chunks(who: str, rank: int, size: int, chunk_count: int, root: int) -> Chunks:
    """Return the chunks of a rank before or after a collective; an empty range if it has none.

    With n ranks and k chunks, rank r has these chunks for each word ``who``:

    * "everyone": all k chunks; "root": all k chunks if r is the root, else none;
    * "owner": k/n chunks from r k/n on; "row": n chunks from r n on; "column": r, r + n, r + 2 n, ...;
    * any other word: none.

    Args:
        who: the word of ``Collective.before`` or ``Collective.after``.
        rank: the rank.
        size: the number of ranks.
        chunk_count: the number of chunks.
        root: the root.
    """
    if who == "everyone" or (who == "root" and rank == root):
        return range(chunk_count)
    if who == "owner":
        each = chunk_count // size
        return range(rank * each, (rank + 1) * each)
    if who == "row":
        return range(rank * size, (rank + 1) * size)
    if who == "column":
        return range(rank, size * size, size)
    return range(0)


_VECTOR = "bytes of one rank's vector"
_BLOCKS = "bytes of one rank's blocks together"
_GATHERED = "bytes of all ranks' blocks together"

COLLECTIVES: dict[str, Collective] = {
    c.name: c
    for c in (
        Collective("all_reduce", "everyone", "everyone", "sum", _VECTOR),
        Collective("reduce_scatter", "everyone", "owner", "sum", _BLOCKS),
        Collective("all_gather", "owner", "everyone", "copy", _GATHERED),
        Collective("all_to_all", "row", "column", "copy", _BLOCKS),
        Collective("broadcast", "root", "everyone", "copy", _VECTOR),
        Collective("reduce", "everyone", "root", "sum", _VECTOR),
        Collective("gather", "owner", "root", "copy", _GATHERED),
        Collective("scatter", "root", "owner", "copy", _GATHERED),
        Collective("scan", "everyone", "everyone", "prefix", _VECTOR),
        Collective("exscan", "everyone", "everyone", "earlier", _VECTOR),
        Collective("barrier", "nobody", "nobody", "nothing", "always 0"),
    )
}

#: MPI's spellings of the names.
_OTHER_NAMES = {name.replace("_", ""): name for name in COLLECTIVES} | {"bcast": "broadcast"}


def collective(name: str) -> Collective:
    """Return a collective by its name, or by MPI's name such as ``allreduce`` or ``bcast``.

    Case does not matter, and - stands for _.

    Args:
        name: the name.

    Raises:
        SpmdError: If the collective is unknown; the message lists all.

    >>> collective("Bcast").name
    'broadcast'
    """
    lowered = str(name).lower().replace("-", "_")
    lowered = _OTHER_NAMES.get(lowered.replace("_", ""), lowered)
    if lowered not in COLLECTIVES:
        raise unknown(f"there is no collective {name!r}", lowered, COLLECTIVES, SpmdError, "known are")
    return COLLECTIVES[lowered]
