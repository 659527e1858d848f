"""MindSpore's Gather derives the published strategies, computes numpy's result in each mode and refuses other cuts."""

from __future__ import annotations

import numpy as np
import pytest
from layout_cases import cases, tuples

import spmdsim.dialects.mindspore as ms
import spmdsim.ops as ops
from spmdsim.arrays import Tensor
from spmdsim.dialects.mindspore import shard
from spmdsim.dialects.session import use_world
from spmdsim.worlds import LockStep

V = "operators_mindspore"


def derive_gather(inputs):
    """Return the derivation of Gather for the `inputs` of a published case."""
    return shard(
        "Gather",
        (inputs["param_shape"], inputs["index_shape"]),
        tuples(inputs["in_strategy"]),
        inputs.get("out_strategy"),
        devices=inputs["devices"],
        attrs={"axis": inputs["axis"]},
    )


@pytest.mark.parametrize("case", cases(V, "gather_strategy"))
def test_gathers_have_the_published_derivations(case):
    derivation, expect = derive_gather(case["given"]), case["expect"]
    comm = derivation.forward[0].name if derivation.forward else "none"
    assert (derivation.mode, comm) == (expect["mode"], expect["forward_comm"])
    assert derivation.dev_matrix == tuples(expect["dev_matrix"])
    assert derivation.input_maps == (tuples(expect["param_map"]), tuples(expect["index_map"]))
    assert derivation.output_maps == (tuples(expect["output_map"]),)
    assert derivation.output_dev_matrix == tuples(expect["output_dev_matrix"])
    assert derivation.output_slices == (tuples(expect["output_slice"]),)
    if "groups_rank0" in expect:
        assert derivation.forward[0].group(0) == tuples(expect["groups_rank0"])


@pytest.mark.parametrize("case", cases(V, "gather_strategy_invalid"))
def test_invalid_gathers_are_refused(case):
    with pytest.raises(RuntimeError):
        derive_gather(case["given"])


GATHERS = [
    # table, indices, axis, table cuts, index cuts, devices
    ((64, 8), (16, 4), 0, (8, 1), (1, 1), 8),
    ((64, 8), (16, 4), 0, (2, 4), (1, 1), 8),
    ((64, 8), (16, 4), 0, (4, 1), (1, 1), 8),
    ((64, 8), (3, 4), 0, (8, 1), (1, 1), 8),
    ((64, 8), (16, 4), 0, (4, 1), (2, 1), 8),
    ((64, 8), (2, 4), 0, (4, 1), (2, 1), 8),
    ((64, 8), (4, 4), 0, (2, 1), (2, 2), 8),
    ((64, 8), (16, 4), 0, (1, 4), (2, 1), 8),
    ((64, 8), (16, 4), 1, (2, 4), (1, 1), 8),
    ((64, 8), (16, 4), 1, (8, 1), (1, 1), 8),
    ((64,), (16, 4), 0, (8,), (1, 1), 8),
]


@pytest.mark.parametrize("example", GATHERS, ids=str)
def test_every_mode_gives_the_result_of_numpy(example):
    table_shape, ids_shape, axis, param, index, devices = example
    derivation = shard(
        "Gather", (table_shape, ids_shape), (param, index), devices=devices, attrs={"axis": axis}
    )
    rng = np.random.default_rng(0)
    table, ids = rng.normal(size=table_shape), rng.integers(0, table_shape[axis], size=ids_shape)
    world = LockStep(devices)
    operands = [Tensor.from_global(x, layout, world) for x, layout in zip((table, ids), derivation.inputs)]
    result = ops.gather.op.shard(derivation.strategy, derivation.outputs[0])(*operands, dim=axis)
    assert result.layout == derivation.outputs[0]
    with use_world(world):
        assert ms.ops.Gather().shard((param, index))(table, ids, axis).layout == derivation.outputs[0]
    np.testing.assert_array_equal(result.full(), np.take(table, ids, axis))


@pytest.mark.parametrize(
    ("axis", "param", "index", "words"),
    [
        (0, (4, 1, 1), (1, 1), "this one has 3; cut its axis into 1"),
        (0, (4, 2), (2, 1), "only the first two dims"),
        (1, (1, 4), (2, 1), "only the first two dims"),
        (0, (2, 1), (2, 1), "must use all 8 devices"),
        (0, (2, 1), (1, 1, 2), "only the first two dims"),
    ],
)
def test_cuts_without_a_mode_are_refused(axis, param, index, words):
    with pytest.raises(RuntimeError, match=words):
        shard(
            "Gather", ((8,) * len(param), (8,) * len(index)), (param, index), devices=8, attrs={"axis": axis}
        )


def test_repeated_gathers_repeat_on_the_left_if_the_axis_is_split():
    derivation = shard("Gather", ((64, 8), (16, 4)), ((4, 1), (1, 1)), devices=8)
    assert (
        derivation.dev_matrix == (2, 4, 1)
        and derivation.input_maps[0] == (1, 0)
        and derivation.repeated_side == "left"
    )
    derivation = shard("Gather", ((64, 8), (16, 4)), ((1, 4), (1, 1)), devices=8)
    assert derivation.dev_matrix == (1, 1, 1, 4, 2) and derivation.repeated_side == "right"
    with pytest.raises(RuntimeError, match="repeated calculation"):
        shard("Gather", ((64, 8), (16, 4)), ((1, 4), (1, 1)), devices=8, attrs={"axis": 1})
