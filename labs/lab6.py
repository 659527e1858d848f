"""Lab 6: Redistribution and its bound

python lab6.py                             8 ranks in lock step, no MPI
mpirun -n 8 python lab6.py                 real ranks (or: spmdsim launch -n 8 lab6.py)
spmdsim labs check 6 --task NAME --hint 1  a hint; 2 and 3 say more
"""

# `x.to(layout)` takes a tensor from one layout to any other. A rank has to receive what it will
# hold and does not hold yet. That is the lower bound; `plan(...)` says how it is reached, without
# moving anything.

from spmdsim import Mesh, plan

mesh = Mesh((2, 4), ("dp", "tp"))

#     from spmdsim import show
#
#     show(plan(mesh(("dp", "tp"), None), mesh(None, ("dp", "tp")), (8, 8), "float32"))

# ## What has to come
#
# *to_receive, 3 points*
#
# Return how many elements of a matrix a rank has to receive, at least, to get from the layout `src`
# to the layout `dst`. `layout.bounds(shape, rank)` gives `((row_start, row_stop), (column_start,
# column_stop))`.


def to_receive(src, dst, shape, rank):
    raise NotImplementedError


# ## Which layout is nearest?
#
# *nearest, 2 points*
#
# A reader can take a tensor in any of the layouts `targets`. Return the number (from 0) of the one
# for which the busiest rank receives fewest bytes; the first of several.


def nearest(src, targets, shape, dtype):
    raise NotImplementedError


# ## Finish and split at once
#
# *finish, 2 points*
#
# `y` has its rows split over `dp` and a sum pending over `tp`. Return it finished, with its rows
# split over both axes, `dp` first. No rank may receive more than it must.


def finish(y):
    raise NotImplementedError


# ## Two readers
#
# *two_readers, 3 points*
#
# `x` has its rows split over the axis `r` of eight ranks. Return `(columns, whole)`: the same
# tensor with its columns split over `r`, and whole on every rank. A point for each of the two, and
# one if no rank receives anything twice.


def two_readers(x):
    raise NotImplementedError


if __name__ == "__main__":
    from spmdsim.labs import grade

    raise SystemExit(grade(6, globals()))
