"""Translate a program for jax.shard_map line by line: the comment above a line is the line for JAX.

The program is a layer of a network: activations are split by batch, the weights by columns and then by rows.

mpirun -n 4 python examples/arrays/shard_map.py       python examples/arrays/shard_map.py (four ranks in lock step)
"""

# import jax, jax.numpy as np;  from jax.lax import axis_index, psum, psum_scatter, pmean, ppermute, all_gather
import numpy as np

from spmdsim import Mesh, Tensor, local_map, record, world
from spmdsim.local import all_gather, axis_index, pmean, ppermute, psum_scatter

w = world(4)
speaks = w.rank == 0
# mesh = jax.make_mesh((2, 2), ("dp", "tp"))
mesh = Mesh((2, 2), ("dp", "tp"))


# @jax.shard_map(mesh=mesh, in_specs=(P("dp", "tp"), P(None, "tp"), P("tp", None)), out_specs=(P("dp", "tp"), P(), P("tp")))
@local_map(
    in_layouts=(mesh("dp", "tp"), mesh(None, "tp"), mesh("tp", None)),
    out_layouts=(mesh("dp", "tp"), mesh(), mesh("tp")),
)
def layer(x, up, down):
    """Compute a layer, its loss and a value of the left neighbour."""
    # x = all_gather(x, "tp", axis=1, tiled=True)
    x = all_gather(x, "tp", axis=1, tiled=True)
    # hidden = np.maximum(x @ up, 0)
    hidden = np.maximum(x @ up, 0)
    # y = psum_scatter(hidden @ down, "tp", scatter_dimension=1, tiled=True)
    y = psum_scatter(hidden @ down, "tp", scatter_dimension=1, tiled=True)
    # loss = pmean((y**2).mean(), ("dp", "tp"))
    loss = pmean((y**2).mean(), ("dp", "tp"))
    # from_left = ppermute(axis_index("tp") * np.ones(1), "tp", [(0, 1), (1, 0)])
    from_left = ppermute(axis_index("tp") * np.ones(1), "tp", [(0, 1), (1, 0)])
    # return y, loss, from_left
    return y, loss, from_left


rng = np.random.default_rng(0)
a, b, c = (rng.integers(-4, 5, shape).astype(float) for shape in ((8, 6), (6, 10), (10, 4)))
with record() as trace:
    # y, loss, from_left = layer(a, b, c)
    y, loss, from_left = layer(
        Tensor.from_global(a, mesh("dp", "tp")),
        Tensor.from_global(b, mesh(None, "tp")),
        Tensor.from_global(c, mesh("tp", None)),
    )

expected = np.maximum(a @ b, 0) @ c
np.testing.assert_array_equal(y.full(), expected)
np.testing.assert_allclose(loss.full(), (expected**2).mean(), rtol=1e-14)
np.testing.assert_array_equal(from_left.full(), [1, 0])
if speaks:
    print("shard_map: a layer on 2 x 2 ranks, as numpy has it on one")
    print(f"    {trace.counts()}, {trace.nbytes(0):,} bytes received by rank 0")
