"""Where a tensor comes from is one number on all ranks of a correct program, and in words where ranks do otherwise."""

from __future__ import annotations

import random
from contextlib import nullcontext

import numpy as np
import pytest

from spmdsim import Mesh, Tensor, matmul, ops, record

pytest.importorskip("mpi4py")

#: Functions of two square tensors.
PAIRS = (
    matmul,
    ops.multiply,
    ops.add,
    lambda a, b: a.T + b,
    lambda a, b: ops.relu(a) * 2 - b,
    lambda a, b: matmul(a, ops.sum(b, 0, keepdims=True).T) * b,
    lambda a, b: (a * b)[:, :1] + a,
)


def random_mesh(draw: random.Random, ranks: int) -> Mesh:
    """Return a mesh of some of the ranks, in any order, with one axis of size 1 at least."""
    size = draw.randint(1, ranks)
    shape = draw.sample([size, 1, *[1] * draw.randrange(2)], k=2)
    shape = shape if size in shape else [size, *shape]
    return Mesh(tuple(shape), tuple("abc"[: len(shape)]), draw.sample(range(ranks), size))


@pytest.mark.mpi
@pytest.mark.ranks(2, 3, 4)
def test_values_and_gradients_have_one_provenance_on_all_ranks(world):
    outside = 0
    for seed in range(40):
        draw = random.Random(seed * 8 + world.size)
        mesh = random_mesh(draw, world.size)
        dims = [[], []]
        for axis in mesh.axes:
            draw.choice([*dims, []]).append(axis)
        x = Tensor.from_global(np.ones((4, 4)), mesh(*map(tuple, dims)), world, requires_grad=True)
        values = [x]
        # A trace takes another way through the code, which must lead to the same numbers.
        with record() if seed % 3 == 0 and 0 in world.ranks else nullcontext():
            for _ in range(draw.randint(1, 4)):
                a, b = draw.choices(values[-2:], k=2)
                values.append(draw.choice(PAIRS)(a, b))
            ops.sum(values[-1]).backward()
        origins = [value.origin for value in (*values, x.grad)]
        assert 0 not in origins
        assert all(other == origins for other in world.gather_objects([origins])), (seed, mesh)
        x.grad.full()
        outside += mesh.size < world.size
    assert outside >= 10
