"""Indexing equals numpy's: negative steps, arrays of integers, masks, gradients and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, ShapeOnly, Tensor, nn, ops, record
from spmdsim.errors import InputError, OutOfRange, RuleError, WorldError

A = np.random.default_rng(0).normal(size=(7, 4, 6))
S = np.s_

INDICES = [
    S[::-1],
    S[::-2],
    S[5:1:-1],
    S[1:5:-1],
    S[-1:-20:-3, ..., ::-1],
    S[2, ::-1, None, 4::-2],
    S[[2, 0, 2]],
    S[[-1, 3]],
    S[[]],
    S[:, [3, -1]],
    S[..., [[0, 5], [-6, 1]]],
    S[np.array([6, 1], np.uint8)],
    S[1:6, np.array([0, 0])],
    S[::-1, [1, 2], ::-2],
    S[np.arange(7) % 2 == 0],
    S[:, :, [True, False] * 3],
    S[np.zeros(7, bool)],
    S[np.array(3), ..., np.int64(-2)],
    # Dims of an array stay in place if integers are next to it; otherwise they come first.
    S[0, [1, 2]],
    S[[1, 2], 0],
    S[0, :, [1, 2]],
    S[[1, 2], :, 0],
    S[0, None, [1, 2]],
    S[:, 1, [4, 4, 0]],
    S[[1, 2], None, ..., 3],
    S[..., None, 2, [0, 1, 2]],
    S[3, :, np.arange(6) > 3],
]


def layouts(world):
    mesh = (
        Mesh((2, world.size // 2), ("a", "b")) if world.size % 2 == 0 else Mesh((1, world.size), ("a", "b"))
    )
    return [mesh("a", None, "b"), mesh(None, "a", None), mesh(("b", "a"), None, None), mesh(None, None, None)]


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indices_and_gradients_equal_numpy(world, index):
    expected = A[index]
    weight = np.random.default_rng(1).normal(size=expected.shape)
    slope = np.zeros_like(A)
    np.add.at(slope, index, weight)
    for layout in layouts(world):
        x = Tensor.from_global(A, layout, world, requires_grad=True)
        result = x[index]
        assert result.shape == expected.shape and result.dtype == A.dtype
        np.testing.assert_array_equal(result.full(), expected)
        nn.backward(ops.sum(ops.multiply(result, weight)))
        np.testing.assert_allclose(x.grad.full(), slope, rtol=1e-12)


@pytest.mark.ranks(4)
def test_a_tensor_of_integers_is_an_index(world):
    mesh = Mesh((2, 2), ("a", "b"))
    ids = np.array([[1, -1, 0], [3, 2, -4]])
    x = Tensor.from_global(A, mesh("a", "b", None), world)
    for layout in (mesh("a", None), mesh(None, None)):
        index = Tensor.from_global(ids, layout, world)
        np.testing.assert_array_equal(x[:, index].full(), A[:, ids])
        np.testing.assert_array_equal(x[:, index.astype("i4"), 2].full(), A[:, ids, 2])
    outside = Tensor.from_global(np.array([4]), mesh(None), world)
    with pytest.raises(InputError, match=r"id 4 is outside 0\.\.3"):
        x[:, outside]


@pytest.mark.ranks(4)
def test_flip_equals_numpy(world):
    mesh = Mesh((2, 2), ("a", "b"))
    x = Tensor.from_global(A, mesh("a", "b", None), world)
    for axis in (None, 0, (1, -1), ()):
        np.testing.assert_array_equal(ops.flip(x, axis=axis).full(), np.flip(A, axis))


def test_shapes_are_known_without_data():
    world = ShapeOnly(4)
    x = Tensor.from_global(A, Mesh((2, 2), ("a", "b"))("a", "b", None), world)
    for index in INDICES:
        assert x[index].shape == A[index].shape


@pytest.mark.parametrize(
    "index, message",
    [
        (S[[0, 7]], "index 7 is out of range for dim 0 of size 7"),
        (S[2, :, [-7]], "index -7 is out of range for dim 2 of size 6"),
        (S[[0, 1], [1, 2, 0]], r"shapes \(2,\) and \(3,\) do not broadcast"),
        (S[A[:3] > 0], r"a mask of shape \(3, 4, 6\) does not fit a tensor of shape \(7, 4, 6\)"),
        (S[True], r"use where\(mask, x, 0\)"),
        (S[np.array(True)], r"use where\(mask, x, 0\)"),
        (S[[True, False]], "mask of 2 entries does not fit dim 0 of size 7"),
        (S[[0.5]], "not list of float64"),
        (S[..., 0, ...], "at most one"),
        (S[::0], "not zero"),
        (S[0, 0, 0, [0]], "too many"),
    ],
    ids=str,
)
def test_wrong_indices_are_refused(index, message):
    x = Tensor.from_global(A, Mesh((2,), ("a",))("a", None, None), LockStep(2))
    with pytest.raises(RuleError, match=message) as caught:
        x[index]
    assert "\n" not in str(caught.value)


def test_a_computed_mask_needs_values():
    x = Tensor.from_global(A, Mesh((2,), ("a",))("a", None, None), ShapeOnly(2))
    with pytest.raises(WorldError, match=r"the number of entries of x\[mask\] depends on values"):
        x[x > 0]


@pytest.mark.ranks(3)
@pytest.mark.parametrize("dims", [("x", None, None), (None, None, "x")])
def test_tensors_without_dims_are_indices(world, dims):
    """Tensors without dims are indices beside arrays, slices and integers, as in numpy."""
    mesh, array = Mesh((3,), ("x",)), np.arange(27).reshape(3, 3, 3)
    x = Tensor.from_global(array, mesh(*dims), world)

    def to_index(entry):
        if isinstance(entry, slice):
            return entry
        return Tensor.from_global(np.asarray(entry, "i1"), mesh(*[None] * np.ndim(entry)), world)

    full_slice = slice(None)
    for key in [
        (2,),
        (2, 0),
        (1, 1, 1),
        (2, [0, 1]),
        ([0, 1], 2),
        ([[0], [1]], 1, [2, 0]),
        (1, full_slice, 2),
        (full_slice, 0, -1),
    ]:
        expected = array[tuple(entry if isinstance(entry, slice) else np.asarray(entry) for entry in key)]
        np.testing.assert_array_equal(x[tuple(map(to_index, key))].full(), expected, str(key))


ASSIGNED_INDICES = [
    [0, 2], np.array([[1, 1], [4, 0]]), (slice(None), [0, 3]), ([0, 2], slice(1, 3)), ([0, 2, 2], [3, 1, 1]), (2, [1, 3]),
    ([4, 1], slice(None, None, -1)), np.array([True, False, True, False, True]), (Ellipsis, [3, 0]), (None, [1, 2]),
    (np.array([], int),), (np.arange(20).reshape(5, 4) % 3 == 0), (slice(None, None, -2), None, slice(2, None, -1)), (3, slice(None, None, -1)),
]  # fmt: skip


@pytest.mark.ranks(4)
@pytest.mark.parametrize("number", range(len(ASSIGNED_INDICES)))
@pytest.mark.parametrize("dims", [("a", "b"), (None, ("b", "a")), (None, None)], ids=str)
def test_assignment_by_arrays_equals_numpy_and_has_gradients(world, number, dims):
    """Overwritten elements have no gradient, and values have the gradients of their elements."""
    array, index, mesh = np.arange(20.0).reshape(5, 4), ASSIGNED_INDICES[number], Mesh((2, 2), ("a", "b"))
    weights = np.random.default_rng(3).normal(size=array.shape)
    values = np.random.default_rng(4).normal(size=array[index].shape)
    x = Tensor.from_global(array, mesh(*dims), world, requires_grad=True)
    v = Tensor.from_global(values, mesh(*[None] * values.ndim), world, requires_grad=True)
    y = ops.setitem(x, index, v)
    expected, number_of = array.copy(), np.full(array.shape, -1)
    expected[index] = values
    number_of[index] = np.arange(values.size).reshape(values.shape)
    np.testing.assert_array_equal(y.full(), expected)
    assert y.layout == x.layout
    if values.size:
        ops.sum(y * weights).backward()
        np.testing.assert_allclose(x.grad.full(), np.where(number_of < 0, weights, 0))
        slope = np.zeros(values.size)
        slope[number_of[number_of >= 0]] = weights[number_of >= 0]
        np.testing.assert_allclose(v.grad.full().reshape(-1), slope)


@pytest.mark.ranks(4)
def test_assignment_by_a_split_mask_equals_numpy(world):
    array, mesh = np.arange(20.0).reshape(5, 4), Mesh((2, 2), ("a", "b"))
    mask, x = array % 3 == 1, Tensor.from_global(array, mesh("a", "b"), world)
    x[Tensor.from_global(mask, mesh("a", "b"), world)] = -np.arange(1.0, 8)
    array[mask] = -np.arange(1.0, 8)
    np.testing.assert_array_equal(x.full(), array)
    with pytest.raises(
        RuleError, match=r"^the mask holds for \d+ elements, but the values have shape \(3,\)$"
    ):
        x[x > 0] = np.ones(3)
    with pytest.raises(
        OutOfRange, match=r"^an index of a tensor of shape \(5, 4\): index 9 is out of bounds"
    ):
        x[[1, 9]] = 0
    scalar = Tensor.from_global(np.float32(3), mesh(), world)
    with pytest.raises(OutOfRange, match=r"^an index of a tensor of shape \(\): it has no dim"):
        scalar[[0]] = 1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: ops.split(x, 0), r"^dim 0 of size 4 does not split into 0 equal parts$"),
        (lambda x: ops.split(x, 2, dim=2), r"^dim 2 is out of range for a tensor of 2 dims$"),
        (lambda x: ops.bias_add(x, np.ones(6), dim=3), r"^dim 3 is out of range for a tensor of 2 dims$"),
        (lambda x: ops.prelu(x, np.ones(6), dim=-3), r"^dim -3 is out of range for a tensor of 2 dims$"),
        (lambda x: ops.one_hot(ops.cast(x, int), -1), r"^one_hot: depth must be an integer from 0 on, got -1$"),
    ],
)  # fmt: skip
def test_dims_and_numbers_out_of_range_are_refused(call, text):
    x = Tensor.from_global(np.ones((4, 6)), Mesh((2,), ("a",))("a", None), LockStep(2))
    with pytest.raises(RuleError, match=text):
        call(x)


def test_dims_of_separated_index_arrays_come_first():
    """Separators follow numpy: ``...`` separates even without a dim, and integers join a mask."""
    array, every, w = np.arange(120.0).reshape(3, 2, 4, 5), slice(None), LockStep(2)
    mask, row = np.arange(8).reshape(2, 4) % 3 == 0, np.array([True, False, True, False])
    two = [0, 1]
    indices = [
        (every, mask, 0), (every, mask, ..., 0), (every, mask, [0, 1, 2]), (0, mask), (0, mask, 0), (every, None, mask, 0), (0, None, mask),
        (every, mask, None, 0), (every, two, ..., [1, 2]), (every, two, ..., 0), (every, 0, ..., two, 0), (every, two, two, ..., 0),
        (every, None, two, ..., [1, 2]), (every, 0, row, ..., 0), (0, ..., row, every), (every, 0, row), (..., 0, row, every), (two, ..., two),
        (every, 0, two, two), (0, 0, two, two), (every, two, two, 0), (..., two, two, 0), (every, None, 0, two, two),
    ]  # fmt: skip
    for dims in (("a", None, None, None), (None, None, "a", None), (None, None, None, "a")):
        x = Tensor.from_global(array, Mesh((2,), ("a",))(*dims), w)
        for index in indices:
            np.testing.assert_array_equal(x[index].full(), array[index], err_msg=str(index))


def _owned_ids(layout, ids, rank):
    return {*ids[layout.slices(ids.shape, rank)].flat}


@pytest.mark.ranks(3, 8)
@pytest.mark.parametrize("dims", [("x", None), (None, "x")], ids=str)
def test_reshaping_to_1_dim_and_back_moves_only_missing_elements(world, dims):
    """Ranks receive the bytes of elements that they own after the reshape and not before.

    Blocks of the flat tensor end within rows.
    """
    mesh, array = Mesh((world.size,), ("x",)), np.random.default_rng(5).normal(size=(13, 5))
    ids = np.arange(array.size).reshape(array.shape)
    x = Tensor.from_global(array, mesh(*dims), world, requires_grad=True)
    with record() as forward_trace:
        flat = np.ravel(x)
    with record() as backward_trace:
        y = flat.reshape(array.shape)
    assert (flat.layout, y.layout) == (mesh("x"), mesh("x", None))
    for rank in world.ranks:
        owned_ids = [
            _owned_ids(a, b, rank) for a, b in ((x.layout, ids), (flat.layout, ids.ravel()), (y.layout, ids))
        ]
        assert forward_trace.nbytes(rank) == 8 * len(owned_ids[1] - owned_ids[0])
        assert backward_trace.nbytes(rank) == 8 * len(owned_ids[2] - owned_ids[1])
    ops.sum(y * array).backward()
    np.testing.assert_array_equal(x.grad.full(), array)
    np.testing.assert_array_equal(flat.full(), array.ravel())
    with record() as trace:
        result = x[Tensor.from_global(np.array([2, 12, -1]), mesh(None), world), [0, 4, 1]]
    np.testing.assert_array_equal(result.full(), array[[2, 12, -1], [0, 4, 1]])
    assert trace.nbytes(0) < array.nbytes / 2
