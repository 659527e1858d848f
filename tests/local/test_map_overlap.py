"""Overlapping maps and convolution equal the padded full array in values, bytes and gradients.

Cases cover all boundaries, and several depths and layouts.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, ShapeOnly, Tensor, ops, record
from spmdsim.errors import RuleError
from spmdsim.local import map_overlap

PADDED = {
    "zero": "constant",
    "periodic": "wrap",
    "reflect": "reflect",
    "symmetric": "symmetric",
    "nearest": "edge",
}


def values(shape, seed=0):
    return np.random.default_rng([seed, *shape]).integers(-9, 9, shape).astype(float)


def tensor_of(array, layout, world, **options):
    return Tensor.from_global(array, layout, world, **options)


def weighted_sum(sides):
    """Return a function of blocks with ``sides`` added per dim, and its gradient.

    The function adds up neighbours, each with a different weight.
    """
    offsets = list(itertools.product(*[range(a + b + 1) for a, b in sides]))

    def windows(shape):
        inner = [n - a - b for n, (a, b) in zip(shape, sides)]
        return [tuple(slice(i, i + n) for i, n in zip(offset, inner)) for offset in offsets]

    def f(block):
        return sum((k + 1) * block[window] for k, window in enumerate(windows(block.shape)))

    def vjp(dy, blocks, y):
        gradient = np.zeros_like(blocks[0])
        for k, window in enumerate(windows(gradient.shape)):
            gradient[window] += (k + 1) * dy
        return gradient

    return f, vjp


def received_by(rank, layout, shape, sides, boundary):
    """Return how many elements of a rank's extended block lie in other ranks' blocks.

    Args:
        rank: The rank.
        layout: The layout of the blocks.
        shape: The global shape.
        sides: The added elements per dim, as pairs.
        boundary: The name of the boundary.
    """
    ids, bounds = np.arange(math.prod(shape)).reshape(shape), layout.bounds(shape, rank)
    if any(start == stop for start, stop in bounds):
        return 0
    needed = []
    for n, (start, stop), (before, after) in zip(shape, bounds, sides):
        pad_options = {"constant_values": -1} if boundary == "zero" else {}
        sources = np.pad(np.arange(n), (before, after), PADDED[boundary], **pad_options)
        needed_sources = sources[start : stop + before + after]
        # Each period is received separately.
        needed.append(needed_sources if boundary == "periodic" else sorted({*needed_sources} - {-1}))
    own_ids = set(ids[layout.slices(shape, rank)].flat)
    return sum(i not in own_ids for i in ids[np.ix_(*needed)].flat)


CASES = [
    ((13,), 1, ("x",)),
    ((13,), ((2, 0),), ("x",)),
    ((9,), 3, (("x", "y"),)),  # Shards of two elements are smaller than the depth.
    ((7, 9), 1, ("x", "y")),
    ((7, 9), (0, 2), ("x", "y")),
    ((7, 9), ((1, 2), (2, 1)), ("y", None)),
    ((6, 5, 4), 1, ("y", None, "x")),
]


@pytest.mark.ranks(4, 6)
@pytest.mark.parametrize("boundary", PADDED)
@pytest.mark.parametrize("shape, depth, axes", CASES)
def test_boundaries_equal_the_padded_array(shape, depth, axes, boundary, world):
    mesh = Mesh((2, world.size // 2), ("x", "y"))
    layout = mesh(*axes)
    pairs = [depth] * len(shape) if isinstance(depth, int) else depth
    sides = [(d, d) if isinstance(d, int) else d for d in pairs]
    f, vjp = weighted_sum(sides)
    a, dx, dy = (values(shape, seed) for seed in range(3))
    reference = lambda array: f(np.pad(array, sides, PADDED[boundary]))  # noqa: E731
    x = tensor_of(a, layout, world, requires_grad=True)
    with record() as trace:
        y = map_overlap(f, x, depth=tuple(pairs), boundary=boundary, vjp=vjp)
    assert y.layout == layout
    np.testing.assert_array_equal(y.full(), reference(a))
    for rank in world.ranks:
        assert trace.nbytes(rank) == 8 * received_by(rank, layout, shape, sides, boundary)
    y.backward(tensor_of(dy, layout, world))
    assert x.grad.layout == layout
    assert (x.grad.full() * dx).sum() == (dy * reference(dx)).sum()
    for value in (dy, dx):  # Compare the gradient along two more directions.
        assert (x.grad.full() * value).sum() == (dy * reference(value)).sum()


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("boundary", ["reflect", "symmetric"])
def test_mirrored_elements_may_be_further_inside_than_the_depth(boundary, world):
    """Values, gradients and bytes are right for all sizes up to 9 and all depths up to 3."""
    layout, cases = Mesh((world.size,), ("x",))("x"), 0
    sizes = range(1, 10) if len(world.ranks) > 1 else (4, 9)
    for size, lo, hi in itertools.product(sizes, range(4), range(4)):
        if max(lo, hi) > size - (boundary == "reflect"):
            continue
        (f, vjp), a, dy = weighted_sum([(lo, hi)]), values((size,)), values((size,), 1)
        x = tensor_of(a, layout, world, requires_grad=True)
        with record() as trace:
            y = map_overlap(f, x, depth=[(lo, hi)], boundary=boundary, vjp=vjp)
        np.testing.assert_array_equal(y.full(), f(np.pad(a, (lo, hi), PADDED[boundary])))
        for rank in world.ranks:
            assert trace.nbytes(rank) == 8 * received_by(rank, layout, (size,), [(lo, hi)], boundary)
        y.backward(tensor_of(dy, layout, world))
        slopes = [f(np.pad(unit, (lo, hi), PADDED[boundary])) for unit in np.eye(size)]
        np.testing.assert_array_equal(x.grad.full(), slopes @ dy)
        cases += 1
    assert cases >= 2 * 13


@pytest.mark.ranks(3)
def test_boundaries_may_be_absent_or_numbers(world):
    mesh = Mesh((3,), ("x",))
    a = values((10,))
    x = tensor_of(a, mesh("x"), world)
    same = map_overlap(lambda block: np.convolve(block, [1, 2, 4], "same"), x, depth=1)
    np.testing.assert_array_equal(same.full(), np.convolve(a, [1, 2, 4], "same"))
    for options in (
        {"boundary": 7},
        {"boundary": {0: 7.0}},
        {"boundary": [7]},
    ):
        y = map_overlap(lambda block: block[2:] + block[:-2], x, depth={0: 1}, **options)
        b = np.pad(a, 1, constant_values=7)
        np.testing.assert_array_equal(y.full(), b[2:] + b[:-2])
    difference = map_overlap(lambda p, q: p - q[::-1][::-1], x, x, depth=(2,))
    assert not difference.full().any()
    is_positive = map_overlap(lambda block: block > 0, x, depth=1, boundary="zero", dtype=bool)
    np.testing.assert_array_equal(is_positive.full(), a > 0)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("axes", [("x", None), (None, "x"), ("x", "y")])
def test_windows_with_numbers_around_share_one_copy(axes, world, monkeypatch):
    """Blocks are copied only once, and each result has its own numbers around the blocks."""
    mesh = Mesh((2, 2), ("x", "y")) if "y" in axes else Mesh((4,), ("x",))
    a = values((9, 8))
    x = tensor_of(a, mesh(*axes), world, requires_grad=True)
    if len(world.ranks) == 1:
        monkeypatch.setattr(
            "spmdsim.arrays.ops.windowed.take_buffer", lambda *_: pytest.fail("a second copy")
        )
    results = [
        map_overlap(lambda block: block[:-2, 2:], x, depth=1, boundary=number, vjp=_slice_vjp)
        for number in (3, 5)
    ]
    for y, number in zip(results, (3, 5)):
        np.testing.assert_array_equal(y.full(), np.pad(a, 1, constant_values=number)[:-2, 2:])
    results[0].sum().backward()
    expected = np.ones_like(a)
    expected[-1] = expected[:, 0] = 0
    np.testing.assert_array_equal(x.grad.full(), expected)


def _slice_vjp(dy, blocks, _):
    gradient = np.zeros_like(blocks[0])
    gradient[:-2, 2:] = dy
    return gradient


@pytest.mark.ranks(4)
def test_depths_may_exceed_the_size_of_the_tensor(world):
    mesh, a = Mesh((4,), ("x",)), values((3,))
    x = tensor_of(a, mesh("x"), world)
    for boundary in ("periodic", "zero", "nearest"):
        y = map_overlap(lambda block: block[:-8] + 2 * block[8:], x, depth=4, boundary=boundary)
        b = np.pad(a, 4, PADDED[boundary])
        np.testing.assert_array_equal(y.full(), b[:-8] + 2 * b[8:])


@pytest.mark.ranks(2)
def test_wrong_arguments_are_refused(world):
    x = tensor_of(values((6,)), Mesh((2,), ("x",))("x"), world, requires_grad=True)
    identity = lambda block: block  # noqa: E731
    for call, message in [
        (lambda: map_overlap(identity, x, boundary="perodic"), "did you mean 'periodic'"),
        (
            lambda: map_overlap(identity, x, depth=-1),
            "map_overlap: depth must be an integer from 0 on, or a pair of them, got -1",
        ),
        (lambda: map_overlap(identity, x, depth=(1, 1)), "depth has 2 entries for a tensor of 1 dim"),
        (
            lambda: map_overlap(identity, x, depth={1: 1}),
            "depth names dim 1, which a tensor of 1 dim does not have",
        ),
        (
            lambda: map_overlap(identity, x, depth=6, boundary="reflect"),
            "dim 0 of size 6 cannot be continued by reflect",
        ),
        (lambda: map_overlap(identity, x, x[1:]), r"takes tensors of one shape, but got \(6,\) and \(5,\)"),
        (
            lambda: map_overlap(lambda b: b[:1], x, depth=1),
            r"gave an array of shape \(1,\) on rank \d, where the block has",
        ),
        (lambda: ops.sum(map_overlap(identity, x, depth=1)).backward(), "has no gradient: .*vjp"),
        (
            lambda: ops.convolve(x, [1.0], "sme"),
            "convolve: mode must be one of 'full', 'same', 'valid', got 'sme'",
        ),
        (lambda: ops.convolve(x, [[1.0]]), "needs a kernel of 1 dim"),
        (
            lambda: ops.convolve(x[:, None], [[1.0, 2.0]]),
            r"all as long as the tensor's \(6, 1\) at most, or all at least, but got \(1, 2\)",
        ),
    ]:
        with pytest.raises(RuleError, match=message):
            call()
    with pytest.raises(ValueError, match="read-only"):
        map_overlap(lambda b: b.__iadd__(1), x, depth=1)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_convolution_equals_numpy(mode, world):
    mesh = Mesh((4,), ("x",))
    for n, k in ((13, 3), (13, 4), (5, 5), (6, 1), (9, 7), (3, 13), (4, 9)):
        a, kernel = values((n,)), values((k,), 1)
        x = tensor_of(a, mesh("x"), world, requires_grad=True)
        w = tensor_of(kernel, mesh(None), world, requires_grad=True)
        y = ops.convolve(x, w, mode)
        expected = np.convolve(a, kernel, mode)
        np.testing.assert_array_equal(y.full(), expected)
        assert y.layout == mesh("x" if k <= n else None)  # The longer operand keeps its layout.
        dy = values(expected.shape, 2)
        y.backward(tensor_of(dy, mesh("x"), world))
        x_direction, kernel_direction = values((n,), 3), values((k,), 4)
        assert (x.grad.full() * x_direction).sum() == (dy * np.convolve(x_direction, kernel, mode)).sum()
        assert (w.grad.full() * kernel_direction).sum() == (dy * np.convolve(a, kernel_direction, mode)).sum()


def test_convolution_sends_the_elements_in_reach_of_the_kernel():
    world, mesh = LockStep(4), Mesh((2, 2), ("x", "y"))
    x = tensor_of(values((16, 16)), mesh("x", "y"), world)
    with record() as trace:
        ops.convolve(x, np.ones((3, 5)), "same")
    assert trace.counts() == {"halo_exchange": 2} and trace.nbytes() == 8 * (9 * 10 - 8 * 8)


def test_shapes_only_runs_no_function():
    def never(block):
        raise AssertionError

    mesh, world = Mesh((4,), ("x",)), ShapeOnly(4)
    x = Tensor.from_global(np.zeros((12, 3)), mesh("x", None), world)
    with record() as trace:
        y = map_overlap(never, x, depth=(2, 0), boundary="periodic")
    assert (y.shape, y.layout) == (x.shape, x.layout) and trace.nbytes(0) == 4 * 3 * 8
