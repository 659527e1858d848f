"""Lab 8: Find the strategy

python lab8.py                             8 ranks in lock step, no MPI
mpirun -n 8 python lab8.py                 real ranks (or: spmdsim launch -n 8 lab8.py)
spmdsim labs check 8 --task NAME --hint 1  a hint; 2 and 3 say more
"""

# A strategy states the axes that split the dims of one operator. Every operator of a network has
# several strategies. Between two operators a tensor may need a redistribution. The cheapest
# strategy of each operator alone can cause expensive redistributions. For a chain of operators the
# best choice is a shortest path.

from spmdsim import Mesh, search

mesh = Mesh((8,), ("r",))

# Uncomment these lines to see examples:
#
# result = search("mlp", mesh, layers=2, hidden=64, batch=64)
# print(result)
# print(result.strategy("fc0"))  # n:r: axis r splits n, the columns of the weights; .0:r splits the batch

# ## A chain, exactly
#
# *cheapest, 4 points*
#
# `costs[i][s]` has the seconds of operator `i` with its strategy `s`. `moves[i][s][t]` has the
# seconds of the redistribution between operator `i` with strategy `s` and operator `i + 1` with
# strategy `t`. Return `(seconds, states)`: the least sum of seconds, and the list with the strategy
# of each operator.
#
# Trying all combinations earns 3 of the 4 points. The last chain has 100 operators with six
# strategies each: too many combinations to try. For this chain, keep only the necessary facts about
# the operators before.


def cheapest(costs, moves):
    raise NotImplementedError


# ## Batch or weights?
#
# *layouts, 3 points*
#
# The network `relu(x W1) W2` is trained, with `x` of `batch x width` and both weights of `width x
# width`. The mesh has one axis, `r`. Return layouts of `x`, `W1` and `W2` with which the busiest
# rank receives the fewest bytes, forward and backward together. Every rank must do an eighth of the
# multiplications. A sum that is pending in the result is finished, and its bytes count. Your
# function is called once for a batch much larger than the width, and once for a width much larger
# than the batch.


def layouts(mesh, batch, width):
    raise NotImplementedError


# ## Run the search
#
# *turning_point, 2 points*
#
# The built-in program `mlp` has an operator `fc0`. Search for its strategies with two layers on the
# mesh, for each of the ascending `batches`. `hidden` is the width. Return the smallest batch for
# which the search splits the batch of `fc0`: then `str(result.strategy("fc0"))` is `".0:r"`, and
# the table of `print(result)` has `dim 0:r`. Return `None` if there is none.


def turning_point(mesh, hidden, batches):
    raise NotImplementedError


if __name__ == "__main__":
    from spmdsim.labs import grade

    raise SystemExit(grade(8, globals()))
