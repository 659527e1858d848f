"""Sort numbers that exceed the memory of a rank: every rank gets its block of the sorted numbers; nothing is gathered.

spmdsim launch -n 8 examples/sample_sort.py     real ranks (or mpirun -n 8 python examples/sample_sort.py)
python examples/sample_sort.py                  eight ranks in lock step, no MPI
"""

import numpy as np

from spmdsim import Mesh, ShapeOnly, Tensor, ops, record, world

speaks = world(8).rank == 0  # under MPI every rank runs this program, and rank 0 prints
mesh = Mesh((8,), ("x",))
n = 100_003  # not a multiple of 8
# The numbers are n / 1, n / 2, n / 3, ... rounded down and shuffled, so that very many are equal.
numbers = n // (1 + np.arange(n) * 7919 % n) + 0.0
numbers[::1000] = np.nan

x = Tensor.from_global(numbers, mesh("x"))
with record() as trace:
    y = ops.sort(x)  # in the layout of x: each rank has its block

# The messages are predictable: samples depend on the sizes alone, and each element moves at most once.
with record() as predicted:
    ops.sort(Tensor.from_global(numbers, mesh("x"), ShapeOnly(8)))

expected = np.sort(numbers)
for rank, block in zip(y.world.ranks, y.shards):
    np.testing.assert_array_equal(block, expected[y.layout.slices(y.shape, rank)])

samples = [event.planned[0] for event in trace.collectives if event.collective == "all_to_all"]
if speaks:
    print("collectives:", trace.counts())
    print("samples and cuts:", f"{sum(samples):,} bytes received by rank 0")
    moved, most = trace.collectives[-1], 8 * trace.collectives[-1].step.most(0)
    print("elements fit the bound:", moved.nbytes[0] <= most, f"({most:,} bytes, its block)")
    print("predicted the same calls:", predicted.counts() == trace.counts())

# Compute the stable order, and the three largest numbers with their positions.
with record() as trace:
    order = ops.argsort(x, descending=True)
    largest, positions = ops.topk(Tensor.from_global(np.nan_to_num(numbers), mesh("x")), 3)
top = np.argsort(-np.nan_to_num(numbers), kind="stable")[:3]
np.testing.assert_array_equal(largest.full(), np.nan_to_num(numbers)[top])
np.testing.assert_array_equal(positions.full(), top)
backwards = n - 1 - np.argsort(numbers[::-1], kind="stable")[::-1]
np.testing.assert_array_equal(order.full(), backwards)

# Count how often each value occurs. Equal values are neighbours after the sort.
values, counts = ops.unique_counts(x)
unique = np.unique(numbers, return_counts=True, equal_nan=False)
np.testing.assert_array_equal(counts.full(), unique[1])
if speaks:
    print("the largest:", *largest.full(), "at", *positions.full())
    print(f"{values.shape[0]:,} different values, the first of them {int(unique[1][0]):,} times")
