"""State that all agreements of a process share: boards, threads that watch them, and the writer of last calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mpi4py import MPI

from spmdsim.worlds.agreement.last_call_writer import LastCallWriter
from spmdsim.worlds.agreement.node_memory import make_board, world_ranks
from spmdsim.worlds.agreement.process_state import ProcessPlace
from spmdsim.worlds.agreement.shared_board import SharedBoard
from spmdsim.worlds.agreement.wait_watch import WaitWatch


class ProcessAgreements:
    """Boards of a process, each with its thread. Worlds of equal ranks share a board."""

    def __init__(self) -> None:
        self._watches: dict[SharedBoard, WaitWatch] = {}
        self._writer: LastCallWriter | None = None

    def find_board(self, comm: MPI.Comm) -> tuple[SharedBoard, list[int]] | None:
        """Return the board of an earlier world that has all ranks of ``comm``, or None.

        A board is the memory in which ranks log their calls. The earlier world may have more ranks than ``comm``. The
        first board with these ranks is taken. Nothing is sent.

        Returns:
            The board, and the place on it of each rank of ``comm``; None without such a board.
        """
        ranks = world_ranks(comm)
        for board in self._watches:
            if {*ranks} <= {*board.members}:
                return board, [board.members.index(rank) for rank in ranks]
        return None

    def open_board(self, comm: MPI.Comm, processes: Sequence[ProcessPlace]) -> tuple[SharedBoard, list[int]]:
        """Return a board for the ranks of ``comm``, and the place of each rank on it.

        Take the board of :meth:`find_board`, or make one. All ranks must call it, because a new board needs all of
        them.

        Args:
            comm: the communicator.
            processes: the machine and the process of each rank of ``comm``.

        Raises:
            WorldError: If the board is new and ranks of another node cannot be reached.
        """
        earlier = self.find_board(comm)
        if earlier is not None:
            return earlier
        board, places = make_board(comm, processes)
        self._watches[board] = WaitWatch(board)
        return board, places

    def watch(self, board: SharedBoard) -> WaitWatch:
        """Return the thread that watches a board."""
        return self._watches[board]

    def write_last_calls(self, board: SharedBoard, path: str, hosts: Mapping[int, str]) -> None:
        """Write the last calls on a board to a file when the job ends, or when the user asks for it.

        Args:
            board: the board.
            path: the file; only the path of the first call in a process counts.
            hosts: the host of each rank of the board, by the rank's number in the job.
        """
        if self._writer is None:
            self._writer = LastCallWriter(path)
        self._writer.add_board(board, hosts)

    def leave_program(self, code: int, is_last: bool) -> None:
        """Write that this rank makes no more calls; end the job if its calls differ from others'.

        Args:
            code: this rank's exit code. Calls are compared only if it is 0.
            is_last: True if all ranks have left their programs.
        """
        for watch in list(self._watches.values()):
            watch.leave_program(code, is_last)

    def stop(self) -> None:
        """End the threads that watch boards, and wait up to a second for each."""
        for watch in self._watches.values():
            watch.stop()


#: The state of this process.
PROCESS = ProcessAgreements()
