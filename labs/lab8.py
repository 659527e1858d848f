"""Lab 8: Find the strategy

python lab8.py                             8 ranks in lock step, no MPI
mpirun -n 8 python lab8.py                 real ranks (or: spmdsim launch -n 8 lab8.py)
spmdsim labs check 8 --task NAME --hint 1  a hint; 2 and 3 say more
"""

# Every operator of a network can be split in several ways, and between two operators a tensor may
# have to move. Who takes the cheapest strategy of each operator alone pays for it in between. On a
# chain the best choice is a shortest path.

from spmdsim import Mesh, search

mesh = Mesh((8,), ("r",))

#     result = search("mlp", mesh, layers=2, hidden=64, batch=64)
#     print(result)
#     print(result.strategy("fc0"))  # the factor that is split, and over which axis; fc0 calls its batch .0

# ## A chain, exactly
#
# *cheapest, 4 points*
#
# `costs[i][s]` are the seconds of operator `i` in its strategy `s`, `moves[i][s][t]` those of
# moving the tensor between operator `i` in strategy `s` and operator `i + 1` in strategy `t`.
# Return `(seconds, states)`: the least sum, and the strategy of each operator, as a list.
#
# Trying all combinations earns 3 of the 4 points. The last chain has 300 operators with six
# strategies each, which are more combinations than anybody can try: there, keep only what you need
# of the operators before.


def cheapest(costs, moves):
    raise NotImplementedError


# ## Batch or weights?
#
# *layouts, 3 points*
#
# `relu(x W1) W2` is trained, with `x` of `batch x width` and both weights of `width x width`. The
# result is wanted in whatever layout it comes out finished. Return layouts of `x`, `W1` and `W2` on
# the mesh of one axis `r`, such that every rank does an eighth of the products and the busiest one
# receives fewest bytes, forward and backward: once for a large batch, once for large weights.


def layouts(mesh, batch, width):
    raise NotImplementedError


# ## Ask the search
#
# *turning_point, 2 points*
#
# Return the smallest of these batches (they ascend) for which the exact search splits the batch
# (`".0:r"`) in the operator `fc0` of the built-in program `mlp` with two layers on the mesh; `None`
# if there is none. `hidden` is the width.


def turning_point(mesh, hidden, batches):
    raise NotImplementedError


if __name__ == "__main__":
    from spmdsim.labs import grade

    raise SystemExit(grade(8, globals()))
