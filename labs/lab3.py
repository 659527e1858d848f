"""Lab 3: Matrix products on grids of ranks

python lab3.py                             8 ranks in lock step, no MPI
mpirun -n 8 python lab3.py                 real ranks (or: spmdsim launch -n 8 lab3.py)
spmdsim labs check 3 --task NAME --hint 1  a hint; 2 and 3 say more
"""

# `Z = X W` with `X` of `m x k` and `W` of `k x n`. Each rank multiplies the pieces it has. Whoever
# splits `m` or `n` gets pieces of `Z`; whoever splits `k` gets addends of all of `Z`, a sum that is
# pending until a collective finishes it.

from spmdsim import Mesh, Tensor, matmul, record

mesh = Mesh((2, 4), ("dp", "tp"))

#     import numpy as np
#
#     x = Tensor.from_global(np.ones((8, 8), np.float32), mesh("dp", "tp"))
#     w = Tensor.from_global(np.ones((8, 8), np.float32), mesh("tp", None))
#     with record() as trace:
#         y = matmul(x, w)
#     print(y, trace.counts())  # nothing was sent; P(sum) says what is missing

# ## A product without a message
#
# *no_communication, 3 points*
#
# Return layouts of `X` and `W` on the given mesh with axes `dp` and `tp`, with which the product
# needs no communication at all and every rank computes a different piece of a finished `Z`. A third
# point if no rank holds more of `X` and `W` together than it must. On the given mesh of 2 x 4, `X`
# is 32 x 16 and `W` is 16 x 32.


def no_communication(mesh):
    raise NotImplementedError


# ## Finish a pending sum
#
# *contraction, 2 points*
#
# `x` is split along `k`, its columns, and `w` along `k`, its rows, over the axis `r` of eight
# ranks. Return their product with its rows split over `r`; no rank may receive more than is needed.


def contraction(x, w):
    raise NotImplementedError


# ## What a grid moves
#
# *words, 2 points*
#
# On a grid of `pm x pk x pn` ranks, `m`, `k` and `n` are split along its three axes. `X`, `W` and
# `Z` start and end evenly spread over all ranks, so a rank has `1/p` of each: it receives the rest
# of its block of `X`, the rest of its block of `W`, and the addends of its share of `Z`. Return the
# words that a rank receives.


def words(m, k, n, grid):
    pm, pk, pn = grid
    raise NotImplementedError


# ## Which grid?
#
# *best_grid, 3 points*
#
# Return the grid `(pm, pk, pn)` of exactly `ranks` ranks on which a rank receives fewest words, for
# matrices of any shape: long and flat, flat and long, or cubes. Any of several best ones will do.


def best_grid(m, k, n, ranks):
    raise NotImplementedError


if __name__ == "__main__":
    from spmdsim.labs import grade

    raise SystemExit(grade(3, globals()))
