"""Multiply two matrices with layouts: one program for MPI, for a notebook, and without data.

spmdsim launch -n 8 examples/first_steps.py     real ranks (or mpirun -n 8 python examples/first_steps.py)
spmdsim simulate examples/first_steps.py -n 8   eight virtual ranks that send messages, no MPI
python examples/first_steps.py                  eight ranks in lock step, no MPI
"""

import numpy as np

from spmdsim import Mesh, ShapeOnly, Tensor, check, matmul, record, world

speaks = world(8).rank == 0  # under MPI every rank runs this program, and rank 0 prints

# Eight ranks in two rows of four. x: rows over dp, columns over tp. w: rows over tp.
mesh = Mesh((2, 4), ("dp", "tp"))
a = np.arange(32 * 12, dtype=np.float32).reshape(32, 12)
b = np.ones((12, 5), dtype=np.float32)
x = Tensor.from_global(a, mesh("dp", "tp"))
w = Tensor.from_global(b, mesh("tp", None))

with record() as trace:
    y = matmul(x, w)  # every rank multiplies its shards: the result is partial over tp
    z = y.to(mesh("dp", None))  # one all_reduce adds the partial sums

if speaks:
    print(y)
    print(
        "rank 0 holds",
        z.layout.bounds(z.shape, rank=0),
        "with",
        trace.counts(),
        trace.nbytes(0),
        "bytes received",
    )

verdict = check(z, np.matmul, operands=(a, b))
full_array = z.full()  # only this line gathers the tensor
if speaks:
    print(verdict)
    print("sum of all elements:", full_array.sum())

# The same program at 65,536 ranks, with shapes only.
huge = ShapeOnly(65536)
grid = Mesh((256, 256), ("dp", "tp"))
with record() as trace:
    x = Tensor.from_global(
        lambda index: None, grid("dp", "tp"), huge, shape=(1 << 20, 1 << 16), dtype="float32"
    )
    w = Tensor.from_global(
        lambda index: None, grid("tp", None), huge, shape=(1 << 16, 1 << 14), dtype="float32"
    )
    matmul(x, w).to(grid("dp", None))
if speaks:
    print("at 65,536 ranks:", trace.counts(), f"{trace.nbytes(0):,} bytes received by rank 0")
