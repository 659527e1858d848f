"""Lab 6: Redistribution and its bound

python lab6.py                             8 ranks in lock step, no MPI
mpirun -n 8 python lab6.py                 real ranks (or: spmdsim launch -n 8 lab6.py)
spmdsim labs check 6 --task NAME --hint 1  a hint; 2 and 3 say more
"""

# `x.to(layout)` redistributes a tensor from its layout to another one. A rank must receive the
# elements of its new shard that it does not own yet. Their number is the lower bound. `plan(src,
# dst, shape, dtype)` returns the steps of a redistribution without sending anything. Its attribute
# `max_nbytes` has the bytes that the busiest rank receives, which is the rank that receives most.

from spmdsim import Mesh, plan

mesh = Mesh((2, 4), ("dp", "tp"))

# Uncomment these lines to see examples:
#
# from spmdsim import show
#
# show(plan(mesh(("dp", "tp"), None), mesh(None, ("dp", "tp")), (8, 8), "float32"))

# ## The lower bound
#
# *to_receive, 3 points*
#
# A matrix is redistributed from the layout `src` to the layout `dst`, and no sum is pending. Return
# the least number of elements that the rank with the number `rank` must receive.
# `layout.bounds(shape, rank)` is `((row_start, row_stop), (column_start, column_stop))`.


def to_receive(src, dst, shape, rank):
    raise NotImplementedError


# ## Which layout is nearest?
#
# *nearest, 2 points*
#
# A reader accepts a tensor in any of the layouts `targets`. Return the index of the target for
# which the busiest rank receives the fewest bytes. If several targets need equally few bytes,
# return the first one.


def nearest(src, targets, shape, dtype):
    raise NotImplementedError


# ## Finish and split at once
#
# *finish, 2 points*
#
# The rows of `y` are split over `dp`, and a sum is pending over `tp`. Return the finished tensor
# with its rows split over both axes, `dp` first. No rank may receive more bytes than necessary.


def finish(y):
    raise NotImplementedError


# ## Two readers
#
# *two_readers, 3 points*
#
# The rows of `x` are split over the axis `r` of eight ranks. The mesh of `x` is `x.layout.mesh`.
# Return two tensors with the values of `x`: `(columns, whole)`. The first has its columns split
# over `r`, and the second is replicated on every rank. You get a point for `columns`, then one for
# `whole`, and then one if no rank receives an element twice.


def two_readers(x):
    raise NotImplementedError


if __name__ == "__main__":
    from spmdsim.labs import grade

    raise SystemExit(grade(6, globals()))
