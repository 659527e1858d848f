# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

base, length, unit = window.attrs
assert (base, length, unit) == (memory.ctypes.data, 32, 8)
assert window.Get_attr(MPI.WIN_SIZE) == 32
assert (window.flavor, window.model) == (MPI.WIN_FLAVOR_CREATE, MPI.WIN_UNIFIED)
assert window.group_size == size and window.group_rank == rank
window.Set_name("numbers")
assert window.name == "numbers" and bool(window)
window.Free()
assert not window and window == MPI.WIN_NULL
