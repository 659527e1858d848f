"""Lab 5: Partial sums and two-dimensional SBP

python lab5.py                             8 ranks in lock step, no MPI
mpirun -n 8 python lab5.py                 real ranks (or: spmdsim launch -n 8 lab5.py)
spmdsim labs check 5 --task NAME --hint 1  a hint; 2 and 3 say more
"""

# On each axis of the mesh a matrix has one of four states. Their initials give SBP its name:
#
# - `S(0)` (split): the axis splits its rows.
# - `S(1)` (split): the axis splits its columns.
# - `B` (broadcast): the ranks along the axis own replicas.
# - `P` (partial sum): each rank along the axis owns an addend of the matrix.
#
# The states of different axes are independent. On a mesh of two axes a matrix has a pair of states,
# one per axis. `y.to(layout)` returns a tensor `y` in another layout, and `y.layout.mesh` is its
# mesh.

from spmdsim import Mesh, matmul, ops

# Uncomment these lines to see examples:
#
# import numpy as np
#
# from spmdsim import Tensor
#
# mesh = Mesh((2, 4), ("a", "b"))
# x = Tensor.from_global(np.ones((8, 8), np.float32), mesh("a", "b"))    # S(0) over a, S(1) over b
# w = Tensor.from_global(np.ones((8, 8), np.float32), mesh("b", None))   # B over a, S(0) over b
# print(matmul(x, w))                                                    # S(0) over a, P over b

# ## The state of a product
#
# *product, 4 points*
#
# `x` and `w` are the states of the operands of `x @ w` on one axis, as texts `"S(0)"`, `"S(1)"`,
# `"B"` or `"P"`. Each rank multiplies what it owns of `x` by what it owns of `w`, without
# communication and without cutting a replica. Return the state of the result. Return `None` if the
# shapes do not fit, or if the products of the ranks are neither shards nor replicas nor addends of
# `x @ w`.


def product(x, w):
    raise NotImplementedError


# ## Two axes
#
# *product_2d, 2 points*
#
# Now `x` and `w` are pairs of states: the first for axis `a`, the second for axis `b`. Return the
# pair of states of the result. If the states do not fit on at least one axis, return `None` instead
# of a pair.


def product_2d(x, w):
    raise NotImplementedError


# ## Finish a sum late
#
# *chain, 3 points*
#
# The axis `r` of eight ranks splits `x` (16 x 64) by columns and `w` (64 x 64) by rows. `v` (64 x
# 8) is replicated. Return `x @ w @ v`, replicated on every rank. You get a point for the value, and
# two points if no rank receives more bytes than necessary.


def chain(x, w, v):
    raise NotImplementedError


# ## An operator that is not linear
#
# *activation, 3 points*
#
# Take `x` and `w` as in `chain`. Return `relu(x @ w)` with its rows split over `r`. You get a point
# for the value, a point for the layout, and a point if no rank receives more bytes than necessary.


def activation(x, w):
    raise NotImplementedError


if __name__ == "__main__":
    from spmdsim.labs import grade

    raise SystemExit(grade(5, globals()))
