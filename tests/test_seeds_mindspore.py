"""Layouts, strategies, cuts and shapes equal the numbers of three documents about MindSpore.

The numbers in the names of the tests name the documents:

- 000 derives a layout in three steps: number, adjust, compute.
- 001 describes distributed operators.
- 003 is the tutorial of operator-level parallelism.
"""

from __future__ import annotations

import numpy as np
import pytest
from layout_cases import cases, tuples

from spmdsim import LockStep
from spmdsim.core import Mesh, Rule, bind
from spmdsim.core.cuts import strategy_from_cuts
from spmdsim.dialects import mindspore
from spmdsim.dialects.session import use_world
from spmdsim.layout.explain import Derivation
from spmdsim.redistribution import plan

MATMUL = Rule.parse("m k, k n -> m n", linear="each")


def numbers(layout):
    return [layout.shard_index(rank) for rank in layout.mesh.rank_list]


def strides(layout):
    return {s.axis: s.value for s in Derivation(layout).strides}


# -- 000: number, adjust, compute -----------------------------------------------------------------------


def test_000_the_first_example_gives_every_rank_one_element():
    layout = mindspore.Layout((2, 4), ("axis_0", "axis_1"))("axis_0", "axis_1")
    tensor = np.arange(8).reshape(2, 4)
    for rank in range(8):
        assert layout.mesh.coords(rank) == (rank // 4, rank % 4)
        assert tensor[layout.slices((2, 4), rank)].tolist() == [[rank]]


def test_000_the_template_of_the_document_runs_unchanged():
    # The template gives the tensor map as one tuple. For a tensor of one dim, the tuple names the axes of this dim.
    device_matrix = (2, 4)
    alias_name = ("axis_0", "axis_1")
    tensor_map = ("axis_0", "axis_1")
    layout = mindspore.Layout(device_matrix, alias_name)
    shard_strategy = layout(tensor_map)
    tensor = np.arange(8).reshape(2, 4)
    assert [tensor[shard_strategy.slices((2, 4), rank)].item() for rank in range(8)] == list(range(8))
    assert shard_strategy.local_shape((16,), 0) == (2,) and shard_strategy.local_shape((2, 4), 0) == (1, 1)
    nested = mindspore.Layout((2, 2, 2), name=("dp", "sp", "mp"))(("mp", ("sp", "dp")))
    assert nested == mindspore.Layout((2, 2, 2), ("dp", "sp", "mp"))("mp", ("sp", "dp"))
    with pytest.raises(ValueError, match="for tensors of 1 dim"):
        shard_strategy.bounds((2, 4, 8), 0)
    with use_world(LockStep(8)):
        y = mindspore.ops.ReLU().shard((shard_strategy,))(tensor.astype(np.float32))
        assert y.layout.cuts == (2, 4)


@pytest.mark.parametrize(
    ("matrix", "tensor_map", "expected_strides", "expected_numbers", "dropped"),
    [
        ((2, 1, 2, 2, 1), "bdeca", {"b": 8, "d": 4, "e": 4, "c": 2, "a": 1}, [0, 4, 2, 6, 1, 5, 3, 7], ()),
        ((4, 1, 1, 2, 1), "bdea", {"b": 8, "d": 4, "e": 4, "a": 1}, [0, 4, 1, 5, 2, 6, 3, 7], ("c",)),
        ((2, 1, 2, 2, 1), "beca", {"b": 4, "e": 4, "c": 2, "a": 1}, [0, 0, 2, 2, 1, 1, 3, 3], ("d",)),
    ],
    ids=["2x2x2 all used", "4x2 all used", "2x2 with repetition"],
)
def test_000_layouts_have_the_documents_strides_and_numbers(
    matrix, tensor_map, expected_strides, expected_numbers, dropped
):
    layout = mindspore.Layout(matrix, tuple("abcde"))(*tensor_map)
    derivation = Derivation(layout)
    assert strides(layout) == expected_strides
    assert [row.shard_number for row in derivation.rows] == expected_numbers == numbers(layout)
    assert derivation.adjusted_axes == tuple(tensor_map) and derivation.dropped_axes == dropped
    for i, (axis, base) in enumerate(
        zip("abcde", matrix)
    ):  # Digits of a column are below the size of its axis.
        assert sorted({row.number[i] for row in derivation.rows}) == list(range(base)), axis


def test_000_strides_are_printed_as_the_documents_products():
    layout = mindspore.Layout((2, 1, 2, 2, 1), tuple("abcde"))
    texts = [str(s).split("] = ", 1)[1] for s in Derivation(layout("b", "d", "e", "c", "a")).strides]
    assert [t.partition(" = ")[2] or t for t in texts] == [
        "2 * 1 * 2 * 2 = 8",
        "1 * 2 * 2 = 4",
        "2 * 2 = 4",
        "2",
        "1",
    ]
    texts = [
        str(s)
        for s in Derivation(mindspore.Layout((4, 1, 1, 2, 1), tuple("abcde"))("b", "d", "e", "a")).strides
    ]
    assert (
        texts[0].endswith("= 2 * 1 * 4 = 8") and texts[1].endswith("= 1 * 4 = 4") and texts[2].endswith("= 4")
    )
    texts = [str(s) for s in Derivation(layout("b", "e", "c", "a")).strides]
    assert (
        texts[0].endswith("= 1 * 2 * 2 = 4") and texts[1].endswith("= 2 * 2 = 4") and texts[2].endswith("= 2")
    )


def test_000_each_rank_owns_the_element_with_its_shard_number():
    tensor = np.array([[[[[0, 1], [2, 3]]], [[[4, 5], [6, 7]]]]])
    layout = mindspore.Layout((2, 1, 2, 2, 1), tuple("abcde"))("b", "d", "e", "c", "a")
    assert tensor.shape == (1, 2, 1, 2, 2) and layout.cuts == (1, 2, 1, 2, 2)
    assert [tensor[layout.slices(tensor.shape, r)].item() for r in range(8)] == numbers(layout)


def test_000_cuts_for_all_cards_give_the_documents_layout():
    layout = mindspore.from_cuts((2, 1, 2, 2, 1), 8)
    assert layout.mesh.shape == (2, 1, 2, 2, 1) and layout.tensor_map == (4, 3, 2, 1, 0)
    assert list(strides(layout).values()) == [4, 4, 2, 1, 1]
    assert numbers(layout) == list(range(8)) and not Derivation(layout).needs_adjusting


def test_000_cuts_for_half_of_the_cards_add_an_axis_of_replicas():
    """The document's strides hold for the axis of replicas on both sides, and its map for the left side.

    The document prints matrix (2,1,1,2,1) and map (4,3,2,1,0) for 8 cards, and omits the axis of replicas.
    """
    right, left = (mindspore.from_cuts((2, 1, 1, 2, 1), 8, side) for side in ("right", "left"))
    for layout in (right, left):
        assert list(strides(layout).values()) == [2, 2, 2, 1, 1]
        assert len(Derivation(layout).tables()) == 2  # The derivation has two steps: number and compute.
    assert left.tensor_map == (4, 3, 2, 1, 0) and left.mesh.shape == (2, 2, 1, 1, 2, 1)
    assert right.tensor_map == (5, 4, 3, 2, 1) and right.mesh.shape == (2, 1, 1, 2, 1, 2)
    assert numbers(right) == [0, 0, 1, 1, 2, 2, 3, 3] and numbers(left) == [0, 1, 2, 3, 0, 1, 2, 3]


# -- 001: distributed operators -------------------------------------------------------------------------


def matmul(cuts, devices, shapes=((32, 64), (64, 48))):
    """Return the mesh, the two input layouts and the output layout of a matrix product with these cuts."""
    bound = bind(MATMUL, shapes)
    strategy = strategy_from_cuts(bound, cuts, devices)
    (out,) = bound.output_layouts(strategy)
    return strategy.mesh, bound.input_layouts(strategy), out


def test_001_x_replicated_w_by_columns_needs_no_collective():
    _, (x, w), out = matmul(((1, 1), (1, 4)), 4)
    assert x.cuts == (1, 1) and w.cuts == (1, 4) and out.parts == (1, 4)
    assert not out.partial and [w.shard_index(r) for r in range(4)] == [0, 1, 2, 3]


def test_001_x_by_columns_w_by_rows_needs_all_reduce():
    mesh, (x, w), out = matmul(((1, 4), (4, 1)), 4)
    assert mesh.shape == (1, 4, 1) and numbers(x) == numbers(w) == [0, 1, 2, 3]
    assert out.reduce_op == "sum" and out.parts == (1, 1)
    (step,) = plan(out, out.reduced, (32, 48), "float32").steps
    assert step.collective == "all_reduce" and step.group(0) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    "case", [c for c in cases("layouts_mindspore", "strategy_slice") if "op" in c.values[0]["given"]]
)
def test_001_strategies_of_matmul_give_the_documents_layouts(case):
    inputs, expected = case["given"], case["expect"]
    mesh, (x, w), out = matmul(tuples(inputs["in_strategy"]), inputs["devices"])
    assert list(mesh.shape) == expected["dev_matrix"]
    assert bool(out.partial) is bool(expected["forward_comm"])
    if "input_maps" in expected:
        assert [tensor_map_of(x, mesh), tensor_map_of(w, mesh)] == expected["input_maps"]
        assert [tensor_map_of(out, mesh)] == expected["output_maps"]
        assert numbers(x) == expected["x_slice_of_device"] and numbers(w) == expected["w_slice_of_device"]


def tensor_map_of(layout, mesh):
    """Return the tensor map of a layout on ``mesh`` as nested lists."""
    assert layout.mesh == mesh
    return [n if isinstance(n, int) else list(n) for n in layout.to_dict()["tensor_map"]]


def test_001_devices_0_to_3_own_replicas_of_the_first_shard():
    _, (x, w), _ = matmul(((2, 1), (1, 4)), 8)
    assert x.replica_ranks(0) == (0, 1, 2, 3) and x.replica_ranks(5) == (4, 5, 6, 7)
    assert [w.replica_ranks(r) for r in range(4)] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_001_row_shards_are_gathered_for_replicas_and_exchanged_for_columns():
    mesh = Mesh((4,), ("d",))
    gather = plan(mesh("d", None), mesh(None, None), (8, 8), "float32")
    swap = plan(mesh("d", None), mesh(None, "d"), (8, 8), "float32")
    assert [s.collective for s in gather.steps] == ["all_gather"]
    assert [s.collective for s in swap.steps] == ["all_to_all"]


# -- 003: operator-level parallelism --------------------------------------------------------------------


def test_003_cuts_of_the_network_give_the_documents_shapes():
    # The batch has 32 rows of 28 * 28 inputs. The cuts of the layers are matmul1 ((2,4),(4,1)), relu1 ((4,1),),
    # matmul2 ((1,8),(8,1)) and relu2 ((8,1),).
    _, (x, w), out = matmul(((2, 4), (4, 1)), 8, ((32, 28 * 28), (28 * 28, 512)))
    assert x.mesh.shape == (2, 4, 1) and x.cuts == (2, 4) and w.cuts == (4, 1)
    assert x.local_shape((32, 784), 0) == (16, 196) and w.local_shape((784, 512), 0) == (196, 512)
    assert out.local_shape((32, 512), 0) == (16, 512)
    assert out.mesh.groups(*out.partial_axes) == ((0, 1, 2, 3), (4, 5, 6, 7))
    _, (x, w), out = matmul(((1, 8), (8, 1)), 8, ((32, 512), (512, 512)))
    assert x.local_shape((32, 512), 0) == (32, 64) and w.local_shape((512, 512), 0) == (64, 512)
    assert out.mesh.groups(*out.partial_axes) == (tuple(range(8)),)
    relu1, relu2 = mindspore.from_cuts((4, 1), 8), mindspore.from_cuts((8, 1), 8)
    assert relu1.local_shape((32, 512), 0) == (8, 512) and numbers(relu1) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert relu2.local_shape((32, 512), 0) == (4, 512) and numbers(relu2) == list(range(8))


X_SHAPE, W_SHAPE = (32, 784), (784, 512)
#: Device coordinates (dp, sp, mp) -> rows of x, and columns of x, which are the rows of fc1_weight.
PRINTED = {
    (0, 0, 0): ((0, 16), (0, 196)),
    (0, 0, 1): ((16, 32), (0, 196)),
    (0, 1, 0): ((0, 16), (196, 392)),
    (0, 1, 1): ((16, 32), (196, 392)),
    (1, 0, 0): ((0, 16), (392, 588)),
    (1, 0, 1): ((16, 32), (392, 588)),
    (1, 1, 0): ((0, 16), (588, 784)),
    (1, 1, 1): ((16, 32), (588, 784)),
}


def table(layout_of):
    """Return a table like ``PRINTED`` for the layouts that ``layout_of`` builds."""
    x, w = layout_of("mp", ("sp", "dp")), layout_of(("sp", "dp"), "None")
    bounds = {}
    for rank in range(8):
        rows, columns = x.bounds(X_SHAPE, rank)
        assert w.bounds(W_SHAPE, rank) == (columns, (0, 512))
        bounds[x.mesh.coords(rank)] = (rows, columns)
    return bounds


def test_003_the_printed_table_nests_axes_in_the_order_of_the_mesh():
    """``tuple_order="mesh"`` and the tuple ("dp", "sp") reproduce the printed table.

    In the tuple ("sp", "dp"), sp is the outer axis by the rule of document 000. In the table, dp is the outer axis.
    """
    layout = mindspore.Layout((2, 2, 2), ("dp", "sp", "mp"), tuple_order="mesh")
    assert table(layout) == PRINTED
    plain = mindspore.Layout((2, 2, 2), ("dp", "sp", "mp"))
    swapped = plain("mp", ("dp", "sp"))
    assert {swapped.mesh.coords(r): swapped.bounds(X_SHAPE, r) for r in range(8)} == PRINTED


def test_003_by_the_rule_four_lines_of_the_table_differ():
    by_rule = table(mindspore.Layout((2, 2, 2), ("dp", "sp", "mp")))
    assert {c for c in PRINTED if by_rule[c] != PRINTED[c]} == {(0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1)}
    assert by_rule[0, 1, 0] == ((0, 16), (392, 588)) and by_rule[1, 0, 0] == ((0, 16), (196, 392))


@pytest.mark.parametrize("case", cases("layouts_mindspore", "layout_slice_table_as_printed"))
def test_003_the_order_of_the_mesh_gives_the_published_table(case):
    inputs, expected = case["given"], case["expect"]
    layout = mindspore.Layout(tuple(inputs["device_matrix"]), tuple(inputs["alias_name"]), tuple_order="mesh")
    x = layout(*tuples(inputs["call"]))
    for rank in range(x.mesh.size):
        name = "".join(map(str, x.mesh.coords(rank)))
        rows, columns = x.bounds(inputs["global_shape"], rank)
        assert [list(rows), list(columns)] == [
            expected["rows_by_coord"][name],
            expected["columns_by_coord"][name],
        ]


def test_003_layouts_of_the_network_have_the_documents_cuts():
    layout = mindspore.Layout((2, 2, 2), ("dp", "sp", "mp"))
    layout2 = mindspore.Layout((8,), ("tp",))
    assert layout("mp", ("sp", "dp")).cuts == (2, 4) and layout(("sp", "dp"), "None").cuts == (4, 1)
    x, w = layout2("None", "tp"), layout2("tp", "None")
    assert x.cuts == (1, 8) and w.cuts == (8, 1)
    for shapes, pair in (
        ((X_SHAPE, W_SHAPE), (layout("mp", ("sp", "dp")), layout(("sp", "dp"), "None"))),
        (((32, 512), (512, 512)), (x, w)),
    ):
        bound = bind(MATMUL, shapes)
        (out,) = bound.output_layouts(bound.infer(pair))
        assert set(out.partial_axes) == set(pair[1].split_axes)
