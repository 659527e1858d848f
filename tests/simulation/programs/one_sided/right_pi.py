# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

steps = np.full(1, 100, "i4")
pi, count = np.zeros(1), np.zeros(1, "i4")
window_count = MPI.Win.Create(steps if rank == 0 else None, 4, comm=comm)
window_pi = MPI.Win.Create(pi if rank == 0 else None, 8, comm=comm)
window_count.Fence()
if rank == 0:
    count[0] = steps[0]
else:
    window_count.Get(count, 0)
window_count.Fence()
points = (np.arange(rank, count[0], size) + 0.5) / count[0]
window_pi.Fence()
window_pi.Accumulate(np.full(1, (4 / (1 + points**2)).sum() / count[0]), 0)
window_pi.Fence()
assert rank > 0 or abs(pi[0] - np.pi) < 1e-3
window_pi.Free()
window_count.Free()
window.Free()
