"""Exercise: write a ring all_reduce.

Every rank has a vector, cut into ``size`` chunks. At the end every rank must have the sum of all vectors.
Rank r may send to its right neighbour, r + 1, and receive from its left one, r - 1 (around the end).

The function is run for every rank. Each ``yield`` is one round: a list of what this rank does in it.

    send(peer, chunk)          send a chunk
    recv(peer, chunk)          receive a chunk; it replaces the own one
    recv_reduce(peer, chunk)   receive a chunk and add it to the own one

Check your solution with

    spmdsim collective check exercise.py:my_all_reduce -n 2..16

and look at it with

    spmdsim collective show all_reduce exercise.py:my_all_reduce -n 4
"""

from __future__ import annotations

from spmdsim.collectives import recv, recv_reduce, send


def my_all_reduce(rank, size):
    """This one is correct but slow: everybody sends everything to rank 0. Can you reach the bound for bytes?"""
    for other in range(1, size):
        if rank == 0:
            yield [recv_reduce(other, 0)]
        elif rank == other:
            yield [send(0, 0)]
    for other in range(1, size):
        if rank == 0:
            yield [send(other, 0)]
        elif rank == other:
            yield [recv(0, 0)]
