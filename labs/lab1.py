"""Lab 1: Where does my tensor live?

python lab1.py                             8 ranks in lock step, no MPI
mpirun -n 8 python lab1.py                 real ranks (or: spmdsim launch -n 8 lab1.py)
spmdsim labs check 1 --task NAME --hint 1  a hint; 2 and 3 say more
"""

# Eight ranks stand in a mesh, a grid with named axes. A layout says for each dim of a tensor along
# which axes of the mesh it is cut. An axis that no dim names holds copies. Every rank derives from
# the layout alone which piece of the tensor is its own.

from spmdsim import Mesh

mesh = Mesh((2, 4), ("dp", "tp"))  # ranks 0 to 3 in the first row, 4 to 7 in the second

#     from spmdsim import show
#
#     show(mesh("dp", "tp"), (4, 8))     # rows over dp, columns over tp
#     show(mesh(None, "tp"), (4, 8))     # columns over tp; the rows of the mesh hold copies
#     show(mesh(("dp", "tp"), None), (8, 3))  # rows over both axes, dp first

# ## Say it as a layout
#
# *layouts, 3 points*
#
# Return three layouts of a matrix on the given mesh, which has axes `dp` and `tp`:
#
# 1. rows over `tp`, and copies along `dp`;
# 2. columns over `dp`, rows over `tp`;
# 3. columns over all ranks, such that neighbours in a row of the mesh (along `tp`) have
#    neighbouring columns.


def layouts(mesh):
    raise NotImplementedError


# ## Cut what does not divide
#
# *block, 3 points*
#
# `size` elements are cut into `parts` blocks, in order. Blocks differ by one element at most, and
# the longer ones come first. Return `(start, stop)` of block number `index`.


def block(size, parts, index):
    raise NotImplementedError


# ## Who has this element?
#
# *owners, 2 points*
#
# Return the set of all ranks that hold the element at `place` of a matrix with this shape and
# layout. `layout.bounds(shape, rank)` gives `((row_start, row_stop), (column_start, column_stop))`,
# `layout.mesh.rank_list` all ranks.


def owners(layout, shape, place):
    raise NotImplementedError


# ## How much memory does it take?
#
# *most_bytes, 2 points*
#
# Return the bytes of the largest piece that any rank holds, for elements of `itemsize` bytes.


def most_bytes(layout, shape, itemsize):
    raise NotImplementedError


if __name__ == "__main__":
    from spmdsim.labs import grade

    raise SystemExit(grade(1, globals()))
