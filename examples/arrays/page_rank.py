"""Compute PageRank: a function of local arrays multiplies each rank's rows of a scipy.sparse matrix (pip install scipy).

mpirun -n 4 python examples/arrays/page_rank.py       python examples/arrays/page_rank.py (four ranks in lock step)
"""

import numpy as np
import scipy.sparse

from spmdsim import Mesh, Tensor, local_map, ops, record, world
from spmdsim.local import axis_rank

PAGES, LINKS, DAMPING, STEPS = 1003, 8000, 0.85, 30
w = world(4)
speaks = w.rank == 0
mesh = Mesh((4,), ("rows",))
rows = mesh("rows")

rng = np.random.default_rng(0)
links = scipy.sparse.coo_array((np.ones(LINKS), rng.integers(PAGES, size=(2, LINKS))), (PAGES, PAGES)).tocsc()
out = np.maximum(links.sum(axis=0), 1)
matrix = scipy.sparse.csr_array(links / out)  # entry (i, j): the fraction of j's rank that goes to i

# Each rank keeps the rows of the matrix that the layout of the result gives it.
shards = {rank: matrix[slice(*rows.bounds((PAGES,), rank)[0])] for rank in w.ranks}


@local_map(in_layouts=mesh(None), out_layouts=rows, shape=(PAGES,), flops=2 * LINKS // 4)
def multiply(rank):
    """Multiply the own rows of the matrix by the vector."""
    return shards[axis_rank("rows")] @ rank


rank = Tensor.from_global(np.full(PAGES, 1 / PAGES), rows)
with record() as trace:
    for _ in range(STEPS):
        rank = DAMPING * multiply(rank)
        # All pages share what damping and pages without links take from the sum of 1.
        rank = rank + (1.0 - ops.sum(rank)) / PAGES

expected = np.full(PAGES, 1 / PAGES)
for _ in range(STEPS):
    expected = DAMPING * (matrix @ expected)
    expected += (1 - expected.sum()) / PAGES
error = np.abs(rank.full() - expected).max()
assert error < 1e-14, error
if speaks:
    print(f"page rank: {STEPS} steps on {PAGES} pages, as scipy's product")
    print(f"    {trace.counts()}, {trace.nbytes(0) // STEPS:,} bytes per step received by rank 0")
