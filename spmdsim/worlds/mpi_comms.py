"""Sub-communicators, one per set of ranks, made when first needed and freed at the end.

MPI libraries can hold only some two thousand communicators, and making one costs more than using it a hundred
times. All orders of the same ranks share one communicator; the order of a group is kept by its programs.
"""

from __future__ import annotations

from mpi4py import MPI

from spmdsim.errors import WorldError

#: Communicators a world holds at most; MPICH ends at 2,046.
MOST = 1900


class Comms:
    """The communicators of one world.

    Args:
        comm: all ranks of the world; it stays the caller's.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm
        self._made: dict[tuple[int, ...], MPI.Comm] = {}

    def __len__(self) -> int:
        return len(self._made)

    def of(self, ranks: tuple[int, ...]) -> MPI.Comm:
        """The communicator of these ranks (sorted, this process among them); collective over them.

        Raises:
            WorldError: too many different groups.
        """
        found = self._made.get(ranks)
        if found is not None:
            return found
        if len(self._made) >= MOST:
            raise WorldError(f"{MOST} different groups of ranks are in use; close() the world to free them")
        group = self.comm.Get_group()
        part = group.Incl(list(ranks))
        found = self.comm.Create_group(part, tag=len(ranks) % 1024)  # type: ignore[attr-defined]
        part.Free()
        group.Free()
        self._made[ranks] = found
        return found

    def free(self) -> None:
        """Free all communicators; collective over the world."""
        for comm in self._made.values():
            comm.Free()
        self._made.clear()
