"""Call nearly everything once, on integers only, so that every MPI prints equal lines."""

from typing import Any

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
lines = []


def show(name: str, value: Any) -> None:
    value = value.tolist() if isinstance(value, np.ndarray) else value
    lines.append(f"{rank} {name}: {value}")


x = np.arange(3, dtype="i") + 10 * rank
y = np.zeros(3, dtype="i")
for name in ("SUM", "PROD", "MAX", "MIN", "BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR"):
    comm.Allreduce(x, y, op=getattr(MPI, name))
    show(name, y)
comm.Reduce(x, y if rank == size - 1 else None, op=MPI.SUM, root=size - 1)
show("Reduce", y)
comm.Scan(x, y)
show("Scan", y)
z = np.full(3, -1, dtype="i")
comm.Exscan(x, z)
show("Exscan", z)
comm.Allreduce(MPI.IN_PLACE, y, op=MPI.MAX)
show("in place", y)

gathered = np.zeros((size, 3), dtype="i")
comm.Allgather(x, gathered)
show("Allgather", gathered)
comm.Alltoall(np.arange(size, dtype="i") + 100 * rank, swapped := np.zeros(size, dtype="i"))
show("Alltoall", swapped)
own_values = np.full(rank + 1, rank, dtype="i")
counts = [r + 1 for r in range(size)]
ragged = np.zeros(sum(counts), dtype="i")
comm.Allgatherv(own_values, [ragged, counts])
show("Allgatherv", ragged)
comm.Gatherv(own_values, [ragged, counts, None, MPI.INT] if rank == 0 else None, root=0)
scattered_block = np.zeros(rank + 1, dtype="i")
comm.Scatterv([ragged + 1, counts] if rank == 0 else None, scattered_block, root=0)
show("Scatterv", scattered_block)
send_counts = [(rank + r) % 3 for r in range(size)]
sent = np.arange(sum(send_counts), dtype="i") + 1000 * rank
received = np.zeros(sum(send_counts), dtype="i")
comm.Alltoallv([sent, send_counts], [received, send_counts])
show("Alltoallv", received)
reduced_block = np.zeros(2, dtype="i")
comm.Reduce_scatter_block(np.arange(2 * size, dtype="i") * (rank + 1), reduced_block)
show("Reduce_scatter_block", reduced_block)
uneven_block = np.zeros(rank + 1, dtype="i")
comm.Reduce_scatter(np.arange(sum(counts), dtype="i"), uneven_block, counts)
show("Reduce_scatter", uneven_block)
request = comm.Iallreduce(x, y, op=MPI.SUM)
request.Wait()
show("Iallreduce", y)

show("gather", comm.gather({"rank": rank}, root=0))
show("scatter", comm.scatter([[r, r * r] for r in range(size)] if rank == 0 else None))
show("alltoall", comm.alltoall([(rank, r) for r in range(size)]))
show("scan", comm.scan([rank]))
show("exscan", comm.exscan([rank]))
show("maxloc", comm.allreduce(((rank * 7) % 5, rank), op=MPI.MAXLOC))


def compose(inbuf: Any, inoutbuf: Any, datatype: Any) -> None:
    """Multiply 2×2 matrices, which do not commute: inoutbuf = inbuf · inoutbuf."""
    left = np.frombuffer(inbuf, dtype="q").reshape(2, 2)
    right = np.frombuffer(inoutbuf, dtype="q").reshape(2, 2)
    right[...] = left @ right


product = MPI.Op.Create(compose, commute=False)
matrix = np.array([[1, rank], [0, 2]], dtype="q")
result = np.zeros((2, 2), dtype="q")
comm.Allreduce(matrix, result, op=product)
show("matrices", result)
comm.Scan(matrix, result, op=product)
show("prefix matrices", result)
product.Free()

pair = np.zeros(1, dtype=np.dtype([("v", "d"), ("i", "i")], align=True))
pair["v"], pair["i"] = (rank * 3) % 4, rank
best = pair.copy()
comm.Allreduce([pair, MPI.DOUBLE_INT], [best, MPI.DOUBLE_INT], op=MPI.MINLOC)
show("MINLOC", (float(best["v"][0]), int(best["i"][0])))

split_comm = comm.Split(rank % 2, key=-rank)
show("Split", (split_comm.rank, split_comm.size, split_comm.allgather(rank)))
split_comm.Free()
group = comm.Get_group().Incl(list(range(0, size, 2)))
evens = comm.Create_group(group) if rank % 2 == 0 else MPI.COMM_NULL
show("Create_group", evens.allreduce(rank) if evens != MPI.COMM_NULL else None)
duplicate = comm.Dup()
show("Dup", MPI.Comm.Compare(comm, duplicate) == MPI.CONGRUENT)

status = MPI.Status()
right, left = (rank + 1) % size, (rank - 1) % size
show("sendrecv", comm.sendrecv({"from": rank}, dest=right, source=left, status=status))
show("status", (status.Get_source(), status.Get_tag()))
comm.Sendrecv_replace(x, dest=right, source=left)
show("Sendrecv_replace", x)
if rank == 0:
    for _ in range(size - 1):
        duplicate.Probe(source=MPI.ANY_SOURCE, tag=5, status=status)
        probed = np.zeros(status.Get_count(MPI.INT), dtype="i")
        duplicate.Recv(probed, source=status.Get_source(), tag=5)
        lines.append(f"0 probed {status.Get_source()}: {probed.tolist()}")
else:
    duplicate.Ssend(own_values, dest=0, tag=5)
outgoing = np.zeros(1, dtype="i")
incoming = np.zeros(1, dtype="i")
to_right = comm.Send_init(outgoing, right)
from_left = comm.Recv_init(incoming, left)
for turn in range(2):
    outgoing[0] = 10 * rank + turn
    MPI.Prequest.Startall([from_left, to_right])
    MPI.Request.Waitall([from_left, to_right])
    show("persistent", incoming)
to_right.Free()
from_left.Free()
send_request = comm.isend([rank], dest=right, tag=9)
receive_request = comm.irecv(source=left, tag=9)
show("irecv", receive_request.wait())
send_request.wait()
print("\n".join(lines) + "\n", end="")
