# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros(1)
send = comm.Send_init(np.ones(1), (comm.rank + 1) % comm.size)
receive = comm.Recv_init(data, (comm.rank - 1) % comm.size)
for _ in range(3):
    MPI.Prequest.Startall([receive, send])
    MPI.Request.Waitall([receive, send])
send.Free()
receive.Free()
