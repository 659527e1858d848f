"""Quotients of integers are float32, numpy's numbers widen no tensor, and no dims mean all dims in OneFlow and Paddle."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.dialects.oneflow as flow
import spmdsim.dialects.paddle as paddle
from spmdsim.dialects.oneflow.sbp import split
from spmdsim.dialects.session import use_world

X = np.array([[3, 1, 2, 4], [6, 5, 8, 7]])
HALVES = X / 2


def in_oneflow(array):
    return flow.tensor(array, placement=flow.placement("cpu", [0, 1]), sbp=split(0))


@pytest.fixture(params=["oneflow", "paddle"])
def system(request):
    """Return the dialect's module and its function that makes a tensor."""
    return (flow, in_oneflow) if request.param == "oneflow" else (paddle, paddle.to_tensor)


@pytest.mark.ranks(2)
def test_fractions_of_integers_are_float32(world, system):
    module, tensor = system
    with use_world(world):
        x = tensor(X)
        for y, wanted in (
            (x / 2, X / 2), (x * 0.5, X * 0.5), (x / x, X / X), (module.sqrt(x), np.sqrt(X)), (x * np.float64(0.5), X / 2),
            (module.exp(x), np.exp(X)), (x + 0.5, X + 0.5), (module.sigmoid(x), 1 / (1 + np.exp(-X))),
        ):  # fmt: skip
            assert y.dtype == np.float32
            np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-6)
        assert (x + 1).dtype == (x * np.int32(2)).dtype == x.sum().dtype == np.int64


@pytest.mark.ranks(2)
def test_requested_types_stay(world, system):
    module, tensor = system
    with use_world(world):
        narrow, wide = tensor(HALVES.astype("f4")), tensor(HALVES)
        assert (narrow * np.float64(2)).dtype == (narrow + np.float32(1)).dtype == np.float32
        assert (wide * 2).dtype == (wide / tensor(X)).dtype == module.exp(wide).dtype == np.float64
        assert module.cast(tensor(X), module.float64).dtype == np.float64
        assert module.cast(tensor(X), "float64").dtype == np.float64
        assert module.cast(narrow, np.float64).dtype == np.float64
    with use_world(world):
        assert paddle.sum(paddle.to_tensor(X), dtype="float64").dtype == np.float64


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    "name", ["sum", "mean", "max", "min", "prod", "all", "any", "amax", "std", "var", "logsumexp"]
)
def test_no_dims_mean_all_dims(world, name):
    numpy_function = {"amax": np.max, "logsumexp": lambda x: np.log(np.exp(x).sum())}.get(name) or getattr(
        np, name
    )
    with use_world(world):
        wanted = numpy_function(HALVES, ddof=1) if name in ("std", "var") else numpy_function(HALVES)
        np.testing.assert_allclose(
            getattr(paddle, name)(paddle.to_tensor(HALVES), axis=[]).numpy(), wanted, rtol=1e-9
        )
        if name not in ("max", "min"):
            np.testing.assert_allclose(
                getattr(flow, name)(in_oneflow(HALVES), dim=[]).numpy(), wanted, rtol=1e-9
            )


@pytest.mark.ranks(2)
def test_scale_and_padding_of_paddle(world):
    """``scale`` adds its bias before or after it scales, and the padding's row of an embedding is zero."""
    with use_world(world):
        x = paddle.to_tensor(HALVES)
        np.testing.assert_allclose(paddle.scale(x, 2.0, 1.0).numpy(), 2 * HALVES + 1)
        np.testing.assert_allclose(
            paddle.scale(x, 2.0, 1.0, bias_after_scale=False).numpy(), 2 * (HALVES + 1)
        )
        for attribute in (None, HALVES):
            table = paddle.nn.Embedding(2, 4, padding_idx=-1, weight_attr=attribute)
            assert (table.weight.numpy()[1] == 0).all() and (table.weight.numpy()[0] != 0).all()
