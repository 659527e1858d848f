"""Solution: a ring all_reduce that reaches the lower bound for bytes."""

from __future__ import annotations

from spmdsim.collectives import recv, recv_reduce, send


def my_all_reduce(rank, size):
    """Partial sums go around once; then the finished chunks go around once."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for i in range(size - 1):
        yield [send(right, (rank - i) % size), recv_reduce(left, (rank - 1 - i) % size)]
    for i in range(size - 1):
        yield [send(right, (rank + 1 - i) % size), recv(left, (rank - i) % size)]
