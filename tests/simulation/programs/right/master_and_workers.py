# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    status, total = MPI.Status(), 0
    for task in range(8):
        total += comm.recv(status=status)
        comm.send(task, status.source)
    for _ in range(comm.size - 1):
        total += comm.recv(status=status)
        comm.send(None, status.source)
    print(total)
else:
    result = 0
    while True:
        comm.send(result, 0)
        task = comm.recv(source=0)
        if task is None:
            break
        result = task
