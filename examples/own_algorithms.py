"""A ring all_reduce of one's own, and three mistakes that are often made: for `spmdsim collective check` and `show`."""

from __future__ import annotations

from spmdsim.collectives import recv, recv_reduce, send


def my_all_reduce(rank, size):
    """Partial sums go around once; then the finished chunks go around once."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for i in range(size - 1):
        yield [send(right, (rank - i) % size), recv_reduce(left, (rank - 1 - i) % size)]
    for i in range(size - 1):
        yield [send(right, (rank + 1 - i) % size), recv(left, (rank - i) % size)]


def one_round_too_many(rank, size):
    """The loop runs ``size`` times instead of ``size - 1``: the first sum comes around again and is added twice."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for i in range(size):
        yield [send(right, (rank - i) % size), recv_reduce(left, (rank - 1 - i) % size)]
    for i in range(size - 1):
        yield [send(right, (rank - i) % size), recv(left, (rank - 1 - i) % size)]


def send_before_receive(rank, size):
    """Send, then receive, one after the other: all ranks wait for their right neighbour to receive."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for i in range(size - 1):
        yield [send(right, (rank - i) % size)]
        yield [recv_reduce(left, (rank - 1 - i) % size)]
    for i in range(size - 1):
        yield [send(right, (rank + 1 - i) % size)]
        yield [recv(left, (rank - i) % size)]


def wrong_neighbour(rank, size):
    """Sends to the right and receives from the right: with two ranks both neighbours are one, and it works."""
    right = (rank + 1) % size
    for i in range(size - 1):
        yield [send(right, (rank - i) % size), recv_reduce(right, (rank - 1 - i) % size)]
    for i in range(size - 1):
        yield [send(right, (rank + 1 - i) % size), recv(right, (rank - i) % size)]
