"""Lab 7: From data parallelism to ZeRO

python lab7.py                             8 ranks in lock step, no MPI
mpirun -n 8 python lab7.py                 real ranks (or: spmdsim launch -n 8 lab7.py)
spmdsim labs check 7 --task NAME --hint 1  a hint; 2 and 3 say more
"""

# A training step of `y = x W`: the loss is a mean over the batch, its gradient goes back to `W`,
# and an optimiser updates `W`. Nothing of that mentions ranks: where the batch is split, the
# gradient of `W` is a sum that is pending over the batch's axis, and layouts say who finishes it.

from spmdsim import Mesh
from spmdsim.nn import Adam, sharded_over

mesh = Mesh((8,), ("dp",))

#     import numpy as np
#
#     from spmdsim import Tensor, matmul, record
#
#     x = Tensor.from_global(np.ones((32, 16), np.float32), mesh("dp", None))
#     w = Tensor.from_global(np.ones((16, 8), np.float32), mesh(None, None))
#     w.requires_grad = True
#     with record() as trace:
#         matmul(x, w).sum().backward()
#     print(w.grad, trace.counts())  # the gradient was pending over dp

# ## Data parallelism
#
# *data_parallel, 2 points*
#
# Return the layouts of `x` (32 x 16) and `W` (16 x 8) for data parallelism: every rank works on
# other rows of the batch, and the gradient of `W` is finished on all ranks by one all_reduce.


def data_parallel(mesh):
    raise NotImplementedError


# ## Weights in pieces
#
# *fully_sharded, 2 points*
#
# Return the layouts of `x` and `W` for fully sharded training: the batch is split as before, a rank
# keeps an eighth of `W`'s rows, which are gathered when they are used, and its eighth of the
# finished gradient.


def fully_sharded(mesh):
    raise NotImplementedError


# ## ZeRO
#
# *optimiser, 3 points*
#
# Return an `Adam` with this rate for these parameters, of which every rank keeps an eighth of the
# state and updates an eighth of each parameter; the parameters themselves stay whole. A rank needs
# no more of a gradient than the eighth that it updates: one reduce_scatter brings it there, and one
# all_gather what was updated to all, which together are the bytes of an all_reduce.


def optimiser(parameters, rate):
    raise NotImplementedError


# ## What a rank keeps
#
# *memory, 4 points*
#
# `weights` numbers are trained by Adam on `ranks` ranks, all in float32: parameters, gradients, and
# two averages. Return the bytes that a rank keeps. At stage 0 all is whole; at stage 1 the averages
# are split over the ranks, at stage 2 the gradients, too, and at stage 3 the parameters as well.
# `ranks` divides `weights`.


def memory(weights, ranks, stage):
    raise NotImplementedError


if __name__ == "__main__":
    from spmdsim.labs import grade

    raise SystemExit(grade(7, globals()))
