"""Lab 1: Where does my tensor live?

python lab1.py                             8 ranks in lock step, no MPI
mpirun -n 8 python lab1.py                 real ranks (or: spmdsim launch -n 8 lab1.py)
spmdsim labs check 1 --task NAME --hint 1  a hint; 2 and 3 say more
"""

# Eight ranks form a mesh: a grid with named axes. A layout states for each dim of a tensor which
# axes of the mesh split it. The block of the tensor that a rank owns is its shard. Ranks along an
# axis that splits no dim own equal shards, called replicas. Every rank derives its shard from the
# layout alone.

from spmdsim import Mesh

mesh = Mesh((2, 4), ("dp", "tp"))  # ranks 0 to 3 in the first row, 4 to 7 in the second

# Uncomment these lines to see examples:
#
# from spmdsim import show
#
# # The tables have a pair per rank: 4:0 means that rank 4 owns shard 0.
# show(mesh("dp", "tp"), (4, 8))     # rows over dp, columns over tp
# show(mesh(None, "tp"), (4, 8))     # columns over tp; the rows of the mesh own replicas
# show(mesh(("dp", "tp"), None), (8, 3))  # rows over both axes, dp first

# ## Write layouts
#
# *layouts, 3 points*
#
# Return three layouts of a matrix on the given mesh, which has axes `dp` and `tp`. A layout is
# written as in the examples above, `mesh(axis of the rows, axis of the columns)`:
#
# 1. rows split over `tp`, and replicas along `dp`;
# 2. columns split over `dp`, and rows over `tp`;
# 3. columns split over all ranks, such that neighbours in a row of the mesh (along `tp`) own
#    neighbouring columns.


def layouts(mesh):
    raise NotImplementedError


# ## Split a dim unevenly
#
# *block, 3 points*
#
# `size` elements are split into `parts` blocks, in order. The sizes of blocks differ by at most one
# element, and the longer blocks come first. Return `(start, stop)` of block number `index`.


def block(size, parts, index):
    raise NotImplementedError


# ## Which ranks own this element?
#
# *owners, 2 points*
#
# Return the set of all ranks that own the element at index `place` of a matrix with this shape and
# layout. `layout.bounds(shape, rank)` is `((row_start, row_stop), (column_start, column_stop))`.
# `layout.mesh.rank_list` has all ranks.


def owners(layout, shape, place):
    raise NotImplementedError


# ## How much memory does it take?
#
# *most_bytes, 2 points*
#
# Return the bytes of the largest shard of any rank, for elements of `itemsize` bytes.


def most_bytes(layout, shape, itemsize):
    raise NotImplementedError


if __name__ == "__main__":
    from spmdsim.labs import grade

    raise SystemExit(grade(1, globals()))
