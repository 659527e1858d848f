"""``infer_layout`` returns hyper-parallel's published layouts and refuses published layouts that are unsound."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from layout_cases import cases, tuples

import spmdsim.ops as ops
from spmdsim.arrays import Tensor
from spmdsim.dialects.mindspore import Layout, infer_layout
from spmdsim.errors import RuleError
from spmdsim.redistribution import plan
from spmdsim.worlds import LockStep

V = "operators_mindspore"


#: Placements that upstream accepts although its local computation gives another result.
UNSOUND = ("hp.emb.4", "hp.softmax.5")


def infer_case_layout(inputs):
    """Return the layout that ``infer_layout`` gives for the `inputs` of a published case."""
    make = Layout(tuple(inputs["mesh_shape"]), tuple(inputs["alias_name"]))
    layouts = [None if entry is None else make(*tuples(entry)) for entry in inputs["in_layouts"]]
    args = dict(inputs["args"])
    pending = args.pop("partial", [])
    for i, entry in enumerate(pending):
        if entry is not None:
            layouts[i] = layouts[i].with_partial({entry[0]: entry[1]})
    return infer_layout(inputs["op"].split("/")[0], layouts, args, inputs["input_shapes"])


@pytest.mark.parametrize("case", cases(V, "infer_layout"))
def test_infer_layout_gives_the_published_layouts(case):
    inputs, expect = case["given"], case["expect"]
    if "raises" in expect:
        with pytest.raises(ValueError):
            infer_case_layout(inputs)
        return
    if case["id"] in UNSOUND:
        if case["id"] == "hp.emb.4":
            assert dict(infer_case_layout(inputs).partial) == {"mp": "sum"}
            return
        with pytest.raises(RuleError):
            infer_case_layout(inputs)
        return
    layout = infer_case_layout(inputs)
    if "tensor_map" in expect:
        assert layout.to_dict()["tensor_map"] == tuples(expect["tensor_map"])
    if "partial" in expect:
        pending = dict(layout.partial)
        assert [pending.get(axis) for axis in layout.mesh.axes] == expect["partial"]
    if "local_shape" in expect:
        args = inputs["args"]
        total = int(np.prod(args["src_shape"]))
        product = -int(np.prod(args["dst_shape"]))
        shape = [total // product if n == -1 else n for n in args["dst_shape"]]
        assert layout.local_shape(shape, 0) == tuples(expect["local_shape"])


def test_reductions_have_each_published_name():
    layout = Layout((2, 2, 2), ("dp", "cp", "mp"))("None", ("dp", "cp"), "mp")
    for name in ("SumExt", "MeanExt", "prod", "ReduceMax"):
        output = infer_layout(name, [layout], {"dim": 1})
        assert output.to_dict()["tensor_map"] == (-1, 0) and set(output.partial_axes) == {"dp", "cp"}
    with pytest.raises(ValueError):
        infer_layout("SumExt", [layout], {"dim": 3})


# -- operands of element-wise functions ------------------------------------------------------------------

CUBE = Layout((2, 2, 2), ("dp", "sp", "mp"))
SHAPE = (4, 8, 16)


@pytest.mark.parametrize(
    ("layouts", "shapes", "tensor_map"),
    [
        ([CUBE("dp", "None", "mp"), CUBE("None", "None", "None")], [SHAPE, SHAPE], (2, -1, 0)),
        ([CUBE("None", "None", "None"), CUBE("dp", "None", "mp")], [(1, 8, 16), SHAPE], (2, -1, 0)),
        ([CUBE("dp", "None", "None"), CUBE("None", "sp", "None")], [(4, 1, 16), (1, 8, 16)], (2, 1, -1)),
        ([CUBE("None"), CUBE("dp", "sp", "mp")], [(), SHAPE], (2, 1, 0)),
        ([CUBE(("dp", "sp"), "None", "None"), CUBE("None", "mp")], [SHAPE, (8, 16)], ((2, 1), -1, 0)),
        ([CUBE("dp", "None", "None"), None], [SHAPE, None], (2, -1, -1)),
        (
            [CUBE("dp", "None", "None"), CUBE("sp"), CUBE("None", "None", "None")],
            [SHAPE, (16,), SHAPE],
            (2, -1, 1),
        ),
    ],
)
def test_replicated_operands_are_cut_first(layouts, shapes, tensor_map):
    assert infer_layout("elementwise", layouts, {}, shapes).to_dict()["tensor_map"] == tensor_map


@pytest.mark.parametrize(
    ("layouts", "shapes"),
    [
        ([CUBE("dp", "None", "None"), CUBE("sp", "None", "None")], [SHAPE, SHAPE]),
        ([CUBE(("dp", "sp"), "None", "None"), CUBE(("dp", "mp"), "None", "None")], [SHAPE, SHAPE]),
        ([CUBE(("dp", "sp"), "None", "None"), CUBE("dp", "None", "None")], [SHAPE, SHAPE]),
        (
            [CUBE("dp", "None", "None"), CUBE("None", "None", "None").with_partial({"dp": "sum"})],
            [SHAPE, SHAPE],
        ),
        (
            [CUBE("None", "None", "None").with_partial({"dp": "sum"}), CUBE("dp", "None", "None")],
            [(1, 8, 16), SHAPE],
        ),
        ([CUBE("dp", "None", "None"), CUBE("None", "dp", "None")], [SHAPE, SHAPE]),
        ([CUBE("dp", "None"), CUBE("dp", "sp", "mp")], [(8,), SHAPE]),
        ([CUBE("dp", "None", "None"), CUBE("None", "None", "None")], [SHAPE]),
    ],
)
def test_operands_that_need_communication_are_refused(layouts, shapes):
    with pytest.raises(ValueError):
        infer_layout("Add", layouts, {}, shapes)


def test_cutting_operands_sends_nothing_and_gives_the_product():
    world, rng = LockStep(8), np.random.default_rng(0)
    entries = list(itertools.product(("None", "dp", "sp", ("dp", "mp")), repeat=2))
    x, y = rng.normal(size=(8, 8)), rng.normal(size=(8, 8))
    accepted = 0
    for a, b in itertools.product(entries, repeat=2):
        try:
            layouts = [CUBE(*a), CUBE(*b)]
            output = infer_layout("Mul", layouts, {}, [x.shape, y.shape])
        except ValueError:
            continue
        assert not any(plan(layout, output, x.shape).max_nbytes for layout in layouts)
        product = ops.multiply(*(Tensor.from_global(v, output, world) for v in (x, y)))
        assert product.layout == output and np.array_equal(product.full(), x * y)
        accepted += 1
    assert accepted > 50


# -- reshapes of unknown sizes, and required arguments -----------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "src", "dst", "tensor_map"),
    [
        (("dp", "None", "None", "None"), (1024, -1, 256, 512), (1024, -1, 512), (1, -1, -1)),
        (("dp", "None", "None"), (1024, -1, 512), (1024, -1, 256, 512), (1, -1, -1, -1)),
        (("dp", "None", "None"), (-1, 256, 512), (-1, 512), (1, -1)),
        (("dp", "None", "None"), (-1, 512), (-1, 256, 512), None),
        (("dp", "None"), (-1, 512), (-1, 256, 512), None),
        (("dp", "None"), (-1, 512), (2, -1), (1, -1)),
        (("dp", "None"), (-1, -1), (2, -1), None),
    ],
)
def test_reshapes_of_unknown_sizes(entries, src, dst, tensor_map):
    layout, args = Layout((2, 4), ("dp", "mp"))(*entries), {"src_shape": src, "dst_shape": dst}
    if tensor_map is None:
        with pytest.raises(ValueError):
            infer_layout("Reshape", [layout], args)
        return
    assert infer_layout("Reshape", [layout], args).to_dict()["tensor_map"] == tensor_map


def test_missing_and_different_operands_are_refused():
    layout = Layout((2, 4), ("dp", "mp"))("dp", "None")
    for name in ("embedding", "Embedding", "Gather", "LayerNorm"):
        with pytest.raises(ValueError):
            infer_layout(name, [layout], {})
    assert infer_layout("softmax", [layout, layout], {"dim": 1}) == layout
    with pytest.raises(ValueError, match="must have the same layout"):
        infer_layout("softmax", [layout, Layout((2, 4), ("dp", "mp"))("None", "dp")], {"dim": 1})
    with pytest.raises(ValueError):
        infer_layout("reshape", [layout], {"src_shape": (32, 64)})


def test_results_keep_virtual_axes_and_the_order_of_ranks():
    virtual = Layout((2, 2, 2), ("dp", "sp", "interleaved_parallel"))
    layout = virtual(("dp", "interleaved_parallel"), "None", "sp")
    fields = infer_layout("softmax", [layout], {"dim": 1}).to_dict()
    assert fields["tensor_map"] == ((2, 0), -1, 1) and fields["interleaved_parallel"] is True
    layout = Layout((2, 2), ("dp", "mp"), [3, 1, 0, 2])("None", "mp")
    assert infer_layout("softmax", [layout], {"dim": 0}).mesh.rank_list == (3, 1, 0, 2)


def test_permute_and_transpose_reorder_the_layout():
    layout = CUBE("dp", "sp", "mp")
    assert infer_layout("permute", [layout], {"perm": (2, 0, 1)}).to_dict()["tensor_map"] == (0, 2, 1)
    assert infer_layout("transpose", [layout], {"dim0": 0, "dim1": -1}).to_dict()["tensor_map"] == (0, 1, 2)
    for perm in ((-1, 0, 1), (0, 1), (0, 1, 3), (0, 0, 1), ()):
        with pytest.raises(ValueError, match="perm must name each of the 3 dims"):
            infer_layout("Transpose", [layout], {"perm": perm})
