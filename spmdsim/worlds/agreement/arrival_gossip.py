"""Gossip between ranks that gave up: each learns from few others which ranks have come.

A rank sends the set of the ranks that it knows of to its partners, at distances 1, 2, 4, … on both sides. If ranks in
between are absent, news goes around them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

#: The tag of messages that say which ranks gave up. Below every library's limit on tags.
GAVE_UP = 77_013
#: Rounds after the first one, in which a rank sends its news to each partner.
ROUNDS = 1
#: Messages that are never received by absent ranks, with their memory.
abandoned: list[object] = []


class ArrivalGossip:
    """Gossip of one rank. Each rank takes part whose deadline for the other ranks has passed.

    A rank sends at most ``2 (1 + ROUNDS) ceil(log2(ranks))`` messages, and one more for each rank that it misses
    or that misses it. It sends a partner nothing that it has from this partner or has sent it before.

    Args:
        comm: the communicator.

    Attributes:
        partners: the ranks at distances 1, 2, 4, … on both sides, the nearest first.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm, self._me, self._size = comm, comm.Get_rank(), comm.Get_size()
        distances = [sign << bit for bit in range((self._size - 1).bit_length()) for sign in (1, -1)]
        self.partners = list(dict.fromkeys((self._me + distance) % self._size for distance in distances))
        # The set of ranks that have come: bit r is 1 if rank r has.
        self._came = 1 << self._me
        # The set that a partner has sent to this rank or got from it.
        self._shared = dict.fromkeys(self.partners, 0)
        # The ranks whose last message lacks this rank, and that got none since; the ranks that got the last news.
        self._unaware: set[int] = set()
        self._last: set[int] = set()

    @property
    def is_complete(self) -> bool:
        """True if all ranks are known to have come."""
        return self._came == (1 << self._size) - 1

    @property
    def absent(self) -> list[int]:
        """Ranks that are not known to have come, sorted."""
        return [rank for rank in range(self._size) if not self._came >> rank & 1]

    def receive(self) -> None:
        """Receive the messages that have arrived."""
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, GAVE_UP, status):
            data, sender = self._empty(), status.Get_source()
            self._comm.Recv(data, sender, GAVE_UP)
            ranks = int.from_bytes(data.tobytes(), "little")
            self._came |= ranks
            if sender in self._shared:
                self._shared[sender] |= ranks
            if not ranks >> self._me & 1:
                self._unaware.add(sender)

    def send_news(self, partner: int) -> None:
        """Send a partner the set of ranks that have come, unless it got it from this rank or has sent it."""
        if self._came & ~self._shared[partner]:
            self._shared[partner] |= self._came
            self._send(partner)

    def send_last_news(self) -> None:
        """Send the set of ranks that have come to each rank that may not know of this rank.

        Such ranks are those that are not known to have come, and those whose messages do not name this rank. Call the
        method again when messages may have arrived: each rank gets one message in all. Without these messages, two
        ranks whose partners are all absent would each report the other one as absent.
        """
        for rank in {*self.absent, *self._unaware} - self._last:
            self._last.add(rank)
            self._send(rank)

    def _empty(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return np.zeros((self._size + 7) // 8, np.uint8)

    def _send(self, rank: int) -> None:
        """Send a rank the set of ranks that have come; do not wait for the delivery."""
        self._unaware.discard(rank)
        data = np.frombuffer(self._came.to_bytes(len(self._empty()), "little"), np.uint8)
        abandoned.append((data, self._comm.Isend(data, rank, GAVE_UP)))
