"""Lab 4: Column, row and vocabulary parallel layers

python lab4.py                             8 ranks in lock step, no MPI
mpirun -n 8 python lab4.py                 real ranks (or: spmdsim launch -n 8 lab4.py)
spmdsim labs check 4 --task NAME --hint 1  a hint; 2 and 3 say more
"""

# A transformer's layers are products with weights `W` of `inputs x outputs`: `y = x W + b`.
# Megatron splits `W` over the axis `tp`, by columns or by rows. A layer has no communication of its
# own: layouts decide what is sent.

from spmdsim import Mesh, Tensor, matmul, ops

mesh = Mesh((8,), ("tp",))

#     import numpy as np
#
#     from spmdsim import embedding, record
#
#     ids = Tensor.from_global(np.array([3, 0, 7, 7]), mesh(None))
#     table = Tensor.from_global(np.eye(8, 4, dtype=np.float32), mesh("tp", None))
#     with record() as trace:
#         rows = embedding(ids, table)
#     print(rows, trace.counts())  # each rank looks up what it has, and has zeros for the rest

# ## By columns
#
# *column, 2 points*
#
# Return the layouts of `x` (`batch x inputs`), `W` (`inputs x outputs`) and `b` (`outputs`), such
# that every rank holds an eighth of `W` and of `b`, and `x W + b` needs no communication.


def column(mesh):
    raise NotImplementedError


# ## By rows
#
# *row, 2 points*
#
# Now `W` is split by rows. Return the layouts of `x` and `W`, such that every rank holds an eighth
# of each, and the product sends nothing and leaves a sum pending over `tp`.


def row(mesh):
    raise NotImplementedError


# ## Two layers, one all_reduce
#
# *mlp, 3 points*
#
# `x` is whole on every rank; the weights come as arrays of numpy. Return `relu(x W1 + b1) W2` whole
# on every rank. A point for the values, one for each rank holding an eighth of `W1` and `W2`, one
# for a single all_reduce and nothing else.


def mlp(x, w1, b1, w2):
    mesh = x.layout.mesh
    raise NotImplementedError


# ## A loss of split logits
#
# *loss, 3 points*
#
# `h` (`tokens x width`) is whole on every rank, `table` (`words x width`) is split by rows over
# `tp`, and `labels` are ids of words. Logits are `h table^T`. Return `ops.cross_entropy(logits,
# labels)`. A point for the value, two if nobody receives more than a few numbers per token.


def loss(h, table, labels):
    raise NotImplementedError


if __name__ == "__main__":
    from spmdsim.labs import grade

    raise SystemExit(grade(4, globals()))
