# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
try:
    comm.send(1, comm.size)
except MPI.Exception as error:
    assert error.Get_error_class() == MPI.ERR_RANK
