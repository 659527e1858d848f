"""Tensor-parallel layers return published numbers, on real shards."""

from __future__ import annotations

import numpy as np
import pytest
from layout_cases import cases

import spmdsim.ops as ops
from spmdsim import record
from spmdsim.arrays import Tensor
from spmdsim.core import Mesh

V = "operators_oneflow_paddle"


@pytest.mark.ranks(2)
@pytest.mark.parametrize("case", cases(V, "embedding_numeric"))
def test_a_split_embedding_has_the_published_numbers(case, world):
    mesh = Mesh((case["num_partitions"],), ("mp",))
    table = Tensor.from_global(np.arange(64).reshape(8, 8), mesh("mp", None), world)
    ids = Tensor.from_global(np.array(case["ids"]), mesh(None, None), world)
    vectors = ops.embedding(ids, table)
    for rank in world.ranks:
        local = vectors.local(rank)
        assert local[0].tolist() == case[f"rank{rank}_partial_first_row"]
        assert local.sum() == case["rank_sums"][rank]
    full = vectors.full()
    assert full[0].tolist() == case["sum_first_row"] and full.sum() == case["full_sum"]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("case", cases(V, "row_linear_bias"))
def test_a_row_parallel_bias_is_added_once(case, world):
    mesh = Mesh((case["p"],), ("mp",))
    x = Tensor.from_global(np.array(case["x"]), mesh(None, "mp"), world)
    w = Tensor.from_global(np.array(case["w_in_out"]), mesh("mp", None), world)
    b = Tensor.from_global(np.array(case["bias"]), mesh(None), world)
    product = ops.matmul(x, w)
    for rank in world.ranks:
        assert product.local(rank).tolist() == case["rank_partials"][rank]
    assert ops.linear(x, w, b).full().tolist() == case["expected"]
    # A separate addition must not add the bias on every rank, either.
    assert ops.add(product, b).full().tolist() == case["expected"] != case["wrong_if_bias_added_per_rank"]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("case", cases(V, "column_linear_numeric"))
def test_a_column_parallel_layer_has_the_published_numbers(case, world):
    mesh = Mesh((case["p"],), ("mp",))
    x = Tensor.from_global(np.array(case["x"]), mesh(None, None), world)
    w = Tensor.from_global(np.array(case["w_in_out"]), mesh(None, "mp"), world)
    b = Tensor.from_global(np.array(case["bias"]), mesh("mp"), world)
    with record() as trace:
        y = ops.linear(x, w, b)
    assert trace.counts() == {}
    for rank in world.ranks:
        assert y.local(rank).tolist() == case["per_rank_output"][rank]
        assert y.local(rank).shape[1] == case["widths"][rank]
    assert y.full().tolist() == case["gathered"]


def _logits(case):
    if "logits" in case:
        return np.array(case["logits"]), np.array(case["labels"]), case["p"]
    local = np.tile(np.arange(8.0), (16, 4))
    return np.concatenate([local] * 4, axis=1), np.arange(0, 32, 2), case["tp"]


@pytest.mark.ranks(4)
@pytest.mark.parametrize("case", cases(V, "vocab_parallel_cross_entropy"))
def test_cross_entropy_with_a_split_vocabulary_has_the_published_losses(case, world):
    logits, labels, parts = _logits(case)
    mesh = Mesh((4 // parts, parts), ("dp", "tp"))
    x = Tensor.from_global(logits, mesh(None, "tp"), world, requires_grad=True)
    t = Tensor.from_global(labels, mesh(None), world)
    with record() as trace:
        loss = ops.cross_entropy(x, t, reduction="none")
    assert trace.counts() == {"all_reduce": 3}
    assert sorted(e.step.op for e in trace.collectives) == ["max", "sum", "sum"]
    expected = case.get("expected_loss", case.get("loss"))
    np.testing.assert_allclose(loss.full(), expected, atol=6e-5 if "expected_loss" in case else 1e-8)
    with record() as trace:
        loss.backward(Tensor.from_global(np.ones(len(labels)), mesh(None), world))
    assert trace.counts() == {}, "the gradient is softmax minus one-hot, all of it local"
    probability = np.exp(logits - logits.max(1, keepdims=True))
    probability /= probability.sum(1, keepdims=True)
    probability[np.arange(len(labels)), labels] -= 1
    np.testing.assert_allclose(x.grad.full(), probability, atol=1e-12)
