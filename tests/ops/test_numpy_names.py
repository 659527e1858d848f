"""Operators take numpy's names of parameters: ``axis`` for a dim, and ``ddof`` beside ``correction``."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.ops as ops
from spmdsim import Mesh, Tensor
from spmdsim.errors import UsageTypeError

A = np.random.default_rng(0).normal(size=(4, 6))
MASK = A > 0.5


def softmax(x, axis):
    e = np.exp(x)
    return e / e.sum(axis=axis, keepdims=True)


def tensor(world, array=A, *dims):
    mesh = Mesh((2, world.size // 2), ("a", "b"))
    return Tensor.from_global(array, mesh(*(dims or ("a", "b"))), world)


FUNCTIONS = {
    **{name: getattr(np, name) for name in ("sum", "mean", "max", "min", "prod", "argmax", "argmin")},
    "softmax": softmax,
    "log_softmax": lambda x, axis: np.log(softmax(x, axis)),
    "l2_normalize": lambda x, axis: x / np.linalg.norm(x, axis=axis, keepdims=True),
}


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_axis_names_a_dim(world, name):
    x, expected = tensor(world), FUNCTIONS[name]
    for axis in (0, -1, np.int64(1)):
        np.testing.assert_allclose(
            getattr(ops, name)(x, axis=axis).full(), expected(A, axis=axis), rtol=1e-12
        )
    if hasattr(x, name):
        np.testing.assert_allclose(getattr(x, name)(axis=1).full(), expected(A, axis=1), rtol=1e-12)
        np.testing.assert_allclose(getattr(x, name)(axis=None).full(), expected(A, axis=None), rtol=1e-12)
    if hasattr(A, name) and "arg" not in name:
        result = getattr(x, name)(axis=(0, 1), keepdims=True).full()
        np.testing.assert_allclose(result, getattr(A, name)(axis=(0, 1), keepdims=True), rtol=1e-12)


@pytest.mark.ranks(4)
def test_functions_and_methods_take_dim_or_axis(world):
    x, m = tensor(world), tensor(world, MASK)
    ids = np.array([1, 0, 3])
    for result, expected in [
        (ops.concat([x, x], axis=1), np.concatenate([A, A], axis=1)),
        (ops.split(x, 3, axis=1)[1], A[:, 2:4]),
        (ops.gather(x, ids, axis=1), np.take(A, ids, axis=1)),
        (ops.sum(x, dim=0), A.sum(0)),
        (ops.softmax(x, dims=0), softmax(A, 0)),
        (m.all(axis=0), MASK.all(axis=0)),
        (m.any(axis=1), MASK.any(axis=1)),
        (ops.any(m, axis=0, keepdims=True), MASK.any(axis=0, keepdims=True)),
    ]:
        np.testing.assert_allclose(result.full(), expected, rtol=1e-12)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ops.sum(x, dims=0, axis=1),
        lambda x: ops.sum(x, 0, axis=1),
        lambda x: x.mean(0, axis=0),
        lambda x: ops.softmax(x, 1, axis=0),
        lambda x: ops.sum(x, axis=1, dim=0),
        lambda x: ops.concat([x, x], 0, axis=1),
    ],
)
def test_two_names_of_one_argument_are_refused(call):
    from spmdsim import LockStep

    with pytest.raises(UsageTypeError, match=r"^\w+ got dims?=\d and (axis|dim)=\d, two names of one thing$"):
        call(tensor(LockStep(4)))


def test_operators_pickle_and_suggest_arguments():
    import pickle

    assert pickle.loads(pickle.dumps(ops.sum)) is ops.sum
    assert ops.sum.__name__ == "sum" and ops.sum.op.name == "sum" and "axis" in ops.sum.__doc__
    with pytest.raises(TypeError, match="no argument 'axes'; did you mean 'axis'"):
        ops.sum(None, axes=0)
