"""Lab 3: Matrix products on grids of ranks

python lab3.py                             8 ranks in lock step, no MPI
mpirun -n 8 python lab3.py                 real ranks (or: spmdsim launch -n 8 lab3.py)
spmdsim labs check 3 --task NAME --hint 1  a hint; 2 and 3 say more
"""

# This lab is about the product `Z = X W`, with `X` of `m x k` and `W` of `k x n`. Each rank
# multiplies its shards. If `m` or `n` is split, the results are blocks of `Z`. If `k` is split,
# each result is an addend of the complete `Z`: the sum is pending until a collective finishes it.

from spmdsim import Mesh, Tensor, matmul, record

mesh = Mesh((2, 4), ("dp", "tp"))

# Uncomment these lines to see examples:
#
# import numpy as np
#
# x = Tensor.from_global(np.ones((8, 8), np.float32), mesh("dp", "tp"))
# w = Tensor.from_global(np.ones((8, 8), np.float32), mesh("tp", None))
# with record() as trace:
#     y = matmul(x, w)
# print(y)               # S(0): dp splits dim 0; P(sum): a sum is pending over tp
# print(trace.counts())  # {}: no collective was called

# ## A product without a message
#
# *no_communication, 3 points*
#
# Return layouts of `X` and `W` on the given mesh with axes `dp` and `tp`. With them the product
# needs no communication, and every rank computes a different block of a finished `Z`. You get the
# third point if the shards of `X` and `W` together are as small as possible. The mesh is 2 x 4, `X`
# is 32 x 16 and `W` is 16 x 32.


def no_communication(mesh):
    raise NotImplementedError


# ## Finish a pending sum
#
# *contraction, 2 points*
#
# The axis `r` of eight ranks splits `k`: the columns of `x` and the rows of `w`. Return their
# product with its rows split over `r`. `y.to(layout)` returns a tensor `y` in another layout, and
# `x.layout.mesh` is the mesh. No rank may receive more bytes than necessary.


def contraction(x, w):
    raise NotImplementedError


# ## The words that a rank receives
#
# *words, 2 points*
#
# On a grid of `pm x pk x pn` ranks, `m`, `k` and `n` are split along its three axes. Before and
# after the product, `X`, `W` and `Z` are evenly split over all `p = pm pk pn` ranks, so a rank owns
# `1/p` of each. A rank receives:
#
# - the elements of its block of `X` that it does not own, and likewise of its block of `W`;
# - for its `1/p` of `Z`, the addends of other ranks. It computes one of the `pk` addends itself.
#
# Return the number of words (elements) that a rank receives.


def words(m, k, n, grid):
    pm, pk, pn = grid
    raise NotImplementedError


# ## Which grid?
#
# *best_grid, 3 points*
#
# Return the grid `(pm, pk, pn)` of exactly `ranks` ranks on which a rank receives the fewest words.
# The matrices can have any shape. If several grids are best, return any of them.


def best_grid(m, k, n, ranks):
    raise NotImplementedError


if __name__ == "__main__":
    from spmdsim.labs import grade

    raise SystemExit(grade(3, globals()))
