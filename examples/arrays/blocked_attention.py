"""Compute causal attention over a split sequence: blocks of keys and values go around a ring; no rank has all scores.

mpirun -n 4 python examples/arrays/blocked_attention.py       python examples/arrays/blocked_attention.py (lock step)
"""

import numpy as np

from spmdsim import Mesh, Tensor, local_map, record, world
from spmdsim.local import axis_rank, axis_size, ppermute

HEADS, LENGTH, WIDTH = 2, 64, 8
w = world(4)
speaks = w.rank == 0
split = Mesh((4,), ("sp",))(None, "sp", None)


@local_map(in_layouts=split, out_layouts=split, flops=lambda q, k, v: 4 * HEADS * q[1] * LENGTH * WIDTH)
def attention(q, k, v):
    """Compute causal attention of the own queries, while blocks of keys and values pass all ranks."""
    me, ranks, block = axis_rank("sp"), axis_size("sp"), q.shape[1]
    ring = [(i, (i + 1) % ranks) for i in range(ranks)]
    queries = me * block + np.arange(block)
    top = np.full((HEADS, block, 1), -np.inf)  # the largest score so far; sums are relative to it
    weights, values = np.zeros((HEADS, block, 1)), np.zeros_like(q)
    for turn in range(ranks):
        keys = (me - turn) % ranks * block + np.arange(block)
        masked = queries[:, None] < keys
        if not masked.all():
            scores = np.where(masked, -np.inf, q @ k.swapaxes(1, 2) / np.sqrt(WIDTH))
            higher = np.maximum(top, scores.max(-1, keepdims=True))
            weights_of_block, rescale = np.exp(scores - higher), np.exp(top - higher)
            weights, values, top = (
                rescale * weights + weights_of_block.sum(-1, keepdims=True),
                rescale * values + weights_of_block @ v,
                higher,
            )
        if turn < ranks - 1:
            k, v = ppermute(k, "sp", ring), ppermute(v, "sp", ring)
    return values / weights


q, k, v = np.random.default_rng(0).normal(size=(3, HEADS, LENGTH, WIDTH))
with record() as trace:
    y = attention(*[Tensor.from_global(x, split) for x in (q, k, v)])

scores = np.where(np.tri(LENGTH, dtype=bool), q @ k.swapaxes(1, 2) / np.sqrt(WIDTH), -np.inf)
expected_weights = np.exp(scores - scores.max(-1, keepdims=True))
error = np.abs(y.full() - expected_weights @ v / expected_weights.sum(-1, keepdims=True)).max()
assert error < 1e-14, error
if speaks:
    print(f"attention: {LENGTH} positions in 4 blocks, as numpy's softmax")
    print(f"    {trace.counts()}, {trace.nbytes(0):,} bytes received by rank 0")
