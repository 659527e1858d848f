"""MindSpore's Layout has the published tensor maps and slices, and raises its errors in MindSpore's order."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from layout_cases import cases, tuples

from spmdsim import LockStep, Tensor
from spmdsim.core import Layout as CoreLayout
from spmdsim.core import Mesh, Partial, Replicate, Shard
from spmdsim.dialects import mindspore
from spmdsim.errors import LayoutError, UsageTypeError

V = "layouts_mindspore"


def make_layout(inputs):
    """Return the layout of a case, from aliases if the case has a call, or from numbers."""
    if "call" in inputs:
        make = mindspore.Layout(
            tuple(inputs["device_matrix"]), tuple(inputs["alias_name"]), inputs.get("rank_list")
        )
        return make(*tuples(inputs["call"]))
    return mindspore.from_tensor_map(
        inputs["device_matrix"], tuples(inputs["tensor_map"]), inputs.get("rank_list")
    )


@pytest.mark.parametrize("case", cases(V, "layout_to_dict"))
def test_to_dict(case):
    fields, expected = make_layout(case["given"]).to_dict(), case["expect"]
    assert list(fields) == list(expected)
    assert {k: tuples(v) if k != "rank_list" else v for k, v in expected.items()} == fields


@pytest.mark.parametrize("case", cases(V, "layout_tensor_map"))
def test_tensor_map(case):
    layout = make_layout(case["given"])
    assert layout.to_dict()["tensor_map"] == tuples(case["expect"]["tensor_map"])
    again = mindspore.from_tensor_map(layout.mesh.shape, layout.tensor_map, alias_name=layout.mesh.axes)
    assert again == layout and again.tensor_map == layout.tensor_map


@pytest.mark.parametrize("case", cases(V, "layout_slice"))
def test_slices(case):
    inputs, expected = case["given"], case["expect"]
    layout = make_layout(inputs)
    numeric = mindspore.from_tensor_map(
        inputs["device_matrix"], tuples(inputs["tensor_map"]), inputs["rank_list"]
    )
    for rank, bounds in expected["slices"].items():
        assert layout.bounds(inputs["global_shape"], int(rank)) == tuples(bounds)
        assert numeric.bounds(inputs["global_shape"], int(rank)) == tuples(bounds)
    if "slice_number_per_rank" in expected:
        numbers = [layout.shard_index(rank) for rank in inputs["rank_list"]]
        assert numbers == expected["slice_number_per_rank"]


def convert_argument(inputs, key):
    """Return the argument `key` of a case in the type that the case names, or None."""
    kind = {"list": list, "tuple": tuple}.get(inputs.get(f"{key}_type"))
    default = list if key == "rank_list" else tuple
    value = inputs.get(key)
    return value if value is None else (kind or default)(value)


@pytest.mark.parametrize("case", cases(V, "layout_error"))
def test_published_errors(case):
    inputs = case["given"]
    expected = {"TypeError": TypeError, "ValueError": ValueError}[case["expect"]["raises"]]
    with pytest.raises(expected):
        layout = mindspore.Layout(
            *(convert_argument(inputs, k) for k in ("device_matrix", "alias_name", "rank_list"))
        )
        if "call" in inputs:
            layout(*tuples(inputs["call"]))
        elif inputs.get("method") == "to_dict":
            layout.to_dict()


ERRORS = [
    # one mistake per row, in the order of the checks
    (([2, "2"], ["a", "a"], None), TypeError, "device_matrix must be a tuple"),
    (((2, "2"), ["a", "a", "a"], None), TypeError, "alias_name must be a tuple"),
    (((2, "2"), ("a", 1, ""), None), ValueError, "has 2 axes, but alias_name .* names 3"),
    (((2, "2"), ("a", 1), None), TypeError, "elements of device_matrix must be int, but got '2'"),
    (((2, 2), ("a", 1), (0,)), TypeError, "elements of alias_name must be str, but got 1"),
    (((2, 2), ("a", ""), (0,)), ValueError, "must not be empty"),
    (((2, 2), ("a", "None"), (0,)), ValueError, "'None' cannot be an alias"),
    (((2, 2), ("a", "a"), (0,)), ValueError, "'a' is repeated"),
    (((2, 2), ("interleaved_parallel", "b"), (0,)), ValueError, "must be the last alias"),
    (((2, 2), ("a", "b"), (0, 1, 2, 3)), TypeError, "rank_list must be a list"),
    (((2, 2), ("a", "b"), ["0", 1, 2]), TypeError, "elements of rank_list must be int, but got '0'"),
    (((2, 2), ("a", "b"), [[0, 1], [2, 3]]), ValueError, "one-dimensional"),
    (((2, 2), ("a", "b"), [[0, 1], [2, 3]]), TypeError, "one-dimensional"),
    (((2, 2), ("a", "b"), [0, 1, 2]), ValueError, "has 3 ranks, but device_matrix .* needs 4"),
    # checks that MindSpore does not have
    (((2, 0), ("a", "b"), None), ValueError, "must be positive"),
    (((2, True), ("a", "b"), None), TypeError, "must be int, but got True"),
    (((2, 2), ("a", "b"), [0, 1, 2, 2]), ValueError, "2 is repeated"),
    (((2, 2), ("a", "b"), [0, 1, 2, -3]), ValueError, "must not be negative"),
    (((2, 2), ("a", "b"), [0, 1, 2, True]), TypeError, "must be int, but got True"),
]


@pytest.mark.parametrize(("arguments", "kind", "words"), ERRORS)
def test_errors_are_raised_in_the_order_of_mindspore(arguments, kind, words):
    with pytest.raises(kind, match=words) as caught:
        mindspore.Layout(*arguments)
    assert isinstance(caught.value, LayoutError | UsageTypeError) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("c", "a"), "'c' is not found"),
        (("a", ("b", "c")), "'c' is not found"),
        (("a", "a"), "'a' has been set more than once"),
        (("a", ("b", "a")), "'a' has been set more than once"),
        ((("b", "b"), "a"), "'b' has been set more than once"),
        ((0, 1), "0 is not found"),
    ],
)
def test_calls_with_wrong_axes_are_refused(call, words):
    layout = mindspore.Layout((2, 2), ("a", "b"))
    with pytest.raises(ValueError, match=words):
        layout(*call)
    with pytest.raises(ValueError, match="tensor map is not set"):
        layout.to_dict()


def test_layouts_equal_the_plain_layouts_of_their_mesh():
    """Layouts equal the plain ones of their mesh, also after pickling; a template makes several layouts."""
    layout = mindspore.Layout((2, 2, 2), ("dp", "sp", "mp"))
    x, w = layout("mp", ("sp", "dp")), layout(("sp", "dp"), "None")
    mesh = Mesh((2, 2, 2), ("dp", "sp", "mp"))
    assert x == mesh("mp", ("sp", "dp")) and hash(x) == hash(mesh("mp", ("sp", "dp"))) and x != w
    assert isinstance(x, CoreLayout)
    assert (x.to_dict()["tensor_map"], w.to_dict()["tensor_map"]) == ((0, (1, 2)), ((1, 2), -1))
    again = pickle.loads(pickle.dumps(layout("dp", ("sp", "None"))))
    assert again.to_dict()["tensor_map"] == (2, (1, -1)) and again == mesh("dp", "sp")
    with pytest.raises(AttributeError, match="immutable"):
        x.dims = ()


def test_a_tuple_of_axes_is_one_dim():
    layout = mindspore.Layout((2, 4), ("axis_0", "axis_1"))
    assert layout(("axis_0", "axis_1")).ndim == 1
    assert layout(*("axis_0", "axis_1")).ndim == 2


def test_tuple_order_mesh_nests_by_the_device_matrix():
    layout = mindspore.Layout((2, 2, 2), ("dp", "sp", "mp"), tuple_order="mesh")
    assert layout("mp", ("sp", "dp")).to_dict()["tensor_map"] == (0, (2, 1))
    assert layout(("mp", "None", "dp")).to_dict()["tensor_map"] == ((2, 0, -1),)
    with pytest.raises(ValueError, match="'zz' is not found"):
        layout(("zz", "dp"))
    with pytest.raises(ValueError, match="tuple_order"):
        mindspore.Layout((2,), ("a",), tuple_order="sorted")


@pytest.mark.parametrize("case", cases(V, "layout_interleaved"))
def test_interleaved_parallel(case):
    inputs, expected = case["given"], case["expect"]
    layout = make_layout(inputs)
    assert layout.devices == expected["real_devices"]
    assert layout.to_dict()["tensor_map"] == tuples(expected["tensor_map"])
    assert layout.to_dict()["interleaved_parallel"] is True
    virtual_ranks = {str(r): list(layout.virtual_ranks(r)) for r in range(layout.devices)}
    assert virtual_ranks == expected["virtual_ranks_of_rank"]


def test_micro_shards_cover_the_tensor_once():
    layout = mindspore.Layout((2, 2, 2), ("dp", "sp", "interleaved_parallel"))(
        ("dp", "interleaved_parallel"), "sp"
    )
    boxes = [box for device in range(4) for box in layout.micro_bounds((8, 6), device)]
    assert len(boxes) == len(set(boxes)) == 8
    assert layout.micro_bounds((8, 6), 0) == (((0, 2), (0, 3)), ((2, 4), (0, 3)))
    assert mindspore.Layout((2, 2), ("a", "b"))("a").micro_shards == 1


@pytest.mark.parametrize("case", cases(V, "groups_along_each_axis"))
def test_groups_along_each_axis(case):
    inputs = case["given"]
    mesh = mindspore.from_tensor_map(inputs["device_matrix"], ()).mesh
    assert [list(mesh.group(inputs["rank"], axis)) for axis in mesh.axes] == case["expect"]["groups"]


@pytest.mark.parametrize("case", cases(V, "groups_error"))
def test_groups_of_an_unknown_rank_are_refused(case):
    mesh = mindspore.from_tensor_map(case["given"]["device_matrix"], ()).mesh
    with pytest.raises(LayoutError, match="rank 8 is not in the mesh"):
        mesh.group(case["given"]["rank"], mesh.axes[0])


@pytest.mark.parametrize("case", cases(V, "group_holding_same_slice"))
def test_ranks_with_equal_slices(case):
    assert list(make_layout(case["given"]).replica_ranks(case["given"]["rank"])) == case["expect"]["group"]


@pytest.mark.parametrize("case", cases(V, "slice_shape"))
def test_slice_shape(case):
    shape = make_layout(case["given"]).local_shape(case["given"]["shape"], 0)
    assert list(shape) == case["expect"]["slice_shape"]


@pytest.mark.parametrize("case", cases(V, "drop_size1_device_axes"))
def test_without_axes_of_size_one(case):
    layout = make_layout(case["given"])
    squeezed = mindspore.without_ones(layout)
    assert list(squeezed.mesh.shape) == case["expect"]["device_matrix"]
    assert list(squeezed.tensor_map) == case["expect"]["tensor_map"]
    shape = case["given"]["shape"]
    assert all(squeezed.bounds(shape, r) == layout.bounds(shape, r) for r in layout.mesh.rank_list)


@pytest.mark.parametrize("case", cases(V, "expand_multi_axis"))
def test_without_tuples(case):
    inputs = case["given"]
    layout, shape = mindspore.without_tuples(make_layout(inputs), inputs["global_shape"])
    assert list(layout.tensor_map) == case["expect"]["tensor_map"]
    assert list(shape) == case["expect"]["expanded_shape"]


@pytest.mark.parametrize("case", cases(V, "optimizer_shard_slice_shape"))
def test_optimizer_shard(case):
    inputs = case["given"]
    if case["expect"]["fails"]:
        with pytest.raises(ValueError):
            mindspore.optimizer_shard(make_layout(inputs), inputs["shape"])
        return
    layout = mindspore.optimizer_shard(make_layout(inputs), inputs["shape"])
    assert list(layout.local_shape(inputs["shape"], 0)) == case["expect"]["slice_shape"]


@pytest.mark.parametrize("case", cases(V, "optimizer_shard_layout"))
def test_optimizer_shard_layout(case):
    inputs = case["given"]
    sharded = mindspore.optimizer_shard(make_layout(inputs), inputs["shape"])
    layout, shape = mindspore.without_tuples(sharded, inputs["shape"])
    assert list(layout.mesh.shape) == case["expect"]["device_matrix"]
    assert list(layout.tensor_map) == case["expect"]["tensor_map"] and list(shape) == case["expect"]["shape"]


def test_an_optimizer_shard_needs_replicas():
    with pytest.raises(ValueError, match="some devices must own equal slices"):
        mindspore.optimizer_shard(mindspore.from_tensor_map((8, 4), (1, 0)), (512, 1024))


PLACEMENTS = {"Replicate": Replicate(), **{f"Shard({d})": Shard(d) for d in range(-4, 8)}}
PLACEMENTS |= {f"Partial({op})": Partial(op) for op in ("sum", "max", "min", "avg", "prod", "all")}


@pytest.mark.parametrize("case", cases(V, "placement_to_tensor_map"))
def test_placements(case):
    inputs, expected = case["given"], case["expect"]
    placements = [PLACEMENTS[text] for text in inputs["placements"]]
    arguments = (inputs["mesh_shape"], inputs["alias_name"], placements, inputs["tensor_dim"])
    if "raises" in expected:
        with pytest.raises(ValueError, match=expected["match"]):
            mindspore.from_placements(*arguments)
        return
    layout = mindspore.from_placements(*arguments)
    assert list(layout.to_dict()["tensor_map"]) == expected["tensor_map"]
    partial = [dict(layout.partial).get(axis) for axis in inputs["alias_name"]]
    assert partial == expected.get("partial", [None] * len(partial))


def test_placements_of_unknown_dims_are_refused():
    for dim in (5, -3):
        with pytest.raises(ValueError, match="out of bounds"):
            mindspore.from_placements((2, 2), ("dp", "mp"), [Shard(dim), Replicate()], 2)
    for op in ("min", "max", "avg"):
        layout = mindspore.from_placements((2,), ("dp",), [Partial(op)], 1)
        assert layout.to_dict()["tensor_map"] == (-1,) and layout.placements == (Partial(op),)


@pytest.mark.parametrize(
    "case", [c for c in cases(V, "strategy_slice") if "strategy" in c.values[0]["given"]]
)
def test_cuts_of_one_tensor(case):
    inputs, expected = case["given"], case["expect"]
    repeat = "right" if inputs.get("repeated_num_in_dev_matrix_right", True) else "left"
    layout = mindspore.from_cuts(inputs["strategy"], inputs["devices"], repeat)
    assert list(layout.mesh.shape) == expected["dev_matrix"]
    assert list(layout.tensor_map) == expected["tensor_map"]
    assert [layout.shard_index(r) for r in range(inputs["devices"])] == expected["slice_number_per_rank"]


@pytest.mark.parametrize(
    ("cuts", "devices", "repeat", "kind", "words"),
    [
        ((2, 3), 8, "right", ValueError, "6 blocks; their number must be positive and divide the 8 devices"),
        ((2, 0), 8, "right", ValueError, "0 blocks"),
        ((16,), 8, "right", ValueError, "16 blocks"),
        ((2, 2), 8, "middle", ValueError, "'right' or 'left'"),
        ((2, 2.0), 8, "right", TypeError, "must be integers"),
    ],
)
def test_wrong_cuts_are_refused(cuts, devices, repeat, kind, words):
    with pytest.raises(kind, match=words):
        mindspore.from_cuts(cuts, devices, repeat)


@pytest.mark.parametrize(
    ("numbers", "kind", "words"),
    [
        ((2, 0), ValueError, "has 2, but the 2 axes .* numbered 0..1"),
        ((-2, 0), ValueError, "has -2"),
        ((0, 0), ValueError, "has been set more than once"),
        (((1, 0), 1), ValueError, "has been set more than once"),
        (("a", 0), TypeError, "must have integers, got 'a'"),
        ((True, 0), TypeError, "must have integers, got True"),
    ],
)
def test_wrong_tensor_maps_are_refused(numbers, kind, words):
    with pytest.raises(kind, match=words):
        mindspore.from_tensor_map((2, 2), numbers)


def test_uneven_sizes_are_refused_in_one_line():
    layout = mindspore.Layout((2, 4), ("dp", "mp"))(("dp", "mp"), "None")
    mindspore.check_even(layout, (16, 3))
    with pytest.raises(
        ValueError, match=r"dim 0 has size 12, which cannot be split evenly into 8 parts \(along dp, mp\)"
    ):
        mindspore.check_even(layout, (12, 3))
    with pytest.raises(ValueError, match="tensors of 2 dims"):
        mindspore.check_even(layout, (16,))


@pytest.mark.parametrize(
    ("cuts", "shapes", "devices", "kind", "words"),
    [
        (((2, 4, 6),), ((32, 64, 96),) * 2, 32, ValueError, "one entry for each of 2 operands, got"),
        (((2, 4), (4,)), ((32, 64), (64, 8)), 8, ValueError, "operand 1 has shape .* and its cuts are"),
        (((0, 4), (4, 1)), ((32, 64), (64, 8)), 8, ValueError, "must be positive"),
        (
            ((2, 5), (5, 1)),
            ((32, 64), (64, 8)),
            8,
            ValueError,
            "size 64, which cannot be split evenly into 5",
        ),
        (((3, 1), (1, 1)), ((33, 64), (64, 8)), 8, ValueError, "must be a power of two"),
        (((2, "4"), (4, 1)), ((32, 64), (64, 8)), 8, TypeError, "must be an integer"),
    ],
)
def test_cuts_that_fit_no_operator_are_refused(cuts, shapes, devices, kind, words):
    with pytest.raises(kind, match=words):
        mindspore.check_cuts(cuts, shapes, devices)


def test_cuts_need_not_be_powers_of_two_on_other_device_counts():
    mindspore.check_cuts(((3, 2),), ((33, 64),), 6)


def test_different_layouts_of_either_class_are_not_equal():
    layout = mindspore.Layout((2,), ("a",))
    plain, split = layout("a", "None"), layout("None", "a")
    for other in (split, CoreLayout(split.mesh, split.dims)):  # of the dialect's class, and of core's
        assert plain != other and other != plain and other == split and split == other
    assert plain != 1


def test_a_tuple_of_axes_does_not_equal_the_plain_layout():
    """A template with one tuple of axes fits tensors of two dims; the plain layout of one dim does not.

    So the layouts are not equal. A template with two axes equals the plain layout of two dims.
    """
    mesh = Mesh((2, 4), ("x", "y"))
    plain, template = mesh(("x", "y")), mindspore.Layout((2, 4), ("x", "y"))(("x", "y"))
    assert (
        template != plain
        and plain != template
        and template == mindspore.Layout((2, 4), ("x", "y"))(("x", "y"))
    )
    x, world = np.arange(8.0).reshape(2, 4), LockStep(8)
    assert Tensor.from_global(x, template, world).local(5).shape == (1, 1)
    with pytest.raises(LayoutError, match="for tensors of 1 dim"):
        Tensor.from_global(x, plain, world)
    other = mindspore.Layout((2, 4), ("x", "y"))("x", "y")
    assert other == mesh("x", "y") == other and hash(other) == hash(mesh("x", "y"))


@pytest.mark.parametrize("order", [1, -1])
def test_results_for_one_layout_are_not_reused_for_another(order):
    """A tuple of axes fits tensors with one dim per axis; plain layouts and other tuples do not.

    The layouts have equal hashes but are not equal, so caches must keep their results apart. `order` is the order of calls.
    """
    mesh = Mesh((2, 4), ("x", "y"))
    written = [mindspore.Layout((2, 4), ("x", "y"))(entry) for entry in (("x", "y"), ("x", "None", "y"))]
    layouts = [mesh(("x", "y")), *written]
    assert len({hash(layout) for layout in layouts}) == 1
    assert not any(a == b for a in layouts for b in layouts if a is not b)
    repeated = mindspore.Layout((2, 4), ("x", "y"))(("x", "y"))
    assert repeated == written[0] and repeated.bounds((2, 4), 5) == written[0].bounds((2, 4), 5)
    world = LockStep(8)
    fits = {}
    for k in range(3)[::order]:
        for shape in ((8,), (2, 4), (2, 1, 4)):
            try:
                tensor = Tensor.from_global(np.ones(shape), layouts[k], world)
                fits[k, len(shape)] = tensor.local(5).shape
            except LayoutError:
                pass
    assert fits == {(0, 1): (1,), (1, 1): (1,), (1, 2): (1, 1), (2, 1): (1,), (2, 3): (1, 1, 1)}
