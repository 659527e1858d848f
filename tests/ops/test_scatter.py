"""Functions like ``np.add.at``, and assignment by tensors of ids, equal numpy.

Duplicate ids, gradients and bytes are checked, too.
"""

from __future__ import annotations

import numpy as np
import pytest

from spmdsim import Mesh, Tensor, check_gradient, ops, record
from spmdsim.errors import InputError, OutOfRange, RuleError, UsageTypeError

INDICES = {
    "rows": [1, 1, 3],
    "a table of rows": [[0, 1], [1, -1]],
    "columns": (slice(None), [0, 0, 4]),
    "points": ([1, 1, 2], [0, 0, 4]),
    "outer points": ([[0], [1]], [0, 1]),
    "rows of a slice": (slice(1, 5), [0, 0, 4]),
    "in one row": (3, [0, 0, 4]),
    "every other column": ([0, 0], slice(None, None, 2)),
    "a mask of rows": np.arange(7) % 2 == 0,
    "a mask": np.arange(35).reshape(7, 5) % 4 == 1,
    "none": np.zeros(0, int),
    "a row": np.array(-2),
}
LAYOUTS = [(("a", "b"), None), ("b", "a"), (None, None)]


def tensor_of_ids(mesh, world, entry):
    if not isinstance(entry, (list, np.ndarray)) or np.asarray(entry).dtype == bool:
        return entry
    ids = np.array(entry)
    return Tensor.from_global(ids, mesh(*["a", None, None][: ids.ndim]), world)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", INDICES)
def test_repeated_indices_equal_numpy(name, world):
    mesh, array = Mesh((2, 2), ("a", "b")), np.arange(35.0).reshape(7, 5)
    index = INDICES[name]
    index = index if isinstance(index, tuple) else np.array(index)
    of_tensors = (
        tuple(tensor_of_ids(mesh, world, entry) for entry in index)
        if isinstance(index, tuple)
        else tensor_of_ids(mesh, world, index)
    )
    values = np.random.default_rng(0).integers(-3, 9, array[index].shape).astype(float)
    for axes in LAYOUTS:
        for given_index in (index, of_tensors):
            functions = (np.add, np.subtract, np.multiply, np.maximum, np.minimum)
            for function in functions if given_index is index else (np.add,):
                for value in (values, 2.0):
                    expected = array.copy()
                    function.at(expected, index, value)
                    x = Tensor.from_global(array, mesh(*axes), world)
                    assert function.at(x, given_index, value) is None
                    np.testing.assert_array_equal(x.full(), expected)
                    assert x.layout == mesh(*axes)
            expected = array.copy()
            expected[index] = values
            x = Tensor.from_global(array, mesh(*axes), world)
            x[given_index] = Tensor.from_global(values, mesh(*[None] * values.ndim), world)
            np.testing.assert_array_equal(x.full(), expected)
            np.testing.assert_array_equal(x[given_index].full(), expected[index])


@pytest.mark.ranks(2)
def test_a_single_id_is_an_index(world):
    layout = Mesh((2,), ("a",))("a", None)
    x = Tensor.from_global(np.zeros((4, 3)), layout, world)
    for ids in (2, np.array(2), Tensor.from_global(np.array(2), layout.mesh(), world)):
        np.testing.assert_array_equal(ops.scatter_add(x, ids, [1, 2, 3]).full()[2], [1, 2, 3])


@pytest.mark.ranks(2)
def test_a_cache_is_written_at_a_position_that_is_a_tensor(world):
    mesh = Mesh((2,), ("x",))
    cache = Tensor.from_global(np.zeros((2, 6, 3)), mesh(None, "x", None), world)
    expected = np.zeros((2, 6, 3))
    position = Tensor.from_global(np.array(0), mesh(), world)
    for k in range(4):
        cache[:, position] = np.full((2, 3), k + 1.0)
        expected[:, k] = k + 1
        np.testing.assert_array_equal(cache[:, position].full(), expected[:, k])
        position += 1
    # Each sequence has a different position.
    positions = Tensor.from_global(np.array([5, 4]), mesh("x"), world)
    cache[np.arange(2), positions] = 9
    expected[[0, 1], [5, 4]] = 9
    np.testing.assert_array_equal(cache.full(), expected)


@pytest.mark.ranks(2)
def test_added_values_and_remaining_elements_have_gradients(world):
    mesh, rng = Mesh((2,), ("x",)), np.random.default_rng(0)
    x = Tensor.from_global(rng.normal(size=(5, 3)), mesh("x", None), world)
    ids = Tensor.from_global(np.array([4, 1, 1, -5]), mesh(None), world)
    values = Tensor.from_global(rng.normal(size=(4, 3)), mesh(None, "x"), world)
    assert check_gradient(lambda a, v: ops.scatter_add(a, ids, v), x, values)
    columns = Tensor.from_global(rng.normal(size=(5, 4)), mesh("x", None), world)
    assert check_gradient(lambda a, v: ops.scatter_add(a, [2, 0, 2, 1], v, dim=1), x, columns)

    def assigned(a, v):
        b = a * 1
        b[ids] = v
        return b

    def subtracted(a, v):
        b = a * 1
        np.subtract.at(b, ids, v)
        return b

    for function in (assigned, subtracted):
        report = check_gradient(function, x, values)
        assert report and report.checked == 27, report
    leaf = Tensor.from_global(np.ones((5, 3)), mesh("x", None), world, requires_grad=True)
    y = leaf * 1
    y[ids] = values
    y.sum().backward()
    np.testing.assert_array_equal(leaf.grad.full()[:, 0], [0, 0, 1, 1, 0])  # Row 1 is written twice.
    with pytest.raises(UsageTypeError, match=r"np.maximum.at has no gradient; detach\(\) its operands"):
        np.maximum.at(leaf * 1, [1], 3.0)


@pytest.mark.ranks(4)
def test_only_ids_and_values_are_gathered(world):
    mesh = Mesh((4,), ("x",))
    x = Tensor.from_global(np.zeros((8, 5)), mesh("x", None), world)
    replicated = Tensor.from_global(np.ones((4, 5)), mesh(None, None), world)
    split = Tensor.from_global(np.ones((4, 5)), mesh("x", None), world)
    ids = Tensor.from_global(np.array([0, 7, 7, 3]), mesh(None), world)
    with record() as trace:
        y = ops.scatter_add(x, ids, replicated)
    assert y.layout == x.layout and not trace.nbytes() and not trace.counts()
    with record() as trace:
        ops.scatter_add(x, ids, split)
    assert trace.counts() == {"all_gather": 1}
    assert [trace.nbytes(rank) for rank in world.ranks] == [3 * 5 * 8] * len(world.ranks)
    columns = Tensor.from_global(np.zeros((8, 8)), mesh(None, "x"), world)
    across = Tensor.from_global(np.ones((4, 8)), mesh(None, "x"), world)
    with record() as trace:
        columns[ids] = across  # Dims without ids stay split.
    assert not trace.nbytes()


@pytest.mark.ranks(2)
def test_types_are_kept_and_wrong_arguments_refused(world):
    mesh = Mesh((2,), ("x",))
    small = Tensor.from_global(np.zeros(4, np.float16), mesh("x"), world)
    np.add.at(small, [0, 0, 0], np.float16(1))
    assert small.dtype == np.float16 and small.full()[0] == 3
    x = Tensor.from_global(np.zeros(4, int), mesh("x"), world)
    ids = Tensor.from_global(np.array([0, 9]), mesh(None), world)
    for call, kind, message in [
        (
            lambda: np.add.at(x, [0], 1.5),
            RuleError,
            r"^np.add.at: elements of float64 do not go into a tensor of int64",
        ),
        (lambda: x.__setitem__(ids, 1), InputError, "id 9 is outside 0..3"),
        (lambda: np.add.at(x, ids[:1], np.ones(3, int)), RuleError, "broadcast"),
        (
            lambda: np.add.at(np.zeros(4), ids, 1),
            UsageTypeError,
            "np.add.at of an array takes no tensors; make a tensor",
        ),
        (lambda: np.power.at(x, [0], 2), UsageTypeError, "np.power.at takes no tensors"),
        (lambda: ops.scatter_add(x, [0], 1, dim=1), OutOfRange, "dim 1 is out of range"),
        (lambda: x[None].__setitem__((None, ids[:1]), 1), RuleError, "takes no new dims"),
    ]:
        with pytest.raises(kind, match=message):
            call()
