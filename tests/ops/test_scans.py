"""Running sums and products over split dims equal numpy and need one exclusive scan."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from spmdsim import Mesh, Tensor, ops, record
from spmdsim.core import Layout
from spmdsim.errors import RuleError
from spmdsim.launcher import launched
from spmdsim.worlds import ShapeOnly

SHAPES = [(13, 3), (3, 2), (8, 1), (0, 2), (1, 4)]


def layouts(size: int, ndim: int = 2) -> list[Layout]:
    """Return layouts of tensors of `ndim` dims on `size` ranks; under mpirun every third one.

    They split dims in several orders, replicate, reverse the ranks, and leave out a rank.
    """
    if size == 1:
        return [Mesh((1,), ("x",))(*[None] * ndim)]
    line = Mesh((size,), ("x",), ranks=range(size)[::-1])
    choices = [line("x", *[None] * (ndim - 1)), line(*[None] * ndim), line(*[None] * (ndim - 1), "x")]
    choices.append(Mesh((size - 1,), ("x",), ranks=range(1, size))("x", *[None] * (ndim - 1)))
    if size % 2 == 0:
        grid = Mesh((2, size // 2), ("a", "b"))
        other_dims = [None] * (ndim - 1)
        choices += [
            grid(("b", "a"), *other_dims),
            grid("b", *other_dims),
            grid("b", *other_dims, partial="a"),
        ]
    return choices[::3] if launched() else choices


def tensor_of(array: np.ndarray, layout: Layout, world) -> Tensor:
    return Tensor.from_global(array, layout, world)


@pytest.mark.ranks(1, 3, 4, 8)
def test_running_sums_and_products_equal_numpy(world):
    rng = np.random.default_rng(0)
    types = [(SHAPES[0], dtype) for dtype in ("int8", "uint8", "bool", "complex64")]
    for shape, dtype in [*((shape, "float64") for shape in SHAPES), *types]:
        x = rng.integers(-3, 4, shape).astype(dtype)
        for layout in layouts(world.size):
            if layout.partial and dtype == "bool":
                continue
            for dim in (0, -1):
                result = ops.cumulative_sum(tensor_of(x, layout, world), dim)
                assert result.layout == layout or layout.partial
                expected = np.cumsum(x, dim)
                assert result.dtype == expected.dtype
                np.testing.assert_array_equal(result.full(), expected)
                product = ops.cumulative_prod(tensor_of(x, layout.reduced, world), dim)
                np.testing.assert_array_equal(product.full(), np.cumprod(x, dim))


@pytest.mark.ranks(4)
def test_running_sums_take_a_type_and_an_initial_value(world):
    x = np.arange(10, dtype="float32").reshape(5, 2)
    for layout in layouts(4):
        result = ops.cumulative_sum(
            tensor_of(x, layout.reduced, world), axis=0, dtype="float64", include_initial=True
        )
        np.testing.assert_array_equal(result.full(), np.r_[np.zeros((1, 2)), np.cumsum(x, 0)])
        assert result.dtype == np.float64
        ones = ops.cumulative_prod(tensor_of(x, layout.reduced, world), 1, include_initial=True)
        np.testing.assert_array_equal(ones.full(), np.c_[np.ones(5), np.cumprod(x, 1)])


@pytest.mark.ranks(4)
def test_running_sums_of_16_bits_continue_in_32_bits(world):
    """Totals of ranks are exact in bfloat16, but not all running sums of 4096 ones are."""
    x = np.ones(4096, ml_dtypes.bfloat16)
    result = ops.cumulative_sum(tensor_of(x, Mesh((4,), ("x",))("x"), world))
    assert result.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(result.full(), np.arange(1, 4097, dtype="f4").astype(ml_dtypes.bfloat16))


@pytest.mark.ranks(8)
def test_a_running_sum_needs_one_exclusive_scan(world):
    """Ranks except the first receive one row; a world without data predicts the step."""
    mesh, x = Mesh((2, 4), ("a", "b")), np.arange(19.0 * 5).reshape(19, 5)
    for axes, first in ((("a", "b"), 0), (("b", "a"), 0)):
        with record() as trace:
            ops.cumulative_sum(tensor_of(x, mesh(axes, None), world), 0)
        assert trace.counts() == {"exclusive_scan": 1}
        (event,) = trace.collectives
        for rank, planned in zip(event.ranks, event.planned):
            assert planned == (0 if rank == first else 5 * 8)
        last = mesh.group(0, *axes)[-1]
        if event.way == "":
            assert dict(zip(event.ranks, event.sent)) == {r: 0 if r == last else 40 for r in range(8)}
        assert event.nbytes == event.due
        with record() as predicted:
            ops.cumulative_sum(tensor_of(x, mesh(axes, None), ShapeOnly(8)), 0)
        assert predicted.collectives[0].step == event.step
    with record() as trace:
        ops.cumulative_sum(tensor_of(x, mesh(None, "b"), world), 0)
    assert trace.counts() == {}


@pytest.mark.ranks(4)
def test_large_totals_are_sent_from_rank_to_rank(world):
    """MPI's own scan sends large totals in the order of the ranks."""
    x = np.arange(8 * 40_000).reshape(8, -1) % 1000
    mesh = Mesh((4,), ("x",))
    with record() as trace:
        result = ops.cumulative_sum(tensor_of(x, mesh("x", None), world), 0)
    np.testing.assert_array_equal(result.full(), np.cumsum(x, 0))
    (event,) = trace.collectives
    assert event.way in ("", "Exscan")
    assert event.nbytes == event.planned


@pytest.mark.ranks(2, 4)
def test_running_products_with_zeros_have_gradients(world):
    """Gradients equal derivatives by an imaginary step, which has no rounding error."""
    rng = np.random.default_rng(1)
    for x in (np.array([1.5, 2, -3, 0.5, 4]), np.array([1.5, 0, 2, 0, 3, 0.5]), np.array([0.0, 1, 2])):
        dy = rng.normal(size=x.shape)
        expected = [
            (dy * np.cumprod(x + 1e-30j * np.eye(len(x))[k])).sum().imag / 1e-30 for k in range(len(x))
        ]
        for layout in layouts(world.size, 1):
            t = Tensor.from_global(x, layout.reduced, world, requires_grad=True)
            ops.cumulative_prod(t).backward(tensor_of(dy, Layout.replicated(layout.mesh, 1), world))
            assert t.grad.layout == t.layout
            np.testing.assert_allclose(t.grad.full(), expected, rtol=1e-12)


@pytest.mark.ranks(4)
def test_differences_equal_numpy(world):
    x = np.random.default_rng(2).integers(-9, 9, (7, 5))
    for layout in layouts(4):
        t = tensor_of(x, layout, world)
        for dim, n in ((0, 1), (1, 3), (0, 7), (0, 9), (1, 0)):
            np.testing.assert_array_equal(ops.diff(t, dim, n).full(), np.diff(x, n, dim))
        ends = {"prepend": x[:2], "append": 3}
        np.testing.assert_array_equal(ops.diff(t, axis=0, **ends).full(), np.diff(x, axis=0, **ends))
        odd = tensor_of(x > 0, layout.reduced, world)
        np.testing.assert_array_equal(ops.diff(odd, 0).full(), np.diff(x > 0, axis=0))


@pytest.mark.ranks(2)
def test_wrong_dims_and_counts_are_refused(world):
    x = tensor_of(np.zeros((2, 3)), Mesh((2,), ("x",))("x", None), world)
    with pytest.raises(RuleError, match="cumulative_sum of a tensor of 2 dims needs the dim to go along"):
        ops.cumulative_sum(x)
    with pytest.raises(RuleError, match="dim 2 is out of range for a tensor of 2 dims"):
        ops.cumulative_prod(x, 2)
    with pytest.raises(RuleError, match="n must be an integer from 0 on, got -1"):
        ops.diff(x, n=-1)
