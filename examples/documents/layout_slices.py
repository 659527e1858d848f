"""Slices of a tensor on each rank, as MindSpore's document derives them. Only the import lines differ.

spmdsim launch -n 8 examples/documents/layout_slices.py
python examples/documents/layout_slices.py --lockstep
"""

import sys

import numpy as np

from spmdsim.dialects.mindspore import Layout, ops
from spmdsim.dialects.mindspore.communication import get_rank

X = np.arange(8, dtype=np.float32).reshape(1, 2, 1, 2, 2)

layout = Layout((2, 1, 2, 2, 1), ("a", "b", "c", "d", "e"))
full = (layout("b", "d", "e", "c", "a"),)
layout = Layout((4, 1, 1, 2, 1), ("a", "b", "c", "d", "e"))
four = (layout("b", "d", "e", "a"),)
layout = Layout((2, 1, 2, 2, 1), ("a", "b", "c", "d", "e"))
copies = (layout("b", "e", "c", "a"),)
CASES = (full, four, copies)


def main():
    """Print the number of each rank's slice in three layouts, and this rank's slice of the first operator's result.

    Return the shard numbers per layout and rank, and the results of three operators.
    """
    numbers = [[strategy.shard_index(rank) for rank in range(8)] for (strategy,) in CASES]
    if get_rank() == 0:
        for row in numbers:
            print("slice of each rank:", *row)
    results = []
    for in_strategy in (full, ((2, 1, 2, 2, 1),), ((2, 1, 1, 2, 1),)):
        x = X if in_strategy is full else X.reshape(2, 1, 2, 2, 1)
        results.append(ops.ReLU().shard(in_strategy)(x))
    print(f"rank {get_rank()} holds {results[0].local().ravel()}")
    return numbers, results


if __name__ == "__main__":
    if "--lockstep" in sys.argv:
        from spmdsim import LockStep
        from spmdsim.dialects.session import use_world

        with use_world(LockStep(8)):
            main()
    else:
        main()
