# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Lock_all()
data = np.full(1, float(rank))
request = window.Rput(data, (rank + 1) % size)
request.Wait()
data[0] = -1.0
window.Flush_all()
comm.Barrier()
results = np.zeros((size, 1))
MPI.Request.Waitall([window.Rget(results[target], target) for target in range(size)])
assert results[:, 0].tolist() == [2.0, 0.0, 1.0]
comm.Barrier()
window.Raccumulate(np.ones(1), 0).Wait()
window.Raccumulate(np.ones(1), 0, 3).Wait()
window.Rget_accumulate(np.ones(1), np.zeros(1), 0, 3).Wait()
window.Unlock_all()
window.Free()
