# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

# The queue of waiting ranks: next rank, flag, and on rank 0 the last rank of the queue.
cells = np.array([-1, 0, -1], "i4")
queue = MPI.Win.Create(cells, 4, comm=comm)
me, none, zero, one = (np.full(1, value, "i4") for value in (rank, -1, 0, 1))
old, value = np.zeros(1, "i4"), np.zeros(1, "i4")
balance = np.zeros(1)
queue.Lock_all()
window.Lock_all()
for _ in range(3):
    queue.Accumulate(none, rank, 0, MPI.REPLACE)
    queue.Accumulate(one, rank, 1, MPI.REPLACE)
    queue.Flush(rank)
    queue.Fetch_and_op(me, old, 0, 2, MPI.REPLACE)
    queue.Flush(0)
    if old[0] != -1:
        queue.Accumulate(me, old[0], 0, MPI.REPLACE)
        queue.Flush(old[0])
        value[0] = 1
        while value[0]:
            queue.Fetch_and_op(one, value, rank, 1, MPI.NO_OP)
            queue.Flush(rank)
    window.Get(balance, 0)
    window.Flush(0)
    balance += 1
    window.Put(balance, 0)
    window.Flush(0)
    queue.Compare_and_swap(none, me, old, 0, 2)
    queue.Flush(0)
    if old[0] != rank:
        value[0] = -1
        while value[0] == -1:
            queue.Fetch_and_op(one, value, rank, 0, MPI.NO_OP)
            queue.Flush(rank)
        queue.Accumulate(zero, value[0], 1, MPI.REPLACE)
        queue.Flush(value[0])
window.Unlock_all()
queue.Unlock_all()
comm.Barrier()
assert rank > 0 or memory[0] == 9.0
queue.Free()
window.Free()
