"""Agreement by call logs: compare a new kind of call before it runs, and all calls before numbers leave the program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mpi4py import MPI

from spmdsim.errors import WorldError, many
from spmdsim.worlds.agreement.call import Call
from spmdsim.worlds.agreement.call_log import CallLog
from spmdsim.worlds.agreement.group_log import TensorHistory
from spmdsim.worlds.agreement.interface import CLOSED, CallAgreement, CallScope, RankStatus
from spmdsim.worlds.agreement.process_agreements import PROCESS
from spmdsim.worlds.agreement.process_state import ProcessPlace, map_nodes
from spmdsim.worlds.agreement.shared_board import SharedBoard


class BoardAgreement(CallAgreement):
    """Agreement of a world's ranks through a shared board.

    Args:
        board: the memory of the ranks' logs.
        places: the places of the world's ranks on the board.
        history: how this rank's tensors were computed.
        deadline: seconds that a rank waits for the others.
        strict: whether every call and its source lines are compared before it runs.
        purpose: a prefix that keeps these calls apart from those of the world itself, such as "making "; "" for the
            world's own calls.
    """

    compares = True

    def __init__(
        self,
        board: SharedBoard,
        places: Sequence[int],
        history: TensorHistory,
        deadline: float,
        strict: bool = False,
        purpose: str = "",
    ) -> None:
        super().__init__()
        self.board, self.places = board, tuple(places)
        self._history, self._deadline, self._strict = history, deadline, strict
        self._name = purpose + board.name_world(self.places)
        self._logs: dict[tuple[int, ...], CallLog] = {}
        self._refusal = ""
        self._watch = PROCESS.watch(board)
        self._watch.follow(self._logs, deadline)

    def log_of(self, ranks: tuple[int, ...]) -> CallLog:
        """Return the call log of a group of ranks; create it at the group's first call.

        Nothing is sent, and no rank is waited for.

        Args:
            ranks: the group's ranks, sorted, by their numbers in the world.

        Raises:
            WorldError: If the log is new and the world is closed, or :data:`~.shared_board.GROUPS` groups are in use.
        """
        log = self._logs.get(ranks)
        if log is None:
            if self._refusal:
                raise WorldError(self._refusal)
            # A group is called by its ranks in the job, because worlds may have only some of them.
            members = sorted((self.board.members[self.places[rank]], self.places[rank]) for rank in ranks)
            job_ranks, places = (tuple(numbers) for numbers in zip(*members))
            log = self._logs[ranks] = CallLog(
                self.board, self._name, job_ranks, places, self._history, self._deadline, self._strict
            )
        return log

    def begin(self, call: Call, tensor: int = 0) -> int:
        """Log that this rank begins a call; compare a new kind of call before it runs.

        See :meth:`CallLog.begin` for when it waits.

        Args:
            call: the call.
            tensor: the provenance number of the tensor that moves; 0 for none.

        Returns:
            The number of the call among those of its ranks, from 0.

        Raises:
            DisagreementError: If the ranks make different calls, or do not come before the deadline.
            WorldError: As in :meth:`log_of`.
        """
        log = self._logs.get(call.ranks)
        return (self.log_of(call.ranks) if log is None else log).begin(call, tensor)

    def end(self, call: Call, number: int, error: BaseException | None = None) -> None:
        """Log that a call has ended; compare all calls of its ranks now and then.

        Do nothing if the group has no log, as in a forked child.

        Args:
            call: the call.
            number: the number that :meth:`begin` returned.
            error: the error that ended the call; None if it succeeded.

        Raises:
            DisagreementError: See :meth:`CallLog.end`.
        """
        log = self._logs.get(call.ranks)
        if log is not None:  # else this is a forked child, which leaves the call
            log.end(number, error)

    def compare(self) -> None:
        """Compare this rank's calls and reads so far with the logs of the other ranks of each group.

        A read is a call of ``full()`` or ``item()``. A group without a new call since its last comparison is left out.

        - Ranks of other nodes: first wait until they have begun this rank's last call.
        - Ranks of this node: do not wait. Calls that such a rank has not begun yet are compared later.

        Raises:
            DisagreementError: If calls or reads differ, or a rank of another node does not come before the deadline.
        """
        for log in self._logs.values():
            if log.number != log.compared:
                # The data of another node may arrive before its log, so wait until its log has this rank's last call.
                if log.far:
                    log.wait_for(log.number - 1, log.far)
                log.compare()

    def wait(self, call: Call, number: int | None = None) -> None:
        """Wait until all ranks of a call have begun it, and compare all calls of these ranks.

        Args:
            call: the call; only its ranks matter.
            number: the call's number in the group; None for the latest call of this rank.

        Raises:
            DisagreementError: If the ranks make different calls, or do not come before the deadline.
        """
        self.log_of(call.ranks).wait(number)

    def describe(self, rank: int) -> RankStatus:
        """Return the state of a rank's process, as far as its node reports it."""
        board, place = self.board, self.places[rank]
        return RankStatus(board.process_state(place), place in board.far, board.silent_seconds(place))

    @property
    def has_reported(self) -> bool:
        """True if this rank has raised an error about ranks that disagree or do not come."""
        return any(log.has_reported for log in self._logs.values())

    def add_read(self, tensor: int, value: int) -> None:
        """Log a read of a whole tensor, which the ranks compare after their next call.

        Args:
            tensor: the provenance number.
            value: a checksum of the elements.
        """
        if not self._refusal:
            self.log_of(tuple(range(len(self.places)))).reads.add(tensor, value)

    def close(self, failed: bool = False) -> None:
        """Log no more calls, and free the groups' slots on the board; later calls raise WorldError.

        Args:
            failed: True to make the logged calls unreadable for other ranks at once.
        """
        self._watch.leave(self._logs)
        for log in self._logs.values():
            log.close(failed)
        self.refuse(CLOSED)

    def refuse(self, reason: str) -> None:
        """Forget the groups' logs; every later call raises WorldError with the text ``reason``."""
        self._logs.clear()
        self._refusal = reason


@contextmanager
def making_world(comm: MPI.Comm, history: TensorHistory, deadline: float) -> Iterator[None]:
    """Wait until all ranks of a new world have come, then run the block that makes the world.

    The wait uses the shared board (the memory of the ranks' call logs) of an earlier world of these ranks:

    - If such a board exists, this function logs a call there, such as "a new world of 4 ranks". All ranks must log an
      equal call; a rank that makes another call is named in an error. If the block fails, the logged call is withdrawn.
    - If none exists, or if there is only one rank, the block runs at once.

    Args:
        comm: the ranks of the new world; all of them must call this.
        history: how this rank's tensors were computed.
        deadline: seconds to wait for the others.

    Yields:
        None, once.

    Raises:
        DisagreementError: If ranks make another call, or do not come before the deadline.
    """
    earlier = PROCESS.find_board(comm) if comm.Get_size() > 1 else None
    if earlier is None:
        yield
        return
    board, places = earlier
    agreement, failed = BoardAgreement(board, places, history, deadline, purpose="making "), True
    call = Call.from_words(f"a new world of {many(comm.Get_size(), 'rank')}", range(comm.Get_size()))
    try:
        with CallScope(agreement, call, meets=True):
            board.count_world(agreement.places)  # they met, so the next attempt is another world
            yield
        failed = False
    finally:
        agreement.close(failed)


def make_agreement(
    comm: MPI.Comm,
    processes: Sequence[ProcessPlace],
    history: TensorHistory,
    deadline: float,
    strict: bool,
    record: str | None,
) -> BoardAgreement:
    """Return the agreement of a communicator's ranks; all of them must call it.

    Args:
        comm: the ranks.
        processes: the machine and the process of each rank.
        history: how this rank's tensors were computed.
        deadline: seconds that a rank waits for the others.
        strict: True to compare every call and its source lines before it runs.
        record: the path of a file for the last calls of all ranks; None or "" for no file.

    Raises:
        WorldError: If ranks of another node cannot be reached.
    """
    board, places = PROCESS.open_board(comm, processes)
    if record:
        nodes = map_nodes(processes)
        hosts = {board.members[place]: nodes.host_of(rank) for rank, place in enumerate(places)}
        PROCESS.write_last_calls(board, record, hosts)
    return BoardAgreement(board, places, history, deadline, strict)
