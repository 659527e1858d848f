"""Lab 7: From data parallelism to ZeRO

python lab7.py                             8 ranks in lock step, no MPI
mpirun -n 8 python lab7.py                 real ranks (or: spmdsim launch -n 8 lab7.py)
spmdsim labs check 7 --task NAME --hint 1  a hint; 2 and 3 say more
"""

# A training step computes `y = x W` and a loss, which is a sum or a mean over the batch. An
# optimiser updates `W` by the gradient of the loss. If an axis splits the batch, the gradient of
# `W` is a sum that is pending over this axis. The layouts decide which collective finishes the sum.

from spmdsim import Mesh
from spmdsim.nn import Adam, sharded_over

mesh = Mesh((8,), ("dp",))

# Uncomment these lines to see examples:
#
# import numpy as np
#
# from spmdsim import Tensor, matmul, record
#
# x = Tensor.from_global(np.ones((32, 16), np.float32), mesh("dp", None))
# w = Tensor.from_global(np.ones((16, 8), np.float32), mesh(None, None))
# w.requires_grad = True
# with record() as trace:
#     matmul(x, w).sum().backward()
# print(w.grad, trace.counts())  # one all_reduce over dp has finished the gradient

# ## Data parallelism
#
# *data_parallel, 2 points*
#
# Return the layouts of `x` (32 x 16) and `W` (16 x 8) for data parallelism. Each rank works on
# different rows of the batch. One all_reduce finishes the gradient of `W` on all ranks.


def data_parallel(mesh):
    raise NotImplementedError


# ## Split weights
#
# *fully_sharded, 2 points*
#
# Return the layouts of `x` and `W` for fully sharded training. The batch is split as in
# `data_parallel`. A rank owns an eighth of the rows of `W`, and the same eighth of the finished
# gradient. The product gathers the rows of `W`.


def fully_sharded(mesh):
    raise NotImplementedError


# ## ZeRO
#
# *optimiser, 3 points*
#
# Return an `Adam` with this rate for these parameters. Every rank owns an eighth of the optimiser's
# state, and updates an eighth of each parameter. The parameters stay replicated. A rank needs only
# the eighth of a gradient that it updates, so one reduce_scatter is enough. One all_gather then
# sends the updated parameters to all ranks. Both together need the bytes of an all_reduce.
# `help(Adam)` and `help(sharded_over)` show the arguments.


def optimiser(parameters, rate):
    raise NotImplementedError


# ## The memory of a rank
#
# *memory, 4 points*
#
# Adam trains `weights` numbers on `ranks` ranks. For each number there are four float32 values: the
# parameter, its gradient, and two averages. Return the bytes that a rank needs for its part of
# these values.
#
# - At stage 0 nothing is split.
# - At stage 1 the averages are split over the ranks.
# - At stage 2 the gradients are split, too.
# - At stage 3 the parameters are split, too.
#
# `ranks` divides `weights`.


def memory(weights, ranks, stage):
    raise NotImplementedError


if __name__ == "__main__":
    from spmdsim.labs import grade

    raise SystemExit(grade(7, globals()))
