"""Lab 5: Partial sums and two-dimensional SBP

python lab5.py                             8 ranks in lock step, no MPI
mpirun -n 8 python lab5.py                 real ranks (or: spmdsim launch -n 8 lab5.py)
spmdsim labs check 5 --task NAME --hint 1  a hint; 2 and 3 say more
"""

# Per axis of the mesh a matrix is in one of four states: `S(0)`, rows split; `S(1)`, columns split;
# `B`, copies (broadcast); `P`, every rank has an addend of all of it (partial sum). Axes do not
# know of one another: on a mesh of two axes a tensor has a pair of states, one per axis.

from spmdsim import Mesh, matmul, ops

#     import numpy as np
#
#     from spmdsim import Tensor
#
#     mesh = Mesh((2, 4), ("a", "b"))
#     x = Tensor.from_global(np.ones((8, 8), np.float32), mesh("a", "b"))    # S(0) over a, S(1) over b
#     w = Tensor.from_global(np.ones((8, 8), np.float32), mesh("b", None))   # B over a, S(0) over b
#     print(matmul(x, w))                                                    # S(0) over a, P over b

# ## What a product leaves
#
# *product, 4 points*
#
# `x` and `w` are states of the operands of `x @ w` over one axis, as texts `"S(0)"`, `"S(1)"`,
# `"B"` or `"P"`. Return the state of the result, if nothing is communicated, or `None` if these two
# do not fit together.


def product(x, w):
    raise NotImplementedError


# ## Two axes
#
# *product_2d, 2 points*
#
# The same for two axes: `x` and `w` are pairs of states, the first for axis `a`, the second for
# `b`. Return a pair, or `None` if one of the axes does not fit.


def product_2d(x, w):
    raise NotImplementedError


# ## Late is cheap
#
# *chain, 3 points*
#
# `x` (16 x 64) is split by columns and `w` (64 x 64) by rows over the axis `r` of eight ranks, and
# `v` (64 x 8) has copies. Return `x @ w @ v` whole on every rank. A point for the value, two if no
# rank receives more than is needed.


def chain(x, w, v):
    raise NotImplementedError


# ## Not everything is linear
#
# *activation, 3 points*
#
# With the same `x` and `w`, return `relu(x @ w)` with its rows split over `r`. A point for the
# value, one for the layout, one if no rank receives more than it must.


def activation(x, w):
    raise NotImplementedError


if __name__ == "__main__":
    from spmdsim.labs import grade

    raise SystemExit(grade(5, globals()))
