# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

numbers = np.zeros(2, "i4")
locks = MPI.Win.Create(numbers, 4, comm=comm)
one, zero, old = np.ones(1, "i4"), np.zeros(1, "i4"), np.ones(1, "i4")
balance = np.zeros(1)
locks.Lock_all()
window.Lock_all()
for _ in range(3):
    old[0] = 1
    while old[0] != 0:
        locks.Compare_and_swap(one, zero, old, 0)
        locks.Flush(0)
    window.Get(balance, 0)
    window.Flush(0)
    balance += 1
    window.Put(balance, 0)
    window.Flush(0)
    locks.Accumulate(zero, 0, op=MPI.REPLACE)
    locks.Flush(0)
window.Unlock_all()
locks.Unlock_all()
comm.Barrier()
assert rank > 0 or memory[0] == 9.0
locks.Free()
window.Free()
