"""Lab 9: Messages between ranks

python lab9.py                             8 ranks in lock step, no MPI
mpirun -n 8 python lab9.py                 real ranks (or: spmdsim launch -n 8 lab9.py)
spmdsim labs check 9 --task NAME --hint 1  a hint; 2 and 3 say more
"""

# In this lab you write the program of one rank, with a communicator `comm` of mpi4py. It has
# `comm.rank` and `comm.size`. It sends objects and arrays:
#
# - `comm.send(obj, dest)` sends an object, and `comm.recv(source=...)` returns it.
#   `comm.sendrecv(obj, dest=..., source=...)` does both.
# - `comm.Send(array, dest)` sends an array, and `comm.Recv(array, source=...)` receives into one.
#   The slice `u[1:2]` is an array, but `u[1]` is not.
# - `comm.Sendrecv(array, dest=..., recvbuf=..., source=...)` sends one array and receives into
#   another.
# - `comm.Isend(array, dest)` returns a request. Call its `Wait()` before you change the array, and
#   before the function returns.
#
# Programs run on virtual ranks first. A send there waits until its message is received, and every
# mistake is reported in a sentence. Under `mpirun`, right programs also run on the real ranks. If
# you need names such as `MPI.ANY_SOURCE`, write `from mpi4py import MPI` inside the function: there
# it works without an installed mpi4py, too.

import numpy as np

# Uncomment these lines to see examples:
#
# from spmdsim import SpmdError, simulate
#
#
# def hello(comm):
#     if comm.rank == 0:
#         comm.send("hello", dest=1)
#     elif comm.rank == 1:
#         return comm.recv(source=2)  # rank 2 sends nothing
#
#
# try:
#     simulate(hello, 3)
# except SpmdError as error:
#     print(error)

# ## Around the ring
#
# *ring, 3 points*
#
# Every rank has a number `mine`. Return the sum of all numbers on every rank. Send only to the
# right neighbour, and receive only from the left one. Collectives are not allowed. You get two
# points for the sum on 1 to 8 ranks, and a point if no rank sends more than `size - 1` messages.


def ring(comm, mine):
    raise NotImplementedError


# ## Halos
#
# *halo, 3 points*
#
# `u` is an array of this rank's float64 numbers, with one more cell at each end. These two cells
# are the halo: copies of the neighbours' nearest numbers. Fill `u[0]` with the last own number of
# the left neighbour, and `u[-1]` with the first own number of the right neighbour. The first rank
# does not change `u[0]`, and the last rank does not change `u[-1]`. Return `u`.


def halo(comm, u):
    raise NotImplementedError


# ## Find a deadlock
#
# *swap, 2 points*
#
# Neighbours 0 and 1, 2 and 3, ... swap arrays. On some machines the program hangs, and with large
# arrays it hangs on all machines. Repair it. Both ranks return the array that they receive. With an
# odd number of ranks the last rank returns its own array.


def swap(comm, mine):
    other = comm.rank ^ 1
    if other >= comm.size:
        return mine
    theirs = np.empty_like(mine)
    comm.Send(mine, dest=other)
    comm.Recv(theirs, source=other)
    return theirs


# ## A master and its workers
#
# *farm, 3 points*
#
# Rank 0 is the master and has a list of tasks. The other ranks are the workers, and their `tasks`
# is `None`. A worker computes a task by `work(task)`; the master computes none. Rank 0 returns the
# results in the order of the tasks, and the workers return `None`. Send a new task to a worker as
# soon as it has finished one, because one task may take as long as all others together. There may
# be fewer tasks than workers.


def farm(comm, tasks, work):
    raise NotImplementedError


if __name__ == "__main__":
    from spmdsim.labs import grade

    raise SystemExit(grade(9, globals()))
