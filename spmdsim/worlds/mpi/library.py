"""What an MPI library's own algorithm of a reduction moves, by the tables of its choices."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from spmdsim.collectives import algorithm, make_schedule
from spmdsim.collectives.partition import cut
from spmdsim.collectives.rank_program import compile_program
from spmdsim.collectives.selection_tables import choose
from spmdsim.errors import InputError, ScheduleError

#: The tables' names of the libraries that have one.
TABLES = {"Open MPI": "openmpi", "MPICH": "mpich"}
#: The collective behind each of MPI's functions.
_COLLECTIVES = {"Allreduce": "all_reduce", "Reduce_scatter": "reduce_scatter"}


class LibraryMoves(NamedTuple):
    """Bytes that one rank receives and sends in a library's algorithm."""

    algorithm: str
    received: int
    sent: int


@lru_cache(maxsize=4096)
def library_moves(
    vendor: str, function: str, counts: tuple[int, ...], rank: int, itemsize: int
) -> LibraryMoves | None:
    """What the algorithm moves that a library chooses for a reduction; None where its choice is not known.

    Args:
        vendor: the library's name, as it says itself.
        function: MPI's function.
        counts: elements of each rank's block (for an Allreduce, of balanced ones).
        rank: whose bytes.
        itemsize: bytes per element.

    >>> library_moves("Open MPI", "Allreduce", (1, 1, 1, 1), 0, 8)
    LibraryMoves(algorithm='recursive_doubling', received=64, sent=64)
    """
    size, name = len(counts), _COLLECTIVES[function]
    try:
        equal = name == "all_reduce" or len(set(counts)) == 1
        chosen = choose(
            TABLES[vendor], name, size, sum(counts) * itemsize, True, itemsize, equal_blocks=equal
        )
        choice = chosen.algorithm
        if vendor == "Open MPI" and name == "all_reduce" and "ring" in chosen.name and sum(counts) < size:
            choice = algorithm(name, "recursive_doubling")  # its rings want an element per rank
        schedule = make_schedule(choice, size)
    except (KeyError, InputError, ScheduleError):
        return None
    if name == "all_reduce":
        sizes = tuple(schedule.chunk_elements(sum(counts)))
    else:
        each = schedule.chunk_count // size
        sizes = tuple(part for block in counts for part in cut(block, each))
    program = compile_program(schedule, rank, sizes)
    return LibraryMoves(choice.name, program.received * itemsize, program.sent * itemsize)
