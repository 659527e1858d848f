"""MindSpore's ``.shard`` with layouts derives the published cases and tensor parallelism in two and three dims."""

from __future__ import annotations

import pytest
from layout_cases import cases, tuples

from spmdsim.dialects.mindspore import Layout, shard
from spmdsim.errors import UsageTypeError

V = "operators_mindspore"


def derive_by_layouts(case):
    """Return the derivation of a published `case`, whose strategies are layouts."""
    inputs, expect = case["given"], case["expect"]
    if "in_layout" in inputs:
        layouts = [Layout(*template_arguments(inputs["in_layout"]))(*inputs["in_layout"]["call"])]
        wanted = Layout(*template_arguments(inputs["out_layout"]))(*inputs["out_layout"]["call"])
    else:
        make = Layout(*template_arguments(inputs))
        layouts = [make(*tuples(entry)) for entry in inputs["in_layouts"]]
        wanted = make(*tuples(expect["out_layout"])) if "out_layout" in expect else None
    return shard(
        inputs["op"].split("/")[0],
        inputs["input_shapes"],
        tuple(layouts),
        wanted,
        devices=inputs.get("devices"),
        attrs=inputs["attrs"],
    )


def template_arguments(inputs):
    """Return the device matrix and the aliases of a case."""
    return tuple(inputs["device_matrix"]), tuple(inputs["alias_name"])


@pytest.mark.parametrize("case", cases(V, "layout_shard"))
def test_layouts_give_the_published_derivations(case):
    expect = case["expect"]
    if "raises" in expect:
        with pytest.raises({"RuntimeError": RuntimeError, "ValueError": ValueError}[expect["raises"]]):
            derive_by_layouts(case)
        return
    if "NOT the placement" in case.get("note", ""):
        # Upstream accepts this layout, but a local transpose leaves the data in another one.
        with pytest.raises(RuntimeError, match="out_strategy must be "):
            derive_by_layouts(case)
        return
    derivation = derive_by_layouts(case)
    if "param_slice" in expect:
        assert derivation.input_slices[1] == tuples(expect["param_slice"])
    for key in ("output", "out_layout"):
        if key in expect:
            make = Layout(*template_arguments(case["given"]))
            wanted = make(*tuples(expect[key]))
            assert derivation.outputs[0] == wanted
            assert (
                derivation.output_maps == (wanted.tensor_map,)
                and derivation.output_dev_matrix == derivation.dev_matrix
            )
    if "forward_comm" in expect:
        words = expect["forward_comm"].split(" over ")
        assert derivation.forward[0].name == words[0]
        assert len(words) == 1 or derivation.forward[0].axes == tuple(words[1].split(","))


def test_cuts_and_layouts_do_not_mix():
    layout = Layout((2, 4), ("dp", "mp"))
    with pytest.raises(UsageTypeError, match="mixes"):
        shard("MatMul", ((8, 8), (8, 8)), (layout("dp", "None"), (1, 4)), devices=8)
    with pytest.raises(RuntimeError, match="must have 16 devices, got 8"):
        shard("ReLU", ((8, 8),), (layout("dp", "None"),), devices=16)
    with pytest.raises(RuntimeError, match="must be on one mesh"):
        other = Layout((4, 2), ("dp", "mp"))
        shard("MatMul", ((8, 8), (8, 8)), (layout("dp", "None"), other("None", "mp")))


# -- attributes that rules do not cover --------------------------------------------------------------------


def test_a_one_hot_has_scalar_operands():
    attrs = {"axis": -1, "depth": 10}
    derivation = shard("OneHot", [(64,), (), ()], [(4, 2), (), ()], devices=8, attrs=attrs)
    assert derivation.dev_matrix == (4, 2) and derivation.input_maps == ((1,), (), ())
    assert (derivation.input_slices, derivation.output_slices) == (((16,), (), ()), ((16, 5),))
    with pytest.raises(RuntimeError, match=r"empty \(\) for each scalar"):
        shard("OneHot", [(64,), (), ()], [(4, 2), (1,), ()], devices=8, attrs=attrs)


@pytest.mark.parametrize("cuts", [(4, 1, 1, 1), (1, 4, 1, 1), (1, 1, 7, 1), (2, 1, 1, 7)])
def test_a_single_reshape_has_a_replicated_result(cuts):
    derivation = shard("Reshape", [(28, 512, 7, 7)], [cuts], devices=28, attrs={"shape": (28, -1)})
    assert derivation.output_maps == ((-1, -1),) and derivation.output_slices == ((28, 25088),)
    assert derivation.input_slices == (tuple(n // cut for n, cut in zip((28, 512, 7, 7), cuts)),)
    assert derivation.forward == () and derivation.virtual_div == 28
    with pytest.raises(RuntimeError, match="elements"):
        shard("Reshape", [(28, 512)], [(4, 1)], devices=4, attrs={"shape": (28, 100)})


def test_the_side_of_repeated_calculation_is_an_attribute():
    attrs = {"repeated_num_in_dev_matrix_right_": False}
    derivation = shard("ReLU", [(8, 8)], [(2, 1)], devices=8, attrs=attrs)
    assert (
        derivation.dev_matrix == (4, 2, 1)
        and derivation.input_maps == ((1, 0),)
        and derivation.repeated_side == "left"
    )
    assert shard("ReLU", [(8, 8)], [(2, 1)], devices=8).dev_matrix == (2, 1, 4)


def test_gathers_and_sources_of_data_take_layouts():
    make = Layout((2, 2, 2), ("dp", "sp", "mp"))
    layouts = (make("dp", "mp"), make("sp"))
    derivation = shard("Gather", [(64, 32), (16,)], layouts, devices=8)
    assert derivation.forward[0].name == "AllReduce" and derivation.forward[0].axes == ("dp",)
    derivation = shard("Gather", [(64, 32), (16,)], layouts, make(("sp", "dp"), "mp"))
    assert derivation.forward[0].name == "ReduceScatter" and derivation.output_slices == ((4, 16),)
    with pytest.raises(RuntimeError, match="must have 4 devices, got 8"):
        shard("Gather", [(64, 32), (16,)], layouts, devices=4)
    with pytest.raises(UsageTypeError, match="mixes"):
        shard("Gather", [(64, 32), (16,)], (make("dp", "mp"), (2,)), devices=8)
    batch = make(("dp", "sp"), "None")
    derivation = shard("VirtualDataset", [(64, 32), (64, 8)], (batch, batch), devices=8)
    assert derivation.input_slices == ((16, 32), (16, 8)) and derivation.output_maps == (((2, 1), -1),) * 2
    with pytest.raises(RuntimeError, match="got 2 layouts for 1"):
        shard("GetNext", [(64, 32)], (batch, batch), devices=8)
    all_axes = make(("dp", "sp", "mp"), "None")
    assert shard("Flatten", [(64, 32)], (all_axes,)).output_slices == ((8, 32),)
    with pytest.raises(RuntimeError, match="splits dim 0 over all 8 devices"):
        shard("Flatten", [(64, 32)], (batch,))
