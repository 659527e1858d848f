"""Lab 2: Collectives and what they cost

python lab2.py                             8 ranks in lock step, no MPI
mpirun -n 8 python lab2.py                 real ranks (or: spmdsim launch -n 8 lab2.py)
spmdsim labs check 2 --task NAME --hint 1  a hint; 2 and 3 say more
"""

# A collective defines what all ranks own at its end. An algorithm reaches this by messages, in
# rounds. In each round a rank sends at most one message and receives at most one. You write a
# generator function of `(rank, size)`. Each `yield` is a round: a list of what this rank does in
# it.
#
# - `send(peer, chunk)`: send a chunk of the vector.
# - `recv(peer, chunk)`: receive a chunk, which replaces this rank's chunk.
# - `recv_reduce(peer, chunk)`: receive a chunk and add it to this rank's chunk.
#
# Chunks are numbered from 0. The number of chunks is not declared: an algorithm that uses only
# chunk 0 sends whole vectors, and an algorithm that uses the chunks 0 to 3 sends quarters. A round
# may be an empty list.

from spmdsim.collectives import recv, recv_reduce, send

# Uncomment these lines to see examples:
#
# from spmdsim import show
# from spmdsim.collectives import schedule_of
#
# show(schedule_of("all_gather", "ring", 4))  # in the tables, [3]: received from rank 3 in this round

# ## A tree
#
# *broadcast, 3 points*
#
# At the start rank 0 owns the vector. At the end all ranks own it. Send the whole vector, chunk 0.
# Use as few rounds as possible: a rank that has received the vector can send it, too. You get a
# point for a right broadcast, a point for the fewest rounds on 2, 4 and 8 ranks, and a point for
# the fewest on 3, 5, 6 and 7.


def broadcast(rank, size):
    raise NotImplementedError


# ## A ring
#
# *all_reduce, 3 points*
#
# Every rank owns a vector. At the end all ranks own the sum of these vectors. Split the vector into
# `size` chunks. In each round every rank sends a chunk to its right neighbour and receives one from
# the left. The algorithm has two halves: first the chunks are added up on the way around the ring,
# then the finished chunks go around the ring. You get a point if the sum is right, and two points
# if no rank sends more bytes than the lower bound, `2 (size - 1) / size` of the vector.


def all_reduce(rank, size):
    raise NotImplementedError


# ## The time of a ring
#
# *ring_seconds, 2 points*
#
# A message of `b` bytes takes `alpha + beta * b` seconds, and additions take no time. Return the
# seconds that the all_reduce above takes on a ring of `size` ranks, for vectors of `nbytes` bytes.


def ring_seconds(size, nbytes, alpha, beta):
    raise NotImplementedError


# ## An all_reduce in two halves
#
# *two_halves, 2 points*
#
# `y` is a matrix whose sum is pending over the axis `r` of eight ranks: every rank owns an addend.
# Return the finished matrix, replicated on every rank. Use a reduce_scatter and an all_gather
# instead of an all_reduce. `y.to(layout)` returns the matrix in another layout. Write a layout as
# in lab 1, with the mesh `y.layout.mesh`.


def two_halves(y):
    raise NotImplementedError


if __name__ == "__main__":
    from spmdsim.labs import grade

    raise SystemExit(grade(2, globals()))
