# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
position = 0
memory = bytearray(100)
position = MPI.INT.Pack(np.zeros(4, "i4"), memory, position, comm)
comm.Bcast([memory, position, MPI.PACKED])
