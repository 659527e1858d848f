"""Sorting split dims equals numpy for every type and layout, in balanced blocks, with known bytes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from spmdsim import Mesh, Tensor, ops, record
from spmdsim.auto_parallel.programs.record_program import record_program
from spmdsim.core import Layout, Strategy
from spmdsim.errors import RuleError
from spmdsim.worlds import LockStep, ShapeOnly
from tests.ops.test_scans import layouts, tensor_of

DTYPES = [
    "float64",
    "float32",
    "float16",
    ml_dtypes.bfloat16,
    "complex128",
    "int64",
    "int8",
    "uint16",
    "bool",
]


def order(x: np.ndarray, dim: int, descending: bool) -> np.ndarray:
    """Return the indices that sort ``x`` along `dim` in a stable order, also if `descending`."""
    keys = comparable(x)
    if not descending:
        return np.argsort(keys, dim, kind="stable")
    flipped_order = np.argsort(np.flip(keys, dim), dim, kind="stable")
    return x.shape[dim] - 1 - np.flip(flipped_order, dim)


def comparable(x: np.ndarray) -> np.ndarray:
    """Return numbers of a type whose nan numpy's comparisons support."""
    return x.astype("f4") if x.dtype.kind == "V" else x


def mixed(shape: tuple[int, ...], dtype: object) -> np.ndarray:
    """Return few different values of `dtype`, with equal ones, both zeros and nan among them."""
    rng = np.random.default_rng(list(shape))
    x = rng.integers(-4, 5, shape).astype(dtype)
    if x.dtype.kind in "fcV":
        x[rng.random(shape) < 0.1] = np.nan
        x[rng.random(shape) < 0.1] = -0.0
    if x.dtype.kind == "c":
        x = x + 1j * rng.integers(-1, 2, shape)
        x[rng.random(shape) < 0.1] = complex(0, np.nan)
    return x


@pytest.mark.ranks(3, 8)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_sorting_equals_numpy(world, dtype):
    for shape in ((37, 2), (5, 1), (300,), (0, 2)):
        x = mixed(shape, dtype)
        for layout in layouts(world.size, x.ndim):
            t = tensor_of(x, layout.reduced, world)
            for descending in (False, True):
                expected = order(x, 0, descending)
                values, indices = ops.sort_with_indices(t, 0, descending)
                assert values.layout == indices.layout == t.layout
                np.testing.assert_array_equal(indices.full(), expected)
                np.testing.assert_array_equal(
                    comparable(values.full()), np.take_along_axis(comparable(x), expected, 0)
                )
                np.testing.assert_array_equal(
                    comparable(ops.sort(t, 0, descending).full()), comparable(values.full())
                )
    np.testing.assert_array_equal(ops.argsort(t, axis=-1).full(), order(x, -1, False))


@pytest.mark.ranks(4)
def test_adversarial_values_end_in_balanced_blocks(world):
    """Equal, sorted, reversed and skewed values end in the blocks of the layout."""
    n, mesh = 4003, Mesh((4,), ("x",))
    rng = np.random.default_rng(0)
    cases = [
        np.zeros(n),
        np.arange(n),
        -np.arange(n),
        np.arange(n) % 7,
        rng.zipf(1.3, n),
        np.r_[-rng.random(n // 4), rng.random(n - n // 4)],
    ]
    for x in cases:
        x = x.astype(float)
        y = ops.sort(tensor_of(x, mesh("x"), world))
        for rank, shard in zip(world.ranks, y.shards):
            np.testing.assert_array_equal(shard, np.sort(x)[y.layout.slices(x.shape, rank)])


@pytest.mark.parametrize("seed", range(16))
def test_sorts_are_exact_after_the_planned_rounds(seed):
    """Sorts of equal and of few values, on any number of ranks, keep their order and the planned bound."""
    rng = np.random.default_rng(seed)
    ranks, rows = int(rng.integers(2, 9)), 1 + seed % 2
    x = rng.integers(0, rng.integers(1, 5000), (rows, int(rng.integers(1, 30_000))))
    if seed % 3 == 0:  # Ranks have values of different ranges.
        x.sort(axis=1)
    mesh = Mesh((ranks,), ("x",))
    with record() as trace:
        values, indices = ops.sort_with_indices(tensor_of(x, mesh(None, "x"), LockStep(ranks)), 1)
    expected = np.argsort(x, 1, kind="stable")
    np.testing.assert_array_equal(indices.full(), expected)
    np.testing.assert_array_equal(values.full(), np.take_along_axis(x, expected, 1))
    _, rounds, within = sampling_of(trace, x.shape[1], ranks, rows)
    if rounds is not None:
        remaining = trace.collectives[2 * rounds]
        assert max(remaining.nbytes) <= 2 * 8 * rows * within


def sampling_of(trace, size, ranks, rows=1):
    """Return the samples and rounds in a trace of a sort, and the elements that then remain at most.

    All are None if the rows are sorted by exchanging dims. A round of s samples narrows w elements to
    ``3 * ceil(w / s) + 3 * ranks``.
    """
    if "exchange_parts" not in trace.counts():
        return None, None, None
    collectives = [event.collective for event in trace.collectives]
    rounds, within = collectives.index("exchange_parts") // 2, size
    if not rounds:
        return None, 0, within
    samples = trace.collectives[0].planned[0] // (8 * rows * (ranks - 1))
    for _ in range(rounds):
        within = min(within, 3 * -(-within // samples) + 3 * ranks)
    return samples, rounds, within


def test_samples_of_large_sorts_are_few():
    """Samples are less than 1 % of ten million numbers on 8 ranks, and three blocks on 4,096 ranks."""
    for size, ranks, most in ((10_000_000, 8, 1_250_000 / 100), (1 << 30, 4096, 3 * (1 << 18))):
        graph = record_program(ops.sort, 1, {"x": ((size,), "f8")}, training=False)
        bound = graph.operators[-1].bound
        (factor,) = bound.sizes
        steps = [step for step, _ in bound.steps(Strategy.of(Mesh((ranks,), ("x",)), {factor: "x"}))]
        number = [step.collective for step in steps].index("exchange_parts")
        samples = sum(step.shape[-1] * ranks for step in steps[:number:2])
        assert number and samples + steps[number].shape[0] // ranks < most
    with record() as trace:
        ops.sort(tensor_of(np.zeros(0), Mesh((4,), ("x",))("x"), LockStep(4)))
    assert sampling_of(trace, 0, 4) == (None, 0, 0)


@pytest.mark.ranks(4, 8)
def test_a_sort_sends_samples_and_each_element_at_most_once(world):
    """Bytes equal the plan, and a world without data expects those of random values."""
    size, n = world.size, 40_000
    mesh, x = Mesh((size,), ("x",)), np.random.default_rng(3).normal(size=n)
    with record() as trace:
        ops.sort(tensor_of(x, mesh("x"), world))
    with record() as predicted:
        ops.sort(tensor_of(x, mesh("x"), ShapeOnly(size)))
    other_ranks = Mesh((size - 1,), ("x",), ranks=range(1, size))
    with record() as other_trace:  # Rank 0, which ShapeOnly counts, is not in the mesh.
        ops.sort(tensor_of(x, other_ranks("x"), ShapeOnly(size)))
    assert other_trace.counts() == trace.counts() and not other_trace.nbytes()
    samples, rounds, within = sampling_of(predicted, n, size)
    assert rounds
    assert trace.counts() == {"all_to_all": 2 * rounds + 2, "exchange_parts": 2} == predicted.counts()
    *fixed, parts = trace.collectives
    remaining = fixed.pop(2 * rounds)
    assert max(remaining.nbytes) <= 8 * within == 8 * remaining.step.most(0)
    for event in fixed[:-2:2]:
        assert set(event.planned) == {(size - 1) * samples * 8} == set(event.nbytes)
    owner = np.repeat(np.arange(size), n // size)[np.argsort(x, kind="stable")].reshape(size, -1)
    for rank, received in zip(parts.ranks, parts.nbytes):
        assert received == 8 * int((owner[rank] != rank).sum()) <= 8 * parts.step.most(rank)
        if world.ranks == range(size):
            assert parts.sent[rank] == 8 * int((owner[np.arange(size) != rank] == rank).sum())
    assert predicted.collectives[-1].expected
    assert predicted.collectives[-1].planned[0] == pytest.approx(parts.nbytes[0], rel=0.05)
    sizes = [e.planned[0] for e in predicted.collectives if e.collective == "all_to_all"]
    assert sizes == [e.planned[0] for e in fixed]


@pytest.mark.ranks(4)
def test_many_columns_are_sorted_by_exchanging_dims(world):
    """Two all_to_all replace the samples if these would be larger than the data."""
    mesh, x = Mesh((4,), ("x",)), np.random.default_rng(4).normal(size=(16, 64))
    with record() as trace:
        y = ops.sort(tensor_of(x, mesh("x", None), world), 0)
    assert trace.counts() == {"all_to_all": 2}
    assert y.layout == mesh("x", None)
    np.testing.assert_array_equal(y.full(), np.sort(x, 0))


@pytest.mark.ranks(4)
def test_gradients_return_to_the_sorted_elements(world):
    x, dy = np.random.default_rng(5).normal(size=(2, 64, 3))
    for layout in layouts(4):
        for descending in (False, True):
            t = Tensor.from_global(x, layout.reduced, world, requires_grad=True)
            gradient = tensor_of(dy, Layout.replicated(layout.mesh, 2), world)
            ops.sort(t, 0, descending).backward(gradient)
            expected = np.zeros_like(x)
            np.put_along_axis(expected, order(x, 0, descending), dy, 0)
            assert t.grad.layout == t.layout
            np.testing.assert_array_equal(t.grad.full(), expected)
            t.grad = None
            values, indices = ops.topk(t, 5, 0, largest=descending)
            assert not indices.requires_grad
            values.backward(tensor_of(dy[:5], Layout.replicated(layout.mesh, 2), world))
            expected = np.zeros_like(x)
            np.put_along_axis(expected, order(x, 0, descending)[:5], dy[:5], 0)
            assert t.grad.layout == t.layout
            np.testing.assert_array_equal(t.grad.full(), expected)


@pytest.mark.ranks(1, 3, 4)
def test_topk_equals_numpy(world):
    for shape, dtype in (
        ((11, 3), "float64"),
        ((3, 2), "int32"),
        ((7,), ml_dtypes.bfloat16),
        ((4, 0), "float32"),
    ):
        x = mixed(shape, dtype)
        for layout in layouts(world.size, x.ndim):
            t = tensor_of(x, layout.reduced, world)
            for k in {0, 1, 2, shape[0]}:
                for largest in (True, False):
                    expected = order(x, 0, largest)[:k]
                    values, indices = ops.topk(t, k, 0, largest=largest)
                    np.testing.assert_array_equal(indices.full(), expected)
                    np.testing.assert_array_equal(
                        comparable(values.full()), np.take_along_axis(comparable(x), expected, 0)
                    )


@pytest.mark.ranks(4)
def test_topk_gathers_only_candidates(world):
    mesh, x = Mesh((4,), ("x",)), np.random.default_rng(6).normal(size=10_000)
    with record() as trace:
        ops.topk(tensor_of(x, mesh("x"), world), 5)
    assert trace.counts() == {"all_gather": 2}
    assert {n for event in trace.collectives for n in event.planned} == {3 * 5 * 8}


@pytest.mark.ranks(1, 4)
def test_searchsorted_equals_numpy(world):
    rng = np.random.default_rng(7)
    for dtype in ("float64", "int32", ml_dtypes.bfloat16):
        x = rng.integers(0, 9, 13).astype(dtype)
        order_of_x = np.argsort(x.astype(float), kind="stable")
        v = rng.integers(-1, 11, (3, 4)).astype(dtype)
        for layout, values_layout in zip(layouts(world.size, 1), layouts(world.size, 2)):
            for side in ("left", "right"):
                expected = np.searchsorted(x[order_of_x].astype(float), v.astype(float), side)
                t, w = (
                    tensor_of(x[order_of_x], layout.reduced, world),
                    tensor_of(v, Layout.replicated(layout.mesh, 2), world),
                )
                indices = ops.searchsorted(t, w, side)
                assert indices.dtype == np.int64
                np.testing.assert_array_equal(indices.full(), expected)
                u, order_ = tensor_of(x, layout.reduced, world), tensor_of(order_of_x, layout.reduced, world)
                np.testing.assert_array_equal(ops.searchsorted(u, w, side, order_).full(), expected)


@pytest.mark.ranks(4)
def test_take_along_axis_equals_numpy(world):
    rng = np.random.default_rng(8)
    x, ids = rng.normal(size=(9, 4)), rng.integers(-9, 9, (5, 4))
    for layout in layouts(4):
        for given_ids in (ids, ids[:, :1]):
            t, i = (
                tensor_of(x, layout.reduced, world),
                tensor_of(given_ids, Layout.replicated(layout.mesh, 2), world),
            )
            expected = np.take_along_axis(x, np.broadcast_to(given_ids, ids.shape), 0)
            np.testing.assert_array_equal(ops.take_along_axis(t, i, 0).full(), expected)


@pytest.mark.ranks(2)
def test_wrong_arguments_are_refused(world):
    x = tensor_of(np.zeros((2, 3)), Mesh((2,), ("x",))("x", None), world)
    with pytest.raises(RuleError, match="sort: dim 2 is out of range for a tensor of 2 dims"):
        ops.sort(x, 2)
    with pytest.raises(RuleError, match="topk: 4 entries of dim 1, which has 3"):
        ops.topk(x, 4)
    with pytest.raises(RuleError, match="searchsorted: x must have one dim, got 2"):
        ops.searchsorted(x, 1.0)
    with pytest.raises(RuleError, match="must be 'left' or 'right', got 'up'"):
        ops.searchsorted(ops.reshape(x, 6), 1.0, "up")
    with pytest.raises(RuleError, match=r"shapes \(2, 3\) and \(4, 2\) differ besides dim 0"):
        ops.take_along_axis(x, tensor_of(np.zeros((4, 2), int), Mesh((2,), ("x",))(None, None), world), 0)
