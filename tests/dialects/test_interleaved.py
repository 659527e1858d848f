"""Strategies on MindSpore's virtual axis split operators into micro-shards, which their devices exchange one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import spmdsim.ops as ops
from spmdsim.arrays import Tensor
from spmdsim.core import Mesh
from spmdsim.dialects import mindspore as ms
from spmdsim.dialects.mindspore import Layout, shard
from spmdsim.dialects.mindspore.layout import device_layout, device_mesh
from spmdsim.dialects.session import use_world
from spmdsim.worlds import LockStep

VIRTUAL = "interleaved_parallel"


def make_layout_template(sizes=(2, 2, 2), names=("dp", "sp", VIRTUAL), ranks=None):
    """Return a `Layout` without dims, whose last axis is virtual by default."""
    return Layout(sizes, names, ranks)


def test_a_product_on_four_devices_with_two_micro_shards_each():
    make = make_layout_template()
    layouts = (make(("dp", VIRTUAL), "sp"), make("sp", "None"))
    derivation = shard("MatMul", ((32, 16), (16, 8)), layouts, devices=4)
    assert derivation.dev_matrix == derivation.output_dev_matrix == (2, 2, 1) and derivation.micro_shards == 2
    assert derivation.input_maps == (((2, 0), 1), (1, -1)) and derivation.output_maps == (((2, 0), -1),)
    assert derivation.input_slices == ((8, 8), (8, 8)) and derivation.output_slices == ((8, 8),)
    # Devices with equal dp add their products, and devices with equal sp own the same weight.
    assert (derivation.forward[0].name, derivation.forward[0].axes) == ("AllReduce", ("sp",))
    assert derivation.forward[0].groups == ((0, 1), (2, 3))
    assert derivation.mirror_groups(1) == ((0, 2), (1, 3)) and derivation.mirrored == (1,)
    assert derivation.virtual_div == 2
    assert derivation.outputs[0].to_dict()["interleaved_parallel"] is True


def test_each_micro_shard_is_scattered_by_itself():
    make = make_layout_template()
    layouts = (make(("dp", VIRTUAL), "sp"), make("sp", "None"))
    out = make(("dp", VIRTUAL, "sp"), "None")
    derivation = shard("MatMul", ((32, 16), (16, 8)), layouts, out, devices=4)
    assert derivation.forward[0].name == "ReduceScatter" and derivation.forward[0].groups == ((0, 1), (2, 3))
    assert derivation.output_maps == (((2, 0, 1), -1),) and derivation.output_slices == ((4, 8),)


def test_a_contraction_along_the_virtual_axis_needs_no_collective():
    make = make_layout_template()
    layouts = (make("dp", VIRTUAL), make(VIRTUAL, "sp"))
    derivation = shard("MatMul", ((32, 16), (16, 8)), layouts, devices=4)
    assert derivation.forward == () and dict(derivation.computed[0].partial) == {VIRTUAL: "sum"}
    assert derivation.output_maps == ((2, 1),) and derivation.virtual_div == 1


def test_a_device_owns_one_shard_if_the_virtual_axis_splits_nothing():
    make = make_layout_template()
    derivation = shard("ReLU", ((8, 8),), (make("dp", "sp"),), devices=4)
    assert (
        derivation.mirror_groups(0) == ()
        and derivation.virtual_div == 1
        and derivation.dev_matrix == (2, 2, 1)
    )
    with pytest.raises(ValueError, match="some devices must own equal slices"):
        derivation.optimizer_shard(0)
    derivation = shard("ReLU", ((8, 8),), (make("dp", "None"),), devices=4)
    assert derivation.optimizer_shard(0).local_shape((8, 8), 0) == (2, 8)


@pytest.mark.parametrize("name", ["Gather", "Add", "Softmax", "VirtualDataset", "Flatten"])
def test_other_operators_split_the_virtual_axis(name):
    make = make_layout_template()
    batch = make(("dp", "sp", VIRTUAL), "None")
    examples = {
        "Gather": (((64, 8), (16,)), (make("None", "sp"), make(("dp", VIRTUAL)))),
        "Add": (((16, 8), (8,)), (batch, make("None"))),
        "Softmax": (((16, 8),), (batch,)),
        "VirtualDataset": (((16, 8),), (batch,)),
        "Flatten": (((16, 8),), (batch,)),
    }
    derivation = shard(name, *examples[name], devices=4)
    size = 16 // 4 if name == "Gather" else 2
    assert derivation.output_slices[0][0] == size
    with pytest.raises(RuntimeError, match="must have 8 devices, got 4"):
        shard(name, *examples[name], devices=8)


@pytest.mark.parametrize(("operand", "weight"), [(("dp", "k"), ("k", "n")), (("dp", "k"), ("k", None))])
def test_collectives_stay_between_equal_micro_shards(operand, weight):
    """A product on virtual ranks communicates only between ranks whose micro-shards have equal numbers."""
    mesh = ("dp", "k", "n", VIRTUAL)
    make = Layout((2, 2, 2, 2), mesh)
    x_layout = make((operand[0], VIRTUAL), operand[1])
    w_layout = make(weight[0], weight[1])
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(8, 4)), rng.normal(size=(4, 6))
    derivation = shard("MatMul", (x.shape, w.shape), (x_layout, w_layout), devices=8)
    world = LockStep(16)
    tensors = [Tensor.from_global(v, layout, world) for v, layout in zip((x, w), derivation.inputs)]
    y = ops.matmul.op.shard(derivation.strategy)(*tensors)
    np.testing.assert_allclose(y.full(), x @ w, rtol=1e-12)
    assert y.layout == derivation.outputs[0]
    virtual = derivation.mesh.groups(*derivation.forward[0].axes)
    for i, group in itertools.product(range(2), derivation.forward[0].groups):
        assert tuple(2 * device + i for device in group) in virtual


def test_devices_may_have_another_order():
    ranks = [6, 7, 2, 3, 4, 5, 0, 1]
    mesh = Mesh((2, 2, 2), ("dp", "sp", VIRTUAL), ranks)
    assert device_mesh(mesh).rank_list == (3, 1, 2, 0)
    make = make_layout_template(ranks=ranks)
    derivation = shard(
        "MatMul", ((8, 4), (4, 8)), (make(("dp", VIRTUAL), "sp"), make("sp", "None")), devices=4
    )
    assert derivation.forward[0].groups == ((3, 1), (2, 0))
    with pytest.raises(ValueError, match="next to each other"):
        device_mesh(Mesh((2, 2), ("dp", VIRTUAL), [0, 2, 1, 3]))


def test_operands_with_other_numbers_of_micro_shards_are_refused():
    with pytest.raises(RuntimeError, match="must be on one mesh"):
        shard(
            "Add",
            ((8, 8), (8, 8)),
            (make_layout_template()("dp", "sp"), make_layout_template((2, 2, 4))("dp", "sp")),
            devices=4,
        )


def test_the_micro_shards_of_a_device_make_its_shard():
    """The micro-shards of a device are contiguous if the virtual axis is the minor axis of its dim."""
    layout = make_layout_template()(("dp", VIRTUAL), "sp")
    device_shards = layout.device_layout
    assert device_shards == device_layout(layout) and device_shards.mesh.shape == (2, 2, 1)
    for device in range(4):
        micro_shards = layout.micro_bounds((8, 6), device)
        (start, _), columns = micro_shards[0]
        assert ((start, micro_shards[-1][0][1]), columns) == device_shards.bounds((8, 6), device)
    assert device_layout(Mesh((2,), ("dp",))("dp")).mesh.shape == (2,)
    pending = Mesh((2, 2), ("dp", VIRTUAL))("dp", partial=VIRTUAL)
    assert device_layout(pending).partial == ()


def test_a_program_runs_on_half_as_many_devices():
    make = make_layout_template()
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(8, 4)), rng.normal(size=(4, 6))
    with use_world(LockStep(4)):
        product = ms.ops.MatMul().shard((make(("dp", VIRTUAL), "sp"), make("sp", "None")))
        y = product(x, w)
        np.testing.assert_allclose(y.full(), x @ w, rtol=1e-12)
        assert y.local(0).shape == (4, 6)


def test_a_strategy_may_be_written_in_numbers():
    rng = np.random.default_rng(2)
    x, w = rng.normal(size=(8, 4)), rng.normal(size=(4, 6))
    with use_world(LockStep(8)):
        product = ms.ops.MatMul()
        maps = {"dev_matrix": (2, 2, 2), "input_tensor_map": ((2, 1), (1, 0))}
        y = product.add_prim_attr("layout", maps)(x, w)
        np.testing.assert_allclose(y.full(), x @ w, rtol=1e-12)
        assert y.local(0).shape == (4, 3)
