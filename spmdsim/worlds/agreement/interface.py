"""The interface of agreement: the five methods that a world calls, and an implementation that compares nothing."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import NamedTuple

from spmdsim.worlds.agreement.call import Call
from spmdsim.worlds.agreement.process_state import RUNNING, find_process_state

#: The error of calls in a closed world.
CLOSED = "this world was closed; make another MPIWorld"


class RankStatus(NamedTuple):
    """State of a rank's process.

    Attributes:
        state: ``RUNNING``, ``STOPPED``, ``ENDED``, ``SILENT`` or ``LOST``.
        is_remote: True if the rank runs on another node.
        silent_seconds: the seconds since a remote rank's node answered last.
    """

    state: int
    is_remote: bool = False
    silent_seconds: float = 0.0


class CallAgreement:
    """Agreement of a world's ranks on their calls.

    This class compares nothing: programs run without checks.

    Args:
        processes: the process ids of ranks on this node.
    """

    def __init__(self, processes: Mapping[int, int] | None = None) -> None:
        self._processes = processes or {}

    def begin(self, call: Call, tensor: int = 0) -> int:
        """Log that this rank begins a call; compare it first if that is necessary before it runs.

        Args:
            call: the call.
            tensor: the provenance number of the tensor that moves; 0 for none.

        Returns:
            The number of the call among those of its ranks, from 0. This class returns 0.

        Raises:
            DisagreementError: If the ranks make different calls, or do not come.
        """
        return 0

    def end(self, call: Call, number: int, error: BaseException | None = None) -> None:
        """Log that a call has ended, and compare all calls now and then.

        Args:
            call: the call.
            number: the number that :meth:`begin` returned.
            error: the error that ended the call; None if it succeeded.
        """

    def compare(self) -> None:
        """Compare all calls so far. Raise DisagreementError if they differ."""

    def wait(self, call: Call, number: int | None = None) -> None:
        """Wait until all ranks of a call have begun it, and compare it; this class returns at once.

        Args:
            call: the call.
            number: its number, from :meth:`begin`; None for the latest call of its ranks.

        Raises:
            DisagreementError: If the ranks make different calls, or do not come before the deadline.
        """

    def describe(self, rank: int) -> RankStatus:
        """Return the state of a rank's process; ``RUNNING`` if its process id is not known.

        Args:
            rank: the rank's number in the world.
        """
        process = self._processes.get(rank)
        return RankStatus(RUNNING if process is None else find_process_state(process))

    #: Whether the ranks compare their calls.
    compares = False

    @property
    def has_reported(self) -> bool:
        """True if this rank has raised an error about ranks that disagree or do not come."""
        return False

    # -- the end of a world ------------------------------------------------------------------------------------

    def close(self, failed: bool = False) -> None:
        """Stop logging calls; ``failed`` withdraws those that were logged."""

    def refuse(self, reason: str) -> None:
        """Raise WorldError with a reason for every later call."""


class CallScope:
    """Context that begins a call on entry and ends it on exit; it does nothing if the call is None.

    Args:
        agreement: the agreement.
        call: the call, or None.
        tensor: the provenance number of the tensor that moves; 0 for none.
        meets: True to wait for all ranks of the call on entry.
    """

    __slots__ = ("_agreement", "_call", "_meets", "_tensor", "number")

    def __init__(
        self, agreement: CallAgreement, call: Call | None, tensor: int = 0, meets: bool = False
    ) -> None:
        self._agreement, self._call, self._tensor, self._meets = agreement, call, tensor, meets
        self.number = 0

    def __enter__(self) -> CallScope:
        call, agreement = self._call, self._agreement
        if call is not None:
            self.number = agreement.begin(call, self._tensor)
            if self._meets:
                try:
                    agreement.wait(call, self.number)
                except BaseException as error:
                    agreement.end(call, self.number, error)
                    raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._call is not None:
            self._agreement.end(self._call, self.number, error)
