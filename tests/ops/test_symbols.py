"""Symbols, loops over rows, sizes and indices of tensors work as in numpy."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import spmdsim.ops as ops
from spmdsim import LockStep, Mesh, Tensor, record
from spmdsim.errors import LayoutError, RuleError, UsageTypeError

A = np.arange(1.0, 25.0, dtype=np.float32).reshape(4, 6)


def tensor():
    return Tensor.from_global(A, Mesh((2, 2), ("dp", "tp"))("dp", "tp"), LockStep(4))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: abs(x - 7),
        lambda x: x // 5,
        lambda x: 100 // x,
        lambda x: x % 5,
        lambda x: 100 % x,
        lambda x: A.T @ x,
        lambda x: x.reshape(24),
        lambda x: x[None, -1],
        lambda x: x.clip(3, 9),
        lambda x: (x / 4).round(),
        lambda x: x.cumsum(axis=0),
        lambda x: x[:, :1].squeeze(axis=1),
        lambda x: x.swapaxes(0, 1).repeat(2, axis=1),
        lambda x: x.take([2, -1], axis=0),
        lambda x: (-x).argsort(axis=1),
        lambda x: x.conjugate().compress([True, False, True], axis=1),
        lambda x: np.take_along_axis(x, x.argpartition(2, axis=0), 0),
        lambda x: x.sum(axis=1, keepdims=True) / x.max(axis=0),
        lambda x: x.conj().mean(axis=(0, 1)),
        lambda x: divmod(x, 5)[0],
        lambda x: divmod(100, x)[1],
        lambda x: +x - (-x),
        lambda x: 2**x,
        lambda x: x == A[:, :1].tolist(),
        lambda x: x != A[0],
        lambda x: (x > 3) & (x < 9) | (x == 1) ^ (x > 20),
        lambda x: ~(x > 3),
        lambda x: True & (x > 3),
        lambda x: np.float32(2) - x,
    ],
)
def test_symbols_are_numpys(function):
    expected = function(A)
    result = function(tensor()).full()
    assert result.dtype == expected.dtype and np.array_equal(result, expected)


INTEGERS = np.arange(-12, 12).reshape(4, 6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x & 6,
        lambda x: 6 | x,
        lambda x: x ^ 5,
        lambda x: ~x,
        lambda x: x << 2,
        lambda x: 1 << (x & 7),
        lambda x: x >> 1,
        lambda x: 1024 >> (x & 7),
    ],
)
def test_symbols_of_integers_are_numpys(function):
    x = Tensor.from_global(INTEGERS, Mesh((2, 2), ("dp", "tp"))("dp", "tp"), LockStep(4))
    result, expected = function(x).full(), function(INTEGERS)
    assert result.dtype == expected.dtype and np.array_equal(result, expected)


def test_subclasses_keep_their_own_attributes():
    class Other(Tensor):
        __slots__ = ()

        def __getattr__(self, name):
            return f"no {name}"

    x = tensor()
    assert Other(x.world, x.meta, x.stored_shards).repeat == "no repeat" and Tensor.clip is ops.clip


def test_a_tensor_of_one_element_is_a_number():
    x = Tensor.from_global(np.array([3]), Mesh((4,), ("x",))("x"), LockStep(4))
    assert (int(x), float(x), complex(x), bool(x), list(range(x))) == (3, 3.0, 3, True, [0, 1, 2])
    with pytest.raises(UsageTypeError, match="a tensor that is used as an index must have integers"):
        range(x.astype(float))


IN_PLACE = {
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "//=": operator.ifloordiv,
    "%=": operator.imod,
    "**=": operator.ipow,
}


@pytest.mark.ranks(4)
@pytest.mark.parametrize("symbol", IN_PLACE)
def test_updates_in_place_keep_the_tensor(world, symbol):
    """Other references to the tensor have the new values; tensors that share its arrays do not."""
    mesh = Mesh((2, 2), ("dp", "tp"))
    x = Tensor.from_global(A, mesh("dp", "tp"), world)
    other, shared, array = x, Tensor.from_local(x.stored_shards, x.layout, world), A.copy()
    x = IN_PLACE[symbol](x, 2)
    assert x is other and x.layout == mesh("dp", "tp")
    np.testing.assert_array_equal(other.full(), IN_PLACE[symbol](array, 2))
    np.testing.assert_array_equal(shared.full(), A)


@pytest.mark.ranks(4)
def test_a_training_loop_updates_in_place(world):
    """Parameters that a loop updates in place stay leaves with gradients."""
    mesh, target = Mesh((4,), ("x",)), A / 10
    p = Tensor.from_global(np.zeros_like(A), mesh("x", None), world, requires_grad=True)
    for _ in range(3):
        p.grad = None
        ops.sum((p - target) ** 2).backward()
        for q in (p,):
            q -= 0.5 * q.grad
    assert p.requires_grad and p.node is None
    np.testing.assert_allclose(p.full(), target, rtol=1e-6)


@pytest.mark.ranks(4)
def test_gradients_use_the_values_from_before_an_update(world):
    """Operators that read the old values use them in the backward pass."""
    mesh = Mesh((4,), ("x",))
    x = Tensor.from_global(np.arange(1.0, 9), mesh("x"), world, requires_grad=True)
    y = x * x
    z = y * x
    y += x
    y *= y
    x += 1
    ops.sum(z + y).backward()
    old = np.arange(1.0, 9)
    np.testing.assert_allclose(x.grad.full(), 3 * old**2 + 2 * (old**2 + old) * (2 * old + 1))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda x: operator.iadd(x, np.ones((2, 4, 6))), LayoutError, "in place must keep the shape"),
        (lambda x: operator.imul(x, 1j), RuleError, "must keep the element type float32, got complex64"),
        (lambda x: operator.iand(x > 3, 2.5), RuleError, "not defined for elements of bool and float64"),
        (lambda x: operator.setitem(x, 1, 1j), RuleError, "complex64 are not assigned to float32"),
        (lambda x: operator.setitem(x, x > 3, [1, 2]), RuleError, "the mask holds for"),
        (lambda x: operator.setitem(x, [0, 2], [1, 2, 3, 4, 5, 6, 7]), RuleError, "broadcast"),
        (lambda x: operator.setitem(x, 7, 1), RuleError, "index 7 is out of range"),
    ],
)
def test_wrong_updates_in_place_are_refused(change, error, text):
    with pytest.raises(error, match=text):
        change(tensor())


def test_a_leaf_takes_no_values_with_gradients():
    x = Tensor.from_global(A, Mesh((4,), ("x",))("x", None), LockStep(4), requires_grad=True)
    with pytest.raises(
        UsageTypeError, match=r"add in place: a parameter's new values must not require a gradient"
    ):
        x += x * 2


@pytest.mark.ranks(4)
@pytest.mark.parametrize("dims", [("a", "b"), (None, ("a", "b")), ("b", None)])
def test_assignment_is_numpys_and_gathers_nothing(world, dims):
    mesh, rng = Mesh((2, 2), ("a", "b")), np.random.default_rng(3)
    values = rng.normal(size=(7, 5))
    indices = [
        np.s_[2], np.s_[:, -1], np.s_[1:6:2, ::-1], np.s_[..., 3:1:-2], np.s_[None, 4:], np.s_[5:5], (), np.s_[-1, 0],
        values > 0.5, values[:, 0] > 0, np.s_[6:0:-3, 1:4],
    ]  # fmt: skip
    for index in indices:
        expected, x = values.copy(), Tensor.from_global(values, mesh(*dims), world)
        new: Any = 7.5 if isinstance(index, np.ndarray) else rng.normal(size=expected[index].shape)
        expected[index] = new
        with record() as trace:
            x[index] = new
        np.testing.assert_array_equal(x.full(), expected)
        assert not trace.nbytes(), index


def test_a_tensor_iterates_over_rows():
    rows = [row.full() for row in tensor()]
    assert len(rows) == 4 and np.array_equal(rows, A)


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (np.asarray, UsageTypeError, "full"),
        (lambda x: x[np.array([0.5, 1])], RuleError, "not ndarray of float64"),
        (lambda x: x["a"], RuleError, "not str"),
    ],
)
def test_unsupported_conversions_and_indices_are_refused(function, error, text):
    with pytest.raises(error, match=text):
        function(tensor())


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.sort(),
        lambda x: x.sort(axis=0),
        lambda x: x.partition(2, axis=0) if isinstance(x, Tensor) else x.sort(axis=0),
        lambda x: x.fill(2.5),
        lambda x: x.put([0, 7, -1], [5, 6]),
    ],
)
def test_methods_that_change_an_array_change_only_the_tensor(change):
    array, x = A[::-1, ::-1].copy(), tensor()
    x[...] = array
    layout, before = x.layout, x + 0
    assert change(x) is None
    change(array)
    np.testing.assert_array_equal(x.full(), array)
    assert x.layout == layout
    np.testing.assert_array_equal(before.full(), A[::-1, ::-1])


@pytest.mark.parametrize(
    ("word", "instead"),
    [("exp", "spmdsim.ops.exp"), ("strides", "local()"), ("argsrt", "did you mean 'argsort'")],
)
def test_a_missing_attribute_names_an_alternative(word, instead):
    with pytest.raises(AttributeError, match="has no attribute") as raised:
        getattr(tensor(), word)
    assert instead in str(raised.value) and not hasattr(tensor(), "__array_interface__")


def test_equal_numbers_of_different_types_are_distinguished():
    """Numbers that Python calls equal have several types, and zeros have signs."""
    array = np.array([1.0, -2.0], np.float32)
    x = Tensor.from_global(array, Mesh((1,), ("x",))(None), LockStep(1))
    values = [0, 0.0, -0.0, False, 0j, complex(0.0, -0.0), complex(-0.0, 0.0), 1, 1.0, True, 1 + 0j]
    for value in (*values, *reversed(values)):
        result, expected = (x * value).full(), array * value
        assert (result.dtype, result.tobytes()) == (expected.dtype, expected.tobytes()), value
