"""Products with a bias are right on every mesh and placement that another system publishes as checked."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from layout_cases import cases

import spmdsim.ops as ops
from spmdsim import record
from spmdsim.core import Layout, Mesh
from tests.nn.test_collectives import mlp, normal, tensor_of

PEERS = {c.values[0]["case"]: c.values[0] for c in cases("operators_peers", "dtensor_tp_asserted")}
TP = Mesh((4,), ("tp",))
M, K, N = 12, 8, 4
REPLICATED, ROWS, COLUMNS = (None, None), ("tp", None), (None, "tp")


def _distribute(layout, array, world):
    """Return an array as a tensor in a layout; each rank has a different term of a pending one."""
    return (
        tensor_of(array, layout.reduced, world, True).to(layout)
        if not layout.partial
        else _terms(layout, array, world)
    )


def _terms(layout, array, world):
    from spmdsim.arrays import Tensor

    size = layout.mesh.size
    weights = np.arange(size) - (size - 1) / 2 + 1 / size  # The weights add up to 1.
    return Tensor.from_local(
        lambda rank: array * weights[rank], layout, world, shape=array.shape, requires_grad=True
    )


@pytest.mark.ranks(4)
@pytest.mark.parametrize("bias_shape", [(N,), (M, N), (), (1, N), (M, 1)], ids=str)
@pytest.mark.parametrize(("left", "right"), [(ROWS, REPLICATED), (REPLICATED, COLUMNS), (COLUMNS, ROWS)])
def test_products_with_a_bias_equal_numpy(world, left, right, bias_shape):
    assert any("(N),(M,N),(),(1,N),(M,1)" in name for name in PEERS)
    a, b, c = normal(M, K), normal(K, N), normal(*bias_shape, seed=3)
    dims = len(bias_shape)
    bias_layouts = [TP(*[None] * dims), TP(*[None] * dims, partial="tp")]
    if dims and bias_shape[0] == M:
        bias_layouts.append(TP("tp", *[None] * (dims - 1)))
    for layout in bias_layouts:
        x, w = tensor_of(a, TP(*left), world, True), tensor_of(b, TP(*right), world, True)
        bias = _distribute(layout, c, world)
        y = ops.add(ops.matmul(x, w), bias)
        np.testing.assert_allclose(y.full(), a @ b + c, atol=1e-12)
        y.backward(tensor_of(np.ones((M, N)), y.layout.dual(), world))
        np.testing.assert_allclose(x.grad.full(), np.ones((M, N)) @ b.T, atol=1e-12)
        np.testing.assert_allclose(w.grad.full(), a.T @ np.ones((M, N)), atol=1e-12)
        summed = tuple(d for d in range(2) if d < 2 - dims or bias_shape[d - (2 - dims)] == 1)
        expected = np.ones((M, N)).sum(axis=summed).reshape(bias_shape)
        np.testing.assert_allclose(bias.grad.full(), expected, atol=1e-12)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("shape", [(2, 2), (4, 1), (1, 4)], ids=str)
def test_rows_by_columns_on_two_axes_need_no_communication(world, shape):
    assert any("(n/2,2),(n,1),(1,n): [S0,R]@[R,S1]" in name for name in PEERS)
    mesh = Mesh(shape, ("a", "b"))
    a, b = normal(256, 128), normal(128, 256)
    with record() as trace:
        y = ops.matmul(tensor_of(a, mesh("a", None), world), tensor_of(b, mesh(None, "b"), world))
    assert trace.counts() == {} and y.layout.canonical == mesh("a", "b").canonical
    np.testing.assert_allclose(y.full(), a @ b, rtol=1e-12, atol=1e-11)


@pytest.mark.ranks(4)
def test_products_of_fewer_rows_than_ranks_equal_numpy(world):
    assert any("rows < ranks: (n-1,n)@(n,n)" in name for name in PEERS)
    a, b = normal(3, 4), normal(4, 4)
    for left, right in itertools.product((ROWS, REPLICATED, COLUMNS), repeat=2):
        x, w = tensor_of(a, TP(*left), world, True), tensor_of(b, TP(*right), world, True)
        y = ops.matmul(x, w)
        np.testing.assert_allclose(y.full(), a @ b, atol=1e-12)
        y.backward(tensor_of(np.ones((3, 4)), y.layout.dual(), world))
        np.testing.assert_allclose(w.grad.full(), a.T @ np.ones((3, 4)), atol=1e-12)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("right", [REPLICATED, ROWS, COLUMNS], ids=str)
def test_an_empty_contraction_leaves_the_bias(world, right):
    assert "empty contraction: (12,0)@(0,4)+bias" in PEERS
    bias = normal(4)
    x, w = tensor_of(np.zeros((12, 0)), TP(*COLUMNS), world), tensor_of(np.zeros((0, 4)), TP(*right), world)
    y = ops.linear(x, w, tensor_of(bias, Layout.replicated(TP, 1), world))
    np.testing.assert_array_equal(y.full(), np.tile(bias, (12, 1)))


@pytest.mark.ranks(4)
def test_the_second_layer_of_an_mlp_reduces(world):
    """Only the row-parallel layer has a collective, as in the other system's counts per module."""
    case = PEERS["MLPModule col/row fwd"]
    with record() as trace:
        mlp(world, TP(*REPLICATED))(tensor_of(normal(8, 8), TP(*REPLICATED), world))
    events = [e for e in trace.collectives if e.collective != "slice"]
    expected = [name for counts in case["modules"].values() for name, n in counts.items() for _ in range(n)]
    assert [e.collective for e in events] == expected
    # The second of two products leaves a pending reduction.
    products = [e for e in trace.operators if e.name in ("matmul", "linear")]
    assert len(products) == 2 and events[0].step.src.partial
    assert products[0].start + products[0].seconds <= events[0].start
