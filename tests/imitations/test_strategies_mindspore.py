"""MindSpore's ``.shard`` derives the published strategies of operators, and each row of the table follows its rule."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from layout_cases import cases, tuples

import spmdsim.ops as ops
from spmdsim.arrays import Tensor
from spmdsim.dialects.mindspore import shard
from spmdsim.dialects.mindspore.operators import ROWS, TABLE, find_operator
from spmdsim.errors import SpmdError
from spmdsim.worlds import LockStep

V = "operators_mindspore"


def derive_case(inputs, **more):
    """Return the derivation of a published case; ``more`` are further arguments of ``shard``."""
    return shard(
        inputs["op"].split("/")[0],
        tuples(inputs["input_shapes"]),
        tuples(inputs["in_strategy"]),
        devices=inputs["devices"],
        attrs=inputs["attrs"],
        **more,
    )


def is_same_map(actual, expected):
    """Return True if ``expected`` is None or equal to ``actual``; published maps leave out untested ones."""
    return expected is None or actual == tuples(expected)


@pytest.mark.parametrize("case", cases(V, "strategy"))
def test_operators_have_the_published_derivations(case):
    derivation, expect = derive_case(case["given"]), case["expect"]
    checked = 0
    for key, value in expect.items():
        if key in ("note", "mirror_op", "repeated_side"):
            continue
        checked += 1
        if key in ("input_maps", "output_maps"):
            maps = getattr(derivation, key)
            assert len(maps) >= len(value) and all(is_same_map(m, v) for m, v in zip(maps, value)), key
        elif key in ("input_slices", "output_slices"):
            assert getattr(derivation, key)[: len(value)] == tuples(value), key
        elif key == "forward_comm":
            assert [
                f"{f.name}:{f.op}"[: len(v.split(" ")[0])] for f, v in zip(derivation.forward, value)
            ] == [v.split(" ")[0] for v in value]
            assert len(derivation.forward) == len(value)
        elif key == "allreduce_groups":
            assert derivation.forward[0].groups == tuples(value)
        elif key == "mirror_groups_input1":
            assert derivation.mirror_groups(1) == tuples(value)
        elif key == "mirror_on_input":
            assert set(value) <= set(derivation.mirrored)
        elif key == "mirror_count":
            assert len(derivation.mirrored) == value
        else:
            assert getattr(derivation, key) == (tuple(value) if isinstance(value, list) else value), key
    assert checked
    if "repeated_side" in expect:
        assert derivation.repeated_side == expect["repeated_side"]


@pytest.mark.parametrize("case", cases(V, "strategy_invalid"))
def test_invalid_strategies_are_refused(case):
    with pytest.raises(RuntimeError) as caught:
        derive_case(case["given"])
    assert isinstance(caught.value, SpmdError) and case["given"]["op"] in str(caught.value)


# -- MatMul's out_strategy -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cuts", "out", "name", "matrix", "output_map"),
    [
        (((2, 4), (4, 1)), None, "AllReduce", (2, 4, 1), (2, 0)),
        (((2, 4), (4, 1)), ((2, 1),), "AllReduce", (2, 4, 1), (2, 0)),
        (((2, 4), (4, 1)), ((8, 1),), "ReduceScatter", (8, 1), (1, 0)),
        (((1, 4), (4, 2)), ((4, 2),), "ReduceScatter", (4, 2), (1, 0)),
        (((4, 1), (1, 2)), ((4, 2),), None, (4, 1, 2), (2, 0)),
    ],
)
def test_the_result_of_a_product_is_reduced_or_scattered(cuts, out, name, matrix, output_map):
    derivation = shard("MatMul", ((32, 16), (16, 8)), cuts, out, devices=8)
    assert [f.name for f in derivation.forward] == ([name] if name else [])
    assert (derivation.output_dev_matrix, derivation.output_maps[0]) == (matrix, output_map)
    assert derivation.outputs[0].cuts == (out[0] if out else derivation.computed[0].cuts)


@pytest.mark.parametrize("out", [((4, 1),), ((2, 2),), ((1, 1),), ((8, 1, 1),)])
def test_other_results_of_a_product_are_refused(out):
    with pytest.raises(RuntimeError, match="out_strategy"):
        shard("MatMul", ((32, 16), (16, 8)), ((2, 4), (4, 1)), out, devices=8)


@pytest.mark.parametrize("name", ["Add", "ReLU", "LayerNorm", "Softmax"])
def test_only_products_take_an_out_strategy(name):
    count = {"Add": 2, "LayerNorm": 3}.get(name, 1)
    shapes = [(8, 4), (8, 4)][:count] if name != "LayerNorm" else [(8, 4), (4,), (4,)]
    cuts = [tuple(4 if d == 0 and i == 0 else 1 for d in range(len(s))) for i, s in enumerate(shapes)]
    if name == "Add":
        cuts = [(4, 1), (4, 1)]
    with pytest.raises(RuntimeError, match="out_strategy must be None"):
        shard(name, shapes, cuts, ((4, 1),), devices=4)


# -- the table -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(name for name, row in TABLE.items() if row.elements))
def test_functions_of_elements_keep_the_layout(name):
    row = find_operator(name)
    count = {"Select": 3, "AddN": 2}.get(name)
    count = count or (1 if len(getattr(row.op.rule, "inputs", [0])) == 1 else 2)
    derivation = shard(name, [(8, 6, 4)] * count, [(2, 1, 2)] * count, devices=8)
    assert derivation.dev_matrix == (2, 1, 2, 2) and derivation.output_maps == ((3, 2, 1),)
    assert derivation.forward == () and derivation.mirror_groups(0) == ((0, 1), (2, 3), (4, 5), (6, 7))


@pytest.mark.parametrize(
    "name", sorted(name for name, row in TABLE.items() if "keep_dims" in row.attrs and row.strategies)
)
def test_reductions_over_split_dims_need_an_all_reduce(name):
    derivation = shard(name, [(8, 6, 4)], [(2, 2, 2)], devices=8, attrs={"axis": (0, -1), "keep_dims": True})
    op = {"max": "max", "min": "min", "prod": "prod", "all": "all", "any": "any"}.get(
        find_operator(name).ours, "sum"
    )
    assert str(derivation.forward[0]) == f"AllReduce:{op}" and derivation.forward[0].group(0) == (0, 1, 4, 5)
    assert derivation.forward[0].divisor == (4 if "Mean" in name else 1)
    assert derivation.output_maps == ((-1, 1, -1),) and derivation.virtual_div == 4
    assert shard(name, [(8, 6)], [(2, 1)], devices=2, attrs={"axis": ()}).output_maps == ((),)


def test_broadcast_dims_are_not_split():
    derivation = shard("Add", [(1, 48), (48, 1)], [(1, 8), (4, 1)], devices=32)
    assert derivation.dev_matrix == (4, 8) and derivation.input_maps == ((-1, 0), (1, -1))
    assert derivation.output_maps == ((1, 0),) and derivation.mirrored == (0, 1)
    derivation = shard("BiasAdd", [(16, 8), (8,)], [(2, 4), (4,)], devices=8)
    assert derivation.input_maps == ((1, 0), (0,)) and derivation.forward == ()
    with pytest.raises(RuntimeError):
        shard("BiasAdd", [(16, 8), (8,)], [(2, 4), (2,)], devices=8)


def test_layer_norm_has_three_results():
    attrs = {"begin_norm_axis": 1, "begin_params_axis": 1}
    derivation = shard(
        "LayerNorm", [(8, 4, 6), (4, 6), (4, 6)], [(4, 1, 1), (1, 1), (1, 1)], devices=8, attrs=attrs
    )
    assert derivation.output_maps == ((3, 2, 1), (3, -1, -1), (3, -1, -1))
    assert derivation.output_slices == ((2, 4, 6), (2, 1, 1), (2, 1, 1))
    with pytest.raises(RuntimeError, match="must not be split"):
        shard("LayerNorm", [(8, 4, 6), (4, 6), (4, 6)], [(1, 4, 1), (4, 1), (4, 1)], devices=4, attrs=attrs)


def test_loss_of_logits_counts_its_replicas():
    cuts = [(1, 4, 8, 1), (1, 4, 8, 1)]
    derivation = shard("SoftmaxCrossEntropyWithLogits", [(2, 4, 8, 16)] * 2, cuts, devices=64)
    assert derivation.virtual_div == 2 and derivation.output_maps[0] == (4,)


@pytest.mark.parametrize("name", sorted(name for name, row in TABLE.items() if row.strategies == "batch"))
def test_operators_without_a_rule_split_the_batch(name):
    derivation = shard(name, [(32, 4, 2)], devices=8)
    assert derivation.dev_matrix == (8,) and derivation.input_maps == ((0, -1, -1),)
    assert derivation.output_slices[0] == ((4, 8) if name == "Flatten" else (4, 4, 2))
    with pytest.raises(RuntimeError):
        shard(name, [(30, 4, 2)], devices=8)
    with pytest.raises(RuntimeError):
        shard(name, [(32, 4, 2)], [(4, 2, 1)], devices=8)


def test_unconfigured_operators_are_data_parallel():
    derivation = shard("MatMul", [(32, 512), (512, 10)], devices=8)
    assert derivation.dev_matrix == (8, 1, 1) and derivation.input_slices == ((4, 512), (512, 10))
    assert derivation.mirror_groups(1) == (tuple(range(8)),)
    with pytest.raises(RuntimeError, match="does not divide"):
        shard("ReLU", [(30, 4)], devices=8)
    with pytest.raises(RuntimeError, match="stay whole"):
        shard("Softmax", [(8, 4)], devices=8, attrs={"axis": 0})


def test_a_slope_is_split_like_its_channel():
    derivation = shard("PReLU", [(64, 4, 8, 16), (4,)], [(2, 4, 8, 16), (1,)], devices=1024)
    assert derivation.input_maps == ((3, 2, 1, 0), (2,)) and derivation.input_slices[1] == (1,)
    derivation = shard("PReLU", [(64, 4), (1,)], [(2, 4), (1,)], devices=8)
    assert derivation.input_maps == ((1, 0), (-1,)) and derivation.mirror_groups(1) == (tuple(range(8)),)
    with pytest.raises(RuntimeError):
        shard("PReLU", [(64, 4), (4,)], [(2, 1), (4,)], devices=8)


def test_a_dropout_mask_is_replicated():
    derivation = shard("DropoutDoMask", [(32, 128), (512,)], [(4, 8)], devices=32)
    assert derivation.dev_matrix == (4, 8) and derivation.input_maps == ((1, 0), (-1,))
    assert derivation.input_slices == ((8, 16), (512,)) and derivation.output_slices == ((8, 16),)


def test_an_attribute_may_be_the_layout():
    attrs = {"layout": {"dev_matrix": (2, 2, 2), "input_tensor_map": ((2, 1), (1, 0))}}
    derivation = shard("MatMul", [(8, 8), (8, 8)], devices=8, attrs=attrs)
    assert derivation.input_maps == ((2, 1), (1, 0)) and derivation.output_maps == ((2, 0),)
    assert derivation.forward[0].group(0) == (0, 2)


def test_data_sources_repeat_on_the_left():
    derivation = shard("VirtualDataset", [(16, 4), (16,)], [(2, 1), (2,)], devices=8)
    assert (
        derivation.dev_matrix == (4, 2, 1)
        and derivation.input_maps == ((1, 0), (1,))
        and derivation.repeated_side == "left"
    )
    derivation = shard("GetNext", [(16, 4), (16,)], devices=8)
    assert (
        derivation.dev_matrix == (8, 1)
        and derivation.output_slices == ((2, 4), (2,))
        and derivation.inputs == ()
    )
    again = shard("GetNext", [], [(8, 1), (8,)], devices=8, attrs={"shapes": [(16, 4), (16,)]})
    assert again.outputs == derivation.outputs
    assert shard("GetNext", [(16, 4), (16,)], [(), ()], devices=8).outputs == derivation.outputs
    with pytest.raises(RuntimeError, match="another tensor"):
        shard("VirtualDataset", [(16, 4), (16,)], [(2, 1), (4,)], devices=8)


def test_repeated_calculation_on_either_side():
    right = shard("ReLU", [(8, 4)], [(2, 2)], devices=8)
    left = shard("ReLU", [(8, 4)], [(2, 2)], devices=8, repeat="left")
    assert (right.dev_matrix, right.input_maps) == ((2, 2, 2), ((2, 1),))
    assert (left.dev_matrix, left.input_maps) == ((2, 2, 2), ((1, 0),))
    assert [right.inputs[0].shard_index(r) for r in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [left.inputs[0].shard_index(r) for r in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_devices_may_have_any_order():
    derivation = shard("MatMul", [(8, 8), (8, 8)], ((2, 2), (2, 1)), devices=(7, 5, 3, 1))
    assert derivation.forward[0].groups == ((7, 5), (3, 1)) and derivation.mirror_groups(1) == (
        (7, 3),
        (5, 1),
    )


def test_optimizer_shard_of_a_parameter():
    derivation = shard("MatMul", [(32, 784), (784, 512)], ((2, 4), (4, 1)), devices=8)
    layout = derivation.optimizer_shard(1)
    assert layout.local_shape((784, 512), 0) == (98, 512)
    assert [layout.shard_index(r) for r in range(8)] == [0, 2, 4, 6, 1, 3, 5, 7]


def test_gradients_follow_the_transposed_rule():
    derivation = shard("MatMul", [(32, 784), (784, 512)], ((2, 4), (4, 1)), devices=8)
    assert dict(derivation.gradient_layout(1).partial) == {"m": "sum"}
    assert derivation.mesh.groups(*derivation.gradient_layout(1).partial_axes) == derivation.mirror_groups(1)


@pytest.mark.parametrize(
    ("name", "shapes", "cuts", "attrs", "words"),
    [
        ("Conv9D", [(8, 8)], [(1, 1)], {}, "no operator 'Conv9D'"),
        ("MatMul", [(8, 8), (4, 8)], [(1, 1), (1, 1)], {}, "size"),
        ("OneHot", [(8,)], [(2, 1)], {}, "depth"),
        ("OneHot", [(8,)], [(2, 1), (1,)], {"depth": 4}, "empty .* for each scalar"),
        ("Transpose", [(8, 8)], [(2, 1)], {"perm": (0, 0)}, "perm must name each of the 2 dims"),
        ("Reshape", [(8, 8)], [(2, 1)], {}, "attribute shape"),
        ("Argmax", [(8, 8)], [(2, 1)], {"axis": (0, 1)}, "axis must be one dim"),
        ("ReduceSum", [(8, 8)], [(2, 1)], {"axis": 2}, "out of range"),
        ("ReduceSum", [(8, 8)], [(2, 1)], {"axes": 0}, "no attribute 'axes'; did you mean 'axis'"),
        ("MatMul", [(8, 8), (8, 8)], [(2, 1), (1, 1)], {"transpos_b": True}, "did you mean 'transpose_b'"),
        ("ReLU", [(8, 8)], [(2, 1)], {"axis": 0}, "'axis'; there are layout, repeated_num_in"),
        ("GetNext", [(8, 8)], [(2, 1)], {"shape": [(8, 8)]}, "did you mean 'shapes'"),
        ("Flatten", [(8, 8)], None, {"output_shape": [(8, 8)]}, "did you mean 'output_shapes'"),
        ("Gather", [(8, 8), (4,)], [(1, 2), (1,)], {"manual": (1, 1)}, "there are axis, dim, layout"),
    ],
)
def test_wrong_attributes_are_refused(name, shapes, cuts, attrs, words):
    with pytest.raises(RuntimeError, match=words):
        shard(name, shapes, cuts, devices=2, attrs=attrs)


def test_a_row_has_the_attributes_of_its_primitive_and_of_its_functions():
    assert {"axis", "dim", "keep_dims", "keepdim", "keepdims"} <= {*TABLE["ReduceSum"].attribute_names}
    assert {"depth", "on_value", "off_value", "axis"} <= {*TABLE["OneHot"].attribute_names}
    assert "axis" in TABLE["Argmin"].attribute_names and "epsilon" in TABLE["RmsNorm"].attribute_names
    assert "x" not in TABLE["Softmax"].attribute_names  # an operand


def test_every_row_of_the_table_is_an_operator():
    assert all(row.op.name for row in ROWS)


def test_sharded_products_equal_those_of_numpy():
    """The operator of a strategy gives the derived layout and numpy's product."""
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(8, 4)), rng.normal(size=(4, 8))
    for m, k, n in itertools.product((1, 2, 4), repeat=3):
        if m * k * n > 8:
            continue
        derivation = shard("MatMul", (x.shape, w.shape), ((m, k), (k, n)), devices=8)
        world = LockStep(8)
        a, b = (Tensor.from_global(v, layout, world) for v, layout in zip((x, w), derivation.inputs))
        y = ops.matmul.op.shard(((m, k), (k, n)))(a, b)
        assert y.layout == derivation.outputs[0] and y.local(0).shape == derivation.output_slices[0]
        np.testing.assert_allclose(y.full(), x @ w, rtol=1e-12)
