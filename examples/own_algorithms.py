"""A ring all_reduce and three frequent mistakes, for `spmdsim collective check` and `show`."""

from __future__ import annotations

from spmdsim.collectives import recv, recv_reduce, send


def my_all_reduce(rank, size):
    """Pass partial sums around the ring once, then pass the finished chunks around once."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for i in range(size - 1):
        yield [send(right, (rank - i) % size), recv_reduce(left, (rank - 1 - i) % size)]
    for i in range(size - 1):
        yield [send(right, (rank + 1 - i) % size), recv(left, (rank - i) % size)]


def one_round_too_many(rank, size):
    """Run the first loop ``size`` times instead of ``size - 1``, so the first sum is added twice."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for i in range(size):
        yield [send(right, (rank - i) % size), recv_reduce(left, (rank - 1 - i) % size)]
    for i in range(size - 1):
        yield [send(right, (rank - i) % size), recv(left, (rank - 1 - i) % size)]


def send_before_receive(rank, size):
    """Send, then receive in another round, so all ranks wait for their right neighbour to receive."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for i in range(size - 1):
        yield [send(right, (rank - i) % size)]
        yield [recv_reduce(left, (rank - 1 - i) % size)]
    for i in range(size - 1):
        yield [send(right, (rank + 1 - i) % size)]
        yield [recv(left, (rank - i) % size)]


def wrong_neighbour(rank, size):
    """Send to the right and receive from the right, which works only if both neighbours are one rank."""
    right = (rank + 1) % size
    for i in range(size - 1):
        yield [send(right, (rank - i) % size), recv_reduce(right, (rank - 1 - i) % size)]
    for i in range(size - 1):
        yield [send(right, (rank + 1 - i) % size), recv(right, (rank - i) % size)]
