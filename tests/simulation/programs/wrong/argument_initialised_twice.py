# expect: exception 4
from mpi4py import MPI

MPI.Init()
