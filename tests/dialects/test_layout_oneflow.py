"""OneFlow's placement and sbp give the published slices and errors, and keep or sort the order of ranks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_cases import cases, tuples

from spmdsim.core import Mesh
from spmdsim.dialects import oneflow as flow

V = "layouts_oneflow_paddle"
sbp = flow.sbp


def make_placement(mesh):
    return flow.placement("cpu", np.arange(np.prod(mesh)).reshape(mesh))


@pytest.mark.parametrize("case", cases(V, "slices"))
def test_slices(case):
    placement, shape = make_placement(case["mesh"]), tuple(case["shape"])
    layout = flow.layout(placement, case["sbp"], len(shape))
    ranks = range(layout.mesh.size)
    assert [flow.local_range(placement, case["sbp"], shape, r) for r in ranks] == list(
        tuples(case["ranges_per_rank"])
    )
    assert [flow.local_shape(placement, case["sbp"], shape, r) for r in ranks] == list(
        tuples(case["local_shapes"])
    )
    assert flow.sbp_of(layout) == tuple(sbp.parse_one(text) for text in case["sbp"])
    if "local_values" in case:
        logical = np.arange(np.prod(shape)).reshape(shape)
        assert [logical[layout.slices(shape, r)].tolist() for r in ranks] == case["local_values"]
    if "P" not in case["sbp"]:
        assert flow.logical_shape_of(placement, case["sbp"], case["local_shapes"]) == shape


@pytest.mark.parametrize("case", cases(V, "can_merge_split"))
def test_can_merge(case):
    assert flow.can_merge(case["size"], case["merged"]) is case["can_merge"]


def test_can_merge_is_true_exactly_if_nested_equals_flat():
    for a, b in itertools.product(range(2, 6), repeat=2):
        nested, flat = Mesh((a, b), ("a", "b"))(("a", "b")), Mesh((a * b,), ("ab",))("ab")
        for size in range(6 * a * b):
            is_equal = all(nested.bounds((size,), r) == flat.bounds((size,), r) for r in range(a * b))
            assert flow.can_merge(size, a * b) is is_equal, (size, a, b)


@pytest.mark.parametrize("case", cases(V, "local_to_global_shape"))
def test_logical_shape(case):
    shape = flow.logical_shape(make_placement(case["mesh"]), case["sbp"], case["local_shape"])
    assert list(shape) == case["logical_shape"]


@pytest.mark.parametrize("case", cases(V, "local_to_global_uneven"))
def test_logical_shape_of_uneven_shards(case):
    shape = flow.logical_shape_of(make_placement(case["mesh"]), case["sbp"], case["local_shapes"])
    assert list(shape) == case["logical_shape"]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.data())
def test_local_shapes_give_the_logical_shape(mesh, data):
    shape = tuple(data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=3)))
    kinds = [sbp.broadcast, *(sbp.split(d) for d in range(len(shape)))]
    entries = [data.draw(st.sampled_from(kinds)) for _ in mesh]
    layout = flow.layout(make_placement(mesh), entries, len(shape))
    local_shapes = [layout.local_shape(shape, r) for r in range(layout.mesh.size)]
    assert flow.logical_shape_of(make_placement(mesh), entries, local_shapes) == shape


@pytest.mark.parametrize("case", cases(V, "local_to_global_broadcast_root"))
def test_broadcast_groups(case):
    assert [list(g) for g in flow.broadcast_groups(make_placement(case["mesh"]), case["sbp"])] == case[
        "groups"
    ]
    assert flow.broadcast_groups(make_placement([2]), "S(0)") == ()


@pytest.mark.parametrize("case", cases(V, "sbp_sort_order"))
def test_sort_order(case):
    assert sorted(sbp.parse_one(text) for text in reversed(case["order"])) == [
        sbp.parse_one(t) for t in case["order"]
    ]


@pytest.mark.parametrize("case", cases(V, "grad_sbp_dual"))
def test_dual(case):
    assert str(sbp.parse_one(case["forward_sbp"]).dual) == case["gradient_sbp"]
    assert sbp.broadcast.dual == sbp.partial_sum and sbp.split(3).dual == sbp.split(3)


@pytest.mark.parametrize("case", cases(V, "op_example"))
def test_local_shape_of_a_result(case):
    y = case["y"]
    assert list(flow.local_shape(make_placement([case["p"]]), y["sbp"], y["shape"], 0)) == y["local_shape"]


ACTIONS = {
    "sbp.split(-1)": lambda: sbp.split(-1),
    "sbp.split(7)": lambda: sbp.split(7),
    "local 1-D tensor .to_global(sbp=split(1))": lambda: flow.layout(make_placement([2]), sbp.split(1), 1),
    "global 1-D tensor .to_global(sbp=split(1))": lambda: flow.layout(make_placement([2]), "S(1)", 1),
    "ranks hold (2,4) and (4,4), split(0)": lambda: flow.logical_shape_of(
        make_placement([2]), "S(0)", [(2, 4), (4, 4)]
    ),
    "ranks hold (2,4) and (4,4), split(1)": lambda: flow.logical_shape_of(
        make_placement([2]), "S(1)", [(2, 4), (4, 4)]
    ),
    "split dim smaller than parallel num": lambda: flow.check_sizes(make_placement([4]), "S(0)", (3, 5)),
    "rank >= world": lambda: flow.placement("cpu", [0, 4], world_size=4),
}


@pytest.mark.parametrize("case", [c for c in cases(V, "error") if c.values[0]["api"] == "oneflow"])
def test_published_errors(case):
    with pytest.raises(RuntimeError) as caught:
        ACTIONS[case["condition"]]()
    assert case["message"] in str(caught.value) and isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("action", "kind", "words"),
    [
        (lambda: flow.placement("tpu", [0]), RuntimeError, "Expected one of cpu, cuda device type"),
        (lambda: flow.placement("cpu", [0, 1, 1]), RuntimeError, "1 is repeated"),
        (lambda: flow.placement("cpu", [0, -1]), RuntimeError, "must not be negative"),
        (lambda: flow.placement("cpu", [0.0, 1.0]), TypeError, "array of integers, got 0.0"),
        (lambda: flow.placement("cpu", ["a"]), TypeError, "array of integers"),
        (lambda: flow.placement("cpu", 3), TypeError, "array of integers"),
        (lambda: flow.placement("cpu", []), RuntimeError, "at least one"),
        (lambda: flow.placement("cpu", [[0, 1], [2]]), RuntimeError, "must have one shape"),
        (lambda: flow.placement("cpu", [[0, 1], 2]), RuntimeError, "must have one shape"),
        (
            lambda: flow.placement("cpu", [0, 1, 2], devices_per_node=2),
            RuntimeError,
            "same number of devices",
        ),
        (lambda: sbp.split("0"), TypeError, "must be a tensor dim"),
        (lambda: sbp.split(6), RuntimeError, r"supported maximum axis \(6\), but got 6"),
        (lambda: sbp.parse("Q"), ValueError, "'Q' is not an sbp"),
        (lambda: sbp.parse("()"), ValueError, "no sbp in"),
        (lambda: flow.layout(make_placement([2, 2]), "S(0)", 2), RuntimeError, "needs 2 entries, but got 1"),
        (lambda: flow.layout(make_placement([2]), [3], 2), TypeError, "must be sbp.split"),
        (
            lambda: flow.check_sizes(make_placement([2, 4]), "(S0, S0)", (7, 1)),
            RuntimeError,
            "smallest part left: 3",
        ),
        (
            lambda: flow.logical_shape_of(make_placement([2]), "B", [(2, 4), (3, 4)]),
            RuntimeError,
            "Expected size 2 but got size 3",
        ),
        (
            lambda: flow.logical_shape_of(make_placement([2]), "B", [(2, 4)]),
            RuntimeError,
            "2 ranks, but 1 local shape was",
        ),
        (lambda: flow.sbp_of(Mesh((2, 2), ("a", "b"))(("b", "a"))), ValueError, "in mesh order"),
        (
            lambda: flow.sbp_of(Mesh((2,), ("a",))(None, partial={"a": "max"})),
            ValueError,
            "only pending reduction is partial_sum",
        ),
    ],
)
def test_errors(action, kind, words):
    with pytest.raises(kind, match=words):
        action()


def test_sizes_that_fit_are_accepted():
    flow.check_sizes(make_placement([2, 4]), "(S0, S0)", (8, 1))
    flow.check_sizes(make_placement([4]), "S(0)", (0, 4))
    flow.check_sizes(make_placement([2, 2]), "(S0, P)", (2, 1))


def test_sbp_is_parsed_from_all_text_forms():
    for text in (
        "(B, S(0))",
        "B,S0",
        "[broadcast, split(0)]",
        "(flow.sbp.broadcast, flow.sbp.split(dim=0))",
        "BS(0)",
    ):
        assert sbp.parse(text) == (sbp.broadcast, sbp.split(0)), text
    assert sbp.parse("S(0)") == sbp.parse("oneflow.sbp.split(axis=0)") == (sbp.split(0),)
    assert sbp.parse("P") == sbp.parse("partial_sum()") == (sbp.partial_sum(),)
    assert [sbp.text(sbp.parse(t)) for t in ("S0", "(P, B)")] == ["S(0)", "(P, B)"]
    assert sbp.broadcast() is sbp.broadcast and sbp.split(dim=2)() == sbp.split(2)
    assert sbp.text((sbp.split(1), sbp.partial_sum, sbp.broadcast)) == "(S(1), P, B)"


def test_the_written_order_of_ranks_is_kept_unless_sorted():
    written, as_oneflow = (flow.placement("cpu", [0, 2, 1, 3], sort_ranks=s) for s in (False, True))
    assert flow.local_range(written, "S(0)", (4,), 2) == ((1, 2),)
    assert flow.local_range(as_oneflow, "S(0)", (4,), 2) == ((2, 3),)
    assert as_oneflow == flow.placement("cpu", [0, 1, 2, 3]) != written


def test_a_placement_is_a_value():
    grid = flow.placement("cuda", ranks=((0, 1), (2, 3)))
    assert (grid.type, grid.ranks, grid.hierarchy, grid.ndim) == ("cuda", [[0, 1], [2, 3]], (2, 2), 2)
    assert repr(grid) == 'oneflow.placement(type="cuda", ranks=[[0, 1], [2, 3]])'
    assert grid != flow.placement("cuda", range(4)) and grid != flow.placement("cpu", [[0, 1], [2, 3]])
    assert len({grid, flow.placement("cuda", np.arange(4).reshape(2, 2))}) == 1
    assert flow.placement.all("cpu", 4) == flow.placement("cpu", [0, 1, 2, 3])
    assert flow.placement("cpu", np.arange(8).reshape(2, 2, 2)).mesh.coords(6) == (1, 1, 0)
    flow.placement("cpu", [0, 1, 4, 5], world_size=8, devices_per_node=4)
