"""Tensor-parallel pieces of Paddle and Megatron: SPMD rules, region mappings, and their numbers on real shards."""

from __future__ import annotations

import numpy as np
import pytest
from layout_cases import cases

import spmdsim.ops as ops
from spmdsim.arrays import Tensor
from spmdsim.core import Mesh
from spmdsim.dialects import oneflow as flow
from spmdsim.dialects.paddle import ProcessMesh, dims_mapping
from spmdsim.dialects.paddle.spmd import infer
from spmdsim.dialects.tensor_parallel import MAPPINGS, PADDLE
from spmdsim.worlds.trace import record

V = "operators_oneflow_paddle"


def mesh_of(shape):
    return ProcessMesh(np.arange(np.prod(shape)).reshape(shape))


# -- Paddle's SPMD rules ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases(V, "spmd_matmul_paddle"))
def test_matmul(case):
    result = infer(
        "matmul",
        mesh_of(case["mesh"]),
        [case["x_shape"], case["y_shape"]],
        [case["x_dims_mapping"], case["y_dims_mapping"]],
        trans_x=case["trans_x"],
        trans_y=case["trans_y"],
    )
    wanted = [case["inferred_inputs"].get(n, case[f"{n}_dims_mapping"]) for n in ("x", "y")]
    assert list(result.inputs) == wanted and result.outputs == (case["out_dims_mapping"],)
    assert result.partial_on == (tuple(case["partial_on_mesh_axes"]),)


@pytest.mark.parametrize("case", cases(V, "spmd_embedding_paddle"))
def test_embedding(case):
    mesh = mesh_of(case["mesh"])
    if "error" in case:
        for more in ({"padding_idx": 3}, {"sparse": True}):
            with pytest.raises(ValueError, match="rows of a table cannot be split"):
                infer("embedding", mesh, [(4, 8), (8, 8)], [[-1, -1], case["table_dims_mapping"]], **more)
        return
    result = infer(
        "embedding",
        mesh,
        [case["x_shape"], case["table_shape"]],
        [case["x_dims_mapping"], case["table_dims_mapping"]],
        padding_idx=-1,
    )
    assert result.outputs == (case["out_dims_mapping"],)
    assert result.partial_on == (tuple(case["partial_on_mesh_axes"]),)


def test_a_mesh_dim_keeps_the_first_letter_and_conflicts_are_refused():
    mesh = mesh_of((2, 3))
    result = infer("matmul", mesh, [(12, 12), (12, 12)], [[0, -1], [-1, 0]])
    assert result.inputs == ([0, -1], [-1, -1]) and result.outputs == ([0, -1],)
    with pytest.raises(ValueError, match="both must be the same"):
        infer("matmul", mesh, [(12, 12), (12, 12)], [[-1, 0], [1, -1]])
    result = infer("matmul", mesh, [(12, 12), (12, 12)], [[[0, 1], -1], [-1, -1]])
    assert result.outputs == ([[0, 1], -1],)
    assert infer("softmax", mesh, [(12, 12)], [[0, 1]], dim=1).inputs == ([0, -1],)
    assert infer("elementwise_add", mesh, [(12, 12), (12,)], [[0, -1], [1]]).outputs == ([0, 1],)
    with pytest.raises(ValueError, match="no operator 'conv2d'"):
        infer("conv2d", mesh, [(12, 12)], [[0, 1]])
    with pytest.raises(ValueError, match="takes 2 operands"):
        infer("matmul", mesh, [(12, 12), (12, 12)], [[0, 1]])


@pytest.mark.parametrize("case", cases(V, "spmd_matmul_paddle"))
def test_inferred_mappings_say_the_same_as_sbp(case):
    placement = flow.placement("cpu", np.arange(np.prod(case["mesh"])).reshape(case["mesh"]))
    for name, shape in (("x", case["x_shape"]), ("y", case["y_shape"])):
        wanted = case["inferred_inputs"].get(name, case[f"{name}_dims_mapping"])
        if name in case["as_sbp"]:
            assert dims_mapping(flow.layout(placement, case["as_sbp"][name], len(shape))) == wanted


# -- mappings ----------------------------------------------------------------------------------------------

#: One group: where several hold copies of a pending sum, plans let them help, which theirs do not.
MESH = Mesh((1, 8), ("dp", "tp"))


def mapping_of(case):
    return MAPPINGS[case["op"].split(" ")[0]]


@pytest.mark.parametrize("case", cases(V, "tp_mapping"))
def test_collectives_of_the_mappings(case):
    mesh = Mesh((case["tp"],), ("tp",))
    forward, backward = mapping_of(case).collectives(mesh, "tp", (8, 8))
    words = {"identity": ()}
    assert forward == words.get(case["forward"], (case["forward"],))
    assert backward == words.get(case["backward"], (case["backward"],))


TABLE = {
    "copy_to_region": ((), ("all_reduce",)),
    "reduce_from_region": (("all_reduce",), ()),
    "scatter_to_region": (("split",), ("all_gather",)),
    "gather_from_region": (("all_gather",), ("split",)),
    "scatter_to_sequence_region": (("split",), ("all_gather",)),
    "gather_from_sequence_region": (("all_gather",), ("reduce_scatter",)),
    "gather_from_sequence_region_replicated_grad": (("all_gather",), ("split",)),
    "reduce_scatter_to_sequence_region": (("reduce_scatter",), ("all_gather",)),
    "all_to_all_sequence_to_hidden": (("all_to_all",), ("all_to_all",)),
    "all_to_all_hidden_to_sequence": (("all_to_all",), ("all_to_all",)),
}


def test_the_whole_table():
    assert {name: m.collectives(MESH, "tp", (8, 8)) for name, m in MAPPINGS.items()} == TABLE
    assert set(PADDLE.values()) <= set(TABLE)


@pytest.mark.ranks(8)
@pytest.mark.parametrize("name", TABLE)
def test_a_tensor_takes_them_forward_and_backward(name, world):
    mapping, shape = MAPPINGS[name], (8, 8)
    x = _placed(mapping.before, world, shape)
    x.requires_grad = True
    with record() as trace:
        y = mapping(x, "tp")
    assert y.layout == mapping.after(MESH, "tp", 2)
    assert _words(trace) == TABLE[name][0]
    gradient = _placed(mapping.arriving, world, shape)
    with record() as trace:
        y.backward(gradient)
    assert _words(trace) == TABLE[name][1]
    assert x.grad.layout == x.layout.dual()
    np.testing.assert_allclose(x.grad.full(), gradient.full())
    np.testing.assert_allclose(y.full(), x.full())


def _words(trace):
    names = {"slice": "split"}
    return tuple(names.get(e.collective, e.collective) for e in trace.collectives)


def _placed(where, world, shape):
    """A tensor in such a layout whose pieces differ from rank to rank where they may."""
    layout = where(MESH, "tp", len(shape))

    def piece(rank):
        block = np.arange(64.0).reshape(shape)[layout.slices(shape, rank)]
        return block + (MESH.coords(rank)[1] if layout.partial else 0)

    return Tensor.from_local(piece, layout, world, shape=shape)


@pytest.mark.ranks(8)
def test_published_numbers_of_the_mappings(world):
    """Every rank holds its own number: groups of four sum to 6 and 22, gathers lay the numbers side by side."""
    mesh = Mesh((2, 4), ("dp", "tp"))
    summed = Tensor.from_local(lambda r: np.full(8, float(r)), mesh("dp", partial="tp"), world, shape=(16,))
    reduced = summed.to(mesh("dp"))
    for rank in world.ranks:
        assert set(reduced.local(rank)) == {6.0 if rank < 4 else 22.0}
    split = Tensor.from_local(lambda r: np.full((1, 8), float(r)), mesh("dp", "tp"), world, shape=(2, 32))
    gathered = split.to(mesh("dp", None))
    for rank in world.ranks:
        assert gathered.local(rank).reshape(4, 8)[:, 0].tolist() == [4.0 * (rank // 4) + k for k in range(4)]
    rows = Tensor.from_global(np.arange(32.0).reshape(8, 4), mesh(None, None), world)
    scattered = MAPPINGS["scatter_to_sequence_region"](rows, "tp")
    stacked = np.repeat(np.arange(4.0), 4).reshape(4, 4)
    pending = Tensor.from_local(lambda _r: stacked, mesh(None, None, partial="tp"), world, shape=(4, 4))
    shared = MAPPINGS["reduce_scatter_to_sequence_region"](pending, "tp")
    for rank in world.ranks:
        assert scattered.local(rank).tolist() == rows.full()[2 * (rank % 4) : 2 * (rank % 4) + 2].tolist()
        assert set(shared.local(rank).ravel()) == {4.0 * (rank % 4)}


# -- layers in numbers -------------------------------------------------------------------------------------


@pytest.mark.ranks(2)
@pytest.mark.parametrize("case", cases(V, "embedding_numeric"))
def test_embedding_numbers(case, world):
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
    # An addition of its own accord may not add the bias on every rank, either.
    assert ops.add(product, b).full().tolist() == case["expected"] != case["wrong_if_bias_added_per_rank"]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("case", cases(V, "column_linear_numeric"))
def test_column_parallel_numbers(case, world):
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
def test_cross_entropy_with_the_vocabulary_split(case, world):
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
