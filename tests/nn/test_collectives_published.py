"""Layers need no more collectives than another system publishes."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from layout_cases import cases

import spmdsim.ops as ops
from spmdsim import nn, record
from spmdsim.core import Layout, Mesh
from tests.nn.test_collectives import WIDTH, forward_backward, mlp, normal, tensor_of

TP = Mesh((4,), ("tp",))
R, S0, S1 = (None, None), ("tp", None), (None, "tp")
PEERS = {c.values[0]["case"]: c.values[0] for c in cases("operators_peers", "dtensor_tp_asserted")}


def run_counted(call, result_layout, operands, world):
    """Run `call` on `operands` in a world; return its result and the counts of both passes.

    The counts of the forward pass include the change of the result to `result_layout`, if it is not None.
    """
    with record() as forward:
        y = call(*operands)
        y = y if result_layout is None else y.to(result_layout)
    with record() as backward:
        y.backward(tensor_of(np.ones(y.shape), y.layout.dual(), world))
    return y, forward.counts(), backward.counts()


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("name", "x", "w", "out"),
    [
        ("colwise Linear(16,16), input [8,16] R", R, S1, None),
        ("colwise Linear, input S0", S0, S1, S1),
        ("rowwise Embedding(16,16), indices R, out R", None, S0, "R"),
        ("rowwise Embedding, indices [8] R, out S1", None, S0, "S1"),
        ("colwise Embedding(16,16), indices [4,2] R", None, S1, None),
    ],
)
def test_layers_have_the_published_counts(world, name, x, w, out):
    case = PEERS[name]
    weight = tensor_of(normal(16, 16), TP(*w), world, True)
    if x is not None:
        operand = tensor_of(normal(8, 16), TP(*x), world, True)
        product = ops.matmul.op.shard({"n": "tp"})
        y, forward, backward = run_counted(product, None, (operand, weight), world)
    else:
        shape = (4, 2) if "[4,2]" in name else (8,)
        ids = tensor_of(np.arange(8).reshape(shape), Layout.replicated(TP, len(shape)), world)
        result_layout = {None: None, "R": TP(*R), "S1": TP(*S1)}[out]
        y, forward, backward = run_counted(ops.embedding, result_layout, (ids, weight), world)
    assert (forward, backward) == (case["fwd"], case["bwd"])
    if "out_local" in case:
        local = [n if isinstance(n, int) else 16 // 4 for n in case["out_local"]]
        assert list(y.local().shape) == local


@pytest.mark.ranks(4)
def test_an_mlp_has_the_published_counts(world):
    x = normal(8, 8)
    plain = mlp(world, TP(*R))
    forward, backward = forward_backward(plain, tensor_of(x, TP(*R), world))
    total = PEERS["MLP col->row, R in, R out (fwd+bwd)"]["total"]
    assert _sum(forward, backward) == total
    split = mlp(world, TP(*S0))
    forward, backward = forward_backward(split, tensor_of(x, TP(*S0), world))
    total = PEERS["MLP col->row sequence parallel S0 in/out (fwd+bwd)"]["total"]
    counts = _sum(forward, backward)
    # The other system does not reduce the gradient of the replicated bias.
    assert counts.pop("all_reduce") == 1 and counts == total


def _sum(*traces):
    names = [e.collective for t in traces for e in t.collectives if e.collective not in ("slice", "fill")]
    return {name: names.count(name) for name in set(names)}


@pytest.mark.ranks(4)
@pytest.mark.parametrize("sequence", [False, True])
def test_a_transformer_needs_no_more_than_published(world, sequence):
    name = "Transformer 2 layers TP+SP" if sequence else "Transformer 2 layers TP, batch 8 seq 8"
    case = PEERS[name]
    stream = TP(None, "tp", None) if sequence else TP(None, None, None)
    model = nn.GPT(16, 16, 4, 2, 8, stream, "tp", dtype=np.float64)
    model.materialise(world)
    ids = tensor_of(np.random.default_rng(0).integers(0, 16, (8, 8)), TP(None, None), world)
    with record() as forward:
        y = model(ids).to(TP(None, None, None))
    with record() as backward:
        nn.backward(ops.sum(ops.multiply(y, y)))
    for trace, published in ((forward, case["fwd"]), (backward, case["bwd"])):
        counts = trace.counts()
        if sequence and trace is backward:
            assert counts.pop("all_reduce", 0) == 1, "theirs does it in the optimiser, one per parameter"
        assert set(counts) <= set(published), counts
        assert all(counts[k] <= published[k] for k in counts), (counts, published)


@pytest.mark.ranks(4)
def test_norms_along_the_sequence_are_local(world):
    layer = nn.LayerNorm(WIDTH, TP(None), dtype=np.float64)
    layer.materialise(world)
    with record() as trace:
        layer(tensor_of(normal(2, 8, WIDTH), TP(None, "tp", None), world))
    assert trace.counts() == PEERS["SequenceParallel LayerNorm on S1 input"]["fwd"]


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    "kind", ["colwise embedding: (indices, V, D)", "rowwise embedding: output is masked partial"]
)
def test_embeddings_of_any_size_have_the_published_counts(world, kind):
    case = PEERS[kind]
    padded = [*([*c, None] for c in case["cases"]), *case["padding_idx_cases"]]
    for shape, count, width, padding in padded:
        table, ids = normal(count, width), np.random.default_rng(1).integers(0, count, shape)
        if padding is not None:
            table[padding] = 0
        layout = TP(*S1) if kind.startswith("col") else TP(*S0)
        weight = tensor_of(table, layout, world, True)
        lookup = partial(ops.embedding, padding=padding)
        y, forward, backward = run_counted(
            lookup, None, (tensor_of(ids, Layout.replicated(TP, len(shape)), world), weight), world
        )
        assert forward == case["fwd"] and backward == case.get("bwd", {})
        with record() as trace:
            replicated = y.to(Layout.replicated(TP, y.ndim))
        if kind.startswith("row"):
            assert trace.counts() == case["full_tensor"]
        np.testing.assert_allclose(replicated.full(), table[ids])
        expected = np.zeros_like(table)
        np.add.at(expected, ids if padding is None else ids[ids != padding], 1.0)
        np.testing.assert_allclose(weight.grad.full(), expected)


def _placements(ndim):
    return [tuple("tp" if d == k else None for d in range(ndim)) for k in range(-1, ndim)]


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    "shapes", [((12, 8), (8, 16)), ((4, 8, 4), (4, 4, 8)), ((3, 4), (4, 4)), ((12, 0), (0, 4))], ids=str
)
def test_products_equal_numpy_from_any_placement(world, shapes):
    a, b = (normal(*shape, seed=i) for i, shape in enumerate(shapes))
    dy = normal(*(a @ b).shape)
    for left, right in itertools.product(_placements(a.ndim), _placements(b.ndim)):
        x, w = tensor_of(a, TP(*left), world, True), tensor_of(b, TP(*right), world, True)
        y = ops.matmul(x, w)
        np.testing.assert_allclose(y.full(), a @ b, atol=1e-12)
        y.backward(tensor_of(dy, y.layout.dual(), world))
        np.testing.assert_allclose(x.grad.full(), dy @ b.swapaxes(-1, -2), atol=1e-12)
        np.testing.assert_allclose(w.grad.full(), a.swapaxes(-1, -2) @ dy, atol=1e-12)
        assert x.grad.layout == x.layout and w.grad.layout == w.layout


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    "entries", [(None, None, None, None), ("tp", None, None, None), (None, None, "tp", None)], ids=str
)
def test_attention_split_by_batch_or_heads_is_local(world, entries):
    case = PEERS["sdpa with q,k,v all R / all S0 / all S1(heads)"]
    q, k, v = (tensor_of(normal(4, 6, 4, 2, seed=i), TP(*entries), world, True) for i in range(3))

    def attention(q, k, v):
        scores = ops.softmax(ops.einsum("bthd,bshd->bhts", q, k))
        return ops.einsum("bhts,bshd->bthd", scores, v)

    _, forward, backward = run_counted(attention, None, (q, k, v), world)
    assert (forward, backward) == (case["fwd"], case["bwd"])
