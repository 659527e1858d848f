"""Lab 2: Collectives and what they cost

python lab2.py                             8 ranks in lock step, no MPI
mpirun -n 8 python lab2.py                 real ranks (or: spmdsim launch -n 8 lab2.py)
spmdsim labs check 2 --task NAME --hint 1  a hint; 2 and 3 say more
"""

# A collective is a promise about what all ranks have at its end. An algorithm keeps it by messages,
# in rounds: in each round a rank sends at most one message and receives at most one. You write a
# generator of `(rank, size)`; each `yield` is a round, a list of what this rank does in it:
#
# - `send(peer, chunk)`: send a chunk of the vector;
# - `recv(peer, chunk)`: receive one, which replaces the own one;
# - `recv_reduce(peer, chunk)`: receive one and add it to the own one.
#
# Chunks are numbered from 0, and the vector is cut evenly into as many as you use. A round may be
# an empty list.

from spmdsim.collectives import recv, recv_reduce, send

#     from spmdsim import show
#     from spmdsim.collectives import schedule_of
#
#     show(schedule_of("all_gather", "ring", 4))

# ## A tree
#
# *broadcast, 3 points*
#
# At the beginning rank 0 has the vector, at the end all ranks have it. Use as few rounds as
# possible: who has it, helps. A point for a right broadcast, one for the fewest rounds on 2, 4 and
# 8 ranks, one for the fewest on 3, 5, 6 and 7.


def broadcast(rank, size):
    raise NotImplementedError


# ## A ring
#
# *all_reduce, 3 points*
#
# Every rank has a vector, at the end all have the sum. Cut it into `size` chunks; in each round
# every rank sends one to its right neighbour and gets one from the left. A point if it is right,
# two if no rank sends more bytes than the bound, `2 (size - 1) / size` of the vector.


def all_reduce(rank, size):
    raise NotImplementedError


# ## What it takes
#
# *ring_seconds, 2 points*
#
# A message of `b` bytes takes `alpha + beta * b` seconds; additions are free. Return how long the
# ring takes for vectors of `nbytes`.


def ring_seconds(size, nbytes, alpha, beta):
    raise NotImplementedError


# ## An all_reduce in two halves
#
# *two_halves, 2 points*
#
# `y` is a tensor whose sum is still pending over the axis `r` of eight ranks: every rank has an
# addend. Return it whole on every rank, by a reduce_scatter and an all_gather instead of an
# all_reduce. `y.to(layout)` brings a tensor into a layout.


def two_halves(y):
    raise NotImplementedError


if __name__ == "__main__":
    from spmdsim.labs import grade

    raise SystemExit(grade(2, globals()))
