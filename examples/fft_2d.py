"""Filter a field, split by rows, with a two-dimensional Fourier transform: one all_to_all forth and one back.

spmdsim launch -n 8 examples/fft_2d.py     real ranks (or mpirun -n 8 python examples/fft_2d.py)
python examples/fft_2d.py                  eight ranks in lock step, no MPI
"""

import numpy as np

from spmdsim import Mesh, ShapeOnly, Tensor, fft, ops, record, world

speaks = world(8).rank == 0  # under MPI every rank runs this program, and rank 0 prints
mesh = Mesh((8,), ("x",))
shape = (256, 128)
field = np.random.default_rng(0).normal(size=shape)


def smooth(x, height=shape[0], width=shape[1]):
    """Remove waves shorter than 16 cells.

    The spectrum stays split by columns. Only the result is redistributed to rows.
    """
    spectrum = fft.fft2(x)  # rows first, without communication; columns after one all_to_all
    down = fft.fftfreq(height, layout=mesh(None), world=x.world)
    along = fft.fftfreq(width, layout=mesh("x"), world=x.world)
    squares = ops.add(ops.reshape(ops.square(down), (height, 1)), ops.square(along))
    mask = ops.cast(ops.less(squares, 1 / 16**2), "float64")
    return fft.ifft2(spectrum * mask, layout=x.layout)


x = Tensor.from_global(field, mesh("x", None), requires_grad=True)
with record() as trace:
    y = smooth(x)

spectrum = np.fft.fft2(field)
squares = np.fft.fftfreq(shape[0])[:, None] ** 2 + np.fft.fftfreq(shape[1]) ** 2
expected = np.fft.ifft2(np.where(squares < 1 / 16**2, spectrum, 0))
for rank, rows in zip(y.world.ranks, y.shards):
    np.testing.assert_allclose(rows, expected[y.layout.slices(y.shape, rank)], atol=1e-12)

with record() as predicted:
    smooth(Tensor.from_global(field, mesh("x", None), ShapeOnly(8)))
if speaks:
    print("collectives:", trace.counts())
    print("received by rank 0:", f"{trace.nbytes(0):,} bytes; predicted {predicted.nbytes(0):,}")

# The gradient needs equal collectives, because the filter is its own transpose.
ops.sum(ops.square(ops.real(y))).backward()
if speaks:
    print("gradient lies as the field:", x.grad.layout == x.layout)
np.testing.assert_allclose(x.grad.full(), 2 * expected.real, atol=1e-11)

# The same filter on 4,096 ranks, with shapes only.
mesh, huge = Mesh((4096,), ("x",)), ShapeOnly(4096)
with record() as trace:
    wide = Tensor.from_global(lambda _: None, mesh("x", None), huge, shape=(1 << 16,) * 2, dtype="float32")
    smooth(wide, 1 << 16, 1 << 16)
if speaks:
    print("at 4,096 ranks:", trace.counts(), f"{trace.nbytes(0):,} bytes received by rank 0")
