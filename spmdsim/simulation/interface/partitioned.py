"""Partitioned messages: a sender marks parts of a buffer as ready, a receiver tests which parts have arrived."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from spmdsim.simulation.data.constants import ANY_SOURCE, ANY_TAG, PROC_NULL, MPIError
from spmdsim.simulation.data.message_buffers import receive_buffer, send_buffer
from spmdsim.simulation.data.status import Status
from spmdsim.simulation.engine.mailboxes import STANDARD
from spmdsim.simulation.interface.info import INFO_NULL, Info
from spmdsim.simulation.interface.requests import Prequest

_frame = sys._getframe


class _Partitioned(Prequest):
    """A request of a message with partitions."""

    _count: int
    _missing: set[int]

    def _with_partitions(self, count: int) -> _Partitioned:
        """Set the number of partitions; return the request."""
        if count < 1:
            raise MPIError("ERR_ARG", f"partitions must be 1 or more, got {count}")
        self._count, self._missing = count, set()
        return self

    def _check(self, partition: int) -> int:
        """Return a partition's number; raise an MPI error if it does not exist."""
        if not 0 <= partition < self._count:
            raise MPIError("ERR_ARG", f"partition must be 0 to {self._count - 1}, got {partition}")
        return partition


class PartitionedSend(_Partitioned):
    """A send whose message leaves when all partitions are ready."""

    def Start(self) -> None:
        """Begin a message: no partition is ready."""
        self._missing = set(range(self._count))

    def Pready(self, partition: int) -> None:
        """Mark a partition as ready; the program does not change it any more.

        Args:
            partition: its number.

        Raises:
            MPIError: If the partition does not exist, or is ready already.
        """
        if self._check(partition) not in self._missing:
            raise MPIError(
                "ERR_ARG", f"Pready: partition {partition} must not be ready already; call Start first"
            )
        self._missing.remove(partition)
        if not self._missing:
            super().Start()

    def Pready_range(self, partition_low: int, partition_high: int) -> None:
        """Mark the partitions from ``partition_low`` to ``partition_high`` as ready, both included."""
        self.Pready_list(range(partition_low, partition_high + 1))

    def Pready_list(self, partitions: Sequence[int]) -> None:
        """Mark some partitions as ready."""
        for partition in partitions:
            self.Pready(partition)

    def _check_ready(self) -> None:
        """Raise an MPI error if the message was begun and a partition is not ready."""
        if self._missing:
            raise MPIError("ERR_REQUEST", f"partitions {sorted(self._missing)} must be ready; call Pready")

    def _wait(self, status: Status | None) -> Any:
        """Wait until the message has left; all partitions must be ready."""
        self._check_ready()
        return super()._wait(status)

    def _test(self, status: Status | None) -> tuple[bool, Any]:
        """Return True if the message has left; False as long as a partition is not ready."""
        return (False, None) if self._missing else super()._test(status)


class PartitionedReceive(_Partitioned):
    """A receive whose partitions arrive together."""

    def Parrived(self, partition: int) -> bool:
        """Return True if a partition has arrived, and for a request that is not started."""
        self._check(partition)
        return self.Get_status()


class PartitionedMethods:
    """The methods of a communicator that create partitioned messages, which match each other only."""

    def Psend_init(
        self: Any, buf: Any, partitions: int, dest: int, tag: int = 0, info: Info = INFO_NULL
    ) -> PartitionedSend:
        """Return a persistent send of a buffer with partitions.

        Args:
            buf: the buffer of all partitions, as for ``Send``.
            partitions: number of equal partitions.
            dest: rank of the receiver, or PROC_NULL.
            tag: 0 or more.
            info: not used: mpi4py has it.
        """
        frame, payload = _frame(1), send_buffer(buf, dest)
        hidden, receiver = self._hidden("partitioned"), self._hidden_rank(dest)
        request: PartitionedSend = PartitionedSend(
            begin=lambda: hidden._start(payload, receiver, tag, STANDARD, "Psend_init", frame)
        )
        request._with_partitions(partitions)
        return request

    def Precv_init(
        self: Any,
        buf: Any,
        partitions: int,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        info: Info = INFO_NULL,
    ) -> PartitionedReceive:
        """Return a persistent receive into a buffer with partitions.

        Args:
            buf: the buffer of all partitions, as for ``Recv``.
            partitions: number of equal partitions.
            source: rank of the sender, or PROC_NULL.
            tag: 0 or more.
            info: not used: mpi4py has it.
        """
        frame, target = _frame(1), receive_buffer(buf, source)
        hidden, sender = self._hidden("partitioned"), self._hidden_rank(source)
        request: PartitionedReceive = PartitionedReceive(
            begin=lambda: hidden._post(target, sender, tag, "Precv_init", frame)
        )
        request._with_partitions(partitions)
        return request

    def _hidden_rank(self: Any, rank: int) -> int:
        """Return the rank in the hidden communicator of a rank.

        Args:
            rank: the rank; PROC_NULL and ANY_SOURCE stay.

        Raises:
            MPIError: If the rank does not exist.
        """
        if rank in (PROC_NULL, ANY_SOURCE):
            return rank
        if not 0 <= rank < self._end.shared.size:
            raise MPIError("ERR_RANK", f"the rank must be 0 to {self._end.shared.size - 1}, got {rank}")
        position: int = self._shared.ranks.index(self._end.shared.ranks[rank])
        return position
