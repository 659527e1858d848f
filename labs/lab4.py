"""Lab 4: Column, row and vocabulary parallel layers

python lab4.py                             8 ranks in lock step, no MPI
mpirun -n 8 python lab4.py                 real ranks (or: spmdsim launch -n 8 lab4.py)
spmdsim labs check 4 --task NAME --hint 1  a hint; 2 and 3 say more
"""

# The layers of a transformer are products with weights `W` of `inputs x outputs`: `y = x W + b`.
# Megatron splits `W` over the axis `tp`, by columns or by rows. The layouts alone decide what is
# sent. `Tensor.from_global(array, layout)` creates a tensor from a NumPy array, and `y.to(layout)`
# returns a tensor `y` in another layout.

from spmdsim import Mesh, Tensor, matmul, ops

mesh = Mesh((8,), ("tp",))

# Uncomment these lines to see examples:
#
# import numpy as np
#
# from spmdsim import embedding, record
#
# ids = Tensor.from_global(np.array([3, 0, 7, 7]), mesh(None))
# table = Tensor.from_global(np.eye(8, 4, dtype=np.float32), mesh("tp", None))
# with record() as trace:
#     rows = embedding(ids, table)
# # Each rank looks up the ids of its shard, and other ids give zeros. So a sum is pending: P(sum).
# print(rows, trace.counts())

# ## By columns
#
# *column, 2 points*
#
# Return the layouts of `x` (`batch x inputs`), `W` (`inputs x outputs`) and `b` (`outputs`). Every
# rank owns an eighth of `W` and of `b`, and `x W + b` needs no communication.


def column(mesh):
    raise NotImplementedError


# ## By rows
#
# *row, 2 points*
#
# Now `W` is split by rows. Return the layouts of `x` and `W`. Every rank owns an eighth of `x` and
# an eighth of `W`. The product sends nothing and leaves a sum pending over `tp`.


def row(mesh):
    raise NotImplementedError


# ## Two layers, one all_reduce
#
# *mlp, 3 points*
#
# `x` is replicated on every rank. The weights and `b1` are NumPy arrays. Return `relu(x W1 + b1)
# W2`, replicated on every rank. The functions are `matmul`, `ops.add` and `ops.relu`. You get a
# point for the values, a point if each rank owns an eighth of `W1` and `W2`, and a point if the
# only collective is one all_reduce.


def mlp(x, w1, b1, w2):
    mesh = x.layout.mesh
    raise NotImplementedError


# ## A loss of split logits
#
# *loss, 3 points*
#
# `h` (`tokens x width`) is replicated on every rank. `table` (`words x width`) is split by rows
# over `tp`. `labels` are ids of words. The logits are `h table^T`. Return
# `ops.cross_entropy(logits, labels)`. You get a point for the value, and two points if each rank
# receives only a few numbers per token.


def loss(h, table, labels):
    raise NotImplementedError


if __name__ == "__main__":
    from spmdsim.labs import grade

    raise SystemExit(grade(4, globals()))
