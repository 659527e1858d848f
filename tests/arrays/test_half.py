"""Floats of 16 bits are stored as such, computed in float32 and rounded once, on every layout."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import pytest

import spmdsim.ops as ops
from spmdsim import LockStep, Mesh, ShapeOnly, Tensor, nn, plan, record
from spmdsim.worlds import MPIWorld

BF16, F16 = np.dtype(ml_dtypes.bfloat16), np.dtype("float16")

pytestmark = pytest.mark.ranks(1, 2, 4, 8)


def split(world, array, dtype, *, partial=False, **options):
    """Return an array as a tensor that is split over all ranks by its last dim."""
    mesh = Mesh((world.size,), ("x",))
    array = np.asarray(array, dtype)
    dims = [None] * (array.ndim - 1) + ["x"]
    return Tensor.from_global(array, mesh(*dims), world, **options)


def test_a_sum_of_4096_ones_does_not_stop_at_256(world):
    total = ops.sum(split(world, np.ones(4096), BF16))
    assert total.dtype == BF16 and total.item() == 4096
    # A pending sum has its type, though its terms are not rounded to the type.
    assert all(total.local(rank).dtype == BF16 for rank in world.ranks)
    assert {shard.dtype for shard in total.shards} == {BF16}
    assert repr(total.meta).startswith("bf16[]")


def test_the_sum_of_a_mean_does_not_overflow(world):
    assert ops.mean(split(world, np.full(1000, 100), F16)).item() == 100


def test_terms_that_cancel_between_ranks_leave_the_exact_rest(world):
    """Terms 2048.5 and -2048 of two ranks would give 0 or 1 if each were rounded first."""
    k = 4 * world.size
    a, b = np.zeros((1, k)), np.ones((k, 1))
    a[0, 0], a[0, 1], a[0, -1] = 2048, 0.5, -2048
    product = ops.matmul(
        split(world, a, F16), Tensor.from_global(b.astype(F16), Mesh((world.size,), ("x",))("x", None), world)
    )
    assert product.item() == 0.5


def test_a_pending_term_may_be_out_of_range_for_its_type(world):
    mesh = Mesh((world.size,), ("x",))
    terms = Tensor.from_local(lambda rank: np.full(3, 60000, F16), mesh(None, partial="x"), world)
    scaled = ops.multiply(terms, 1 / world.size)
    np.testing.assert_array_equal(scaled.full(), np.full(3, 60000, F16))


def test_pending_sums_become_16_bits_when_they_are_reduced(world):
    """Terms 1e5 and -99999.5 are infinite in float16 and lose .5 in bfloat16."""
    x = np.zeros(4 * world.size)
    x[0], x[-1] = 1e5, -99999.5
    for dtype in (F16, BF16):
        for function in (ops.sum, lambda y: ops.multiply(ops.sum(y), 1)):
            result = ops.cast(function(split(world, x, "f4")), dtype)
            assert result.dtype == dtype and result.item() == 0.5


@pytest.mark.parametrize("classes", [1000, 50257])
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_cross_entropy_of_equal_logits_is_the_logarithm_of_their_number(world, classes, dtype):
    logits = split(world, np.zeros((2, classes)), dtype)
    labels = Tensor.from_global(np.array([0, classes - 1]), Mesh((world.size,), ("x",))(None), world)
    assert ops.cross_entropy(logits, labels).item() == float(np.log(classes).astype(dtype))


def test_softmax_of_many_equal_numbers_is_exact(world):
    result = ops.softmax(split(world, np.zeros((1, 1000)), BF16))
    np.testing.assert_array_equal(result.full(), np.full((1, 1000), 0.001, BF16))


def test_norms_do_not_overflow_in_squares(world):
    x = np.tile([300.0, -300.0], (2, 8))
    mesh = Mesh((world.size,), ("x",))
    one, zero = (Tensor.from_global(np.full(16, v, F16), mesh("x"), world) for v in (1, 0))
    expected = np.tile([1.0, -1.0], (2, 8))
    np.testing.assert_array_equal(ops.layer_norm(split(world, x, F16), one, zero).full(), expected)
    np.testing.assert_array_equal(ops.rms_norm(split(world, x, F16), one).full(), expected)
    np.testing.assert_array_equal(ops.l2_normalize(split(world, x, F16)).full(), expected / 4)


def test_gradients_of_many_uses_and_many_calls_add_up(world):
    """Gradients of 600 uses, and of 600 backward passes, add up exactly."""
    x = split(world, np.ones(world.size), BF16, requires_grad=True)
    ops.sum(ops.add_n(*[x] * 600)).backward()
    np.testing.assert_array_equal(x.grad.full(), np.full(world.size, 600, BF16))
    for _ in range(600):
        ops.sum(x).backward()
    np.testing.assert_array_equal(x.grad.full(), np.full(world.size, 1200, BF16))


def test_an_embedding_adds_up_the_gradients_of_a_row(world):
    mesh = Mesh((world.size,), ("x",))
    for rows in ("all", "owned"):
        table = Tensor.from_global(np.ones((16, 4), BF16), mesh("x", None), world, requires_grad=True)
        ids = Tensor.from_global(np.full(4096, 5), mesh("x"), world)
        ops.sum(ops.embedding(ids, table, mesh("x", None), rows=rows)).backward()
        expected = np.zeros((16, 4))
        expected[5] = 4096
        np.testing.assert_array_equal(table.grad.full(), expected)


def test_a_global_norm_does_not_overflow(world):
    layer = nn.Linear(4, 4, Mesh((world.size,), ("x",))(None, "x"), bias=False, dtype=F16)
    layer.materialise(world)
    layer.weight.value.grad = Tensor.from_global(np.full((4, 4), 300, F16), layer.weight.layout, world)
    assert nn.clip([layer.weight], 12.0) == 1200
    np.testing.assert_array_equal(layer.weight.grad.full(), np.full((4, 4), 3, F16))


def losses(world, mesh, dims, axis, dtype) -> list[float]:
    """Return the losses of a GPT in four steps of training in a world.

    The input has the layout ``mesh(*dims)``, and `axis` splits the layers. Parameters have the type `dtype`.
    """
    stream, rng = mesh(*dims), np.random.default_rng(0)
    model = nn.GPT(64, 32, 4, 1, 16, stream, axis, dtype=dtype)
    model.materialise(world)
    optimiser = nn.Adam(model.parameters(), 3e-3)
    ids, labels = (
        Tensor.from_global(rng.integers(0, 64, (8, 16)), mesh(dims[0], None), world) for _ in range(2)
    )
    values = []
    for _ in range(4):
        model.zero_grad()
        loss = model.loss(ids, labels)
        nn.backward(loss)
        nn.clip(model.parameters(), 1.0)
        optimiser.step()
        values.append(loss.item())
    return values


@cache
def losses_of_one_rank(dtype) -> list[float]:
    return losses(LockStep(1), Mesh((1, 1), ("dp", "tp")), (None, None, None), None, dtype)


@pytest.mark.ranks(4, 8)
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_a_gpt_has_the_same_losses_on_any_mesh(world, dtype):
    """Losses equal those of one rank, and of float32, up to the rounding of one loss."""
    unit = 2.0**-8 if dtype == BF16 else 2.0**-11
    wide = losses_of_one_rank(np.dtype("f4"))
    np.testing.assert_allclose(losses_of_one_rank(dtype), wide, rtol=2 * unit)
    half = world.size // 2
    for shape, dims, axis in (
        ((world.size, 1), ("dp", None, None), None),
        ((2, half), ("dp", None, None), "tp"),
        ((2, half), ("dp", "tp", None), "tp"),
    ):
        values = losses(world, Mesh(shape, ("dp", "tp")), dims, axis, dtype)
        np.testing.assert_allclose(
            values, losses_of_one_rank(dtype), rtol=2 * unit, err_msg=str((shape, dims))
        )


@pytest.mark.ranks(4)
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_plans_and_traces_count_the_bytes_of_the_sent_type(world, dtype):
    """Elements of a pending sum have four bytes; other elements, pending maxima included, have two."""
    mesh = Mesh((4,), ("x",))
    for src, dst, size in (
        (mesh(None, partial="x"), mesh("x"), 4),
        (mesh(None, partial="x"), mesh(None), 4),
        (mesh(None, partial={"x": "max"}), mesh(None), 2),
        (mesh("x"), mesh(None), 2),
    ):
        int32_plan = plan(src, dst, (64,), "int32")
        for any_world in (world, ShapeOnly(4)):
            tensor = Tensor.from_global(np.ones(64, dtype), src, any_world)
            with record() as trace:
                assert tensor.to(dst).dtype == dtype
            expected = size * int32_plan.nbytes(any_world.ranks[0]) // 4
            assert {event.dtype for event in trace.collectives} == {"float32" if size == 4 else dtype.name}
            # MPIWorld gathers short maxima of types that MPI does not know.
            if not isinstance(any_world, MPIWorld):
                assert trace.nbytes(any_world.ranks[0]) == expected
            assert plan(src, dst, (64,), dtype).nbytes(any_world.ranks[0]) == expected
        assert ("travel as float32, 4 bytes" in str(plan(src, dst, (64,), dtype))) == (size == 4)
