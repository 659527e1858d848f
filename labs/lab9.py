"""Lab 9: Messages between ranks

python lab9.py                             8 ranks in lock step, no MPI
mpirun -n 8 python lab9.py                 real ranks (or: spmdsim launch -n 8 lab9.py)
spmdsim labs check 9 --task NAME --hint 1  a hint; 2 and 3 say more
"""

# Here you write what one rank does, with `comm` of mpi4py: `comm.rank`, `comm.size`,
# `comm.send(obj, dest)`, `comm.recv(source=...)`, `comm.sendrecv(obj, dest=..., source=...)` for
# objects, `comm.Send`, `comm.Recv`, `comm.Sendrecv` and `comm.Isend` for arrays. Programs run on
# virtual ranks first, where no send may count on a buffer and every mistake gets a sentence; under
# `mpirun` those that are right run on the real ones, too. If you need names such as
# `MPI.ANY_SOURCE`, write `from mpi4py import MPI` inside of the function.

import numpy as np

#     from spmdsim import SpmdError, simulate
#
#
#     def hello(comm):
#         if comm.rank == 0:
#             comm.send("hello", dest=1)
#         elif comm.rank == 1:
#             return comm.recv(source=2)  # nobody sends from there
#
#
#     try:
#         simulate(hello, 3)
#     except SpmdError as error:
#         print(error)

# ## Around the ring
#
# *ring, 3 points*
#
# Every rank has the number `mine`. Return the sum of all numbers on every rank. Send to the right
# neighbour and receive from the left one only; no collectives. Two points for the sum on 1 to 8
# ranks, one if no rank sends more than `size - 1` messages.


def ring(comm, mine):
    raise NotImplementedError


# ## Halos
#
# *halo, 3 points*
#
# `u` is a row of float64 numbers of this rank, with one cell more at each end, for a copy of the
# neighbour's nearest number. Fill these two cells: `u[0]` from the left neighbour's last own
# number, `u[-1]` from the right one's first. The first and the last rank leave their outer cell as
# it is. Return `u`.


def halo(comm, u):
    raise NotImplementedError


# ## Hunt a deadlock
#
# *swap, 2 points*
#
# Neighbours 0 and 1, 2 and 3, ... swap arrays. The program hangs on some machines, and for large
# arrays on all. Repair it; both ranks return what they got, as an array. With an odd number of
# ranks the last one returns its own.


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
# Rank 0 has a list of tasks; the other ranks have `None`. Each task is worked on by `work(task)`,
# on a worker (not on rank 0). Rank 0 returns the results in the order of the tasks, the others
# return `None`. Hand out a new task as soon as a worker is done: one task may take as long as all
# others together. There may be fewer tasks than workers.


def farm(comm, tasks, work):
    raise NotImplementedError


if __name__ == "__main__":
    from spmdsim.labs import grade

    raise SystemExit(grade(9, globals()))
