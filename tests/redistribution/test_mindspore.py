"""MindSpore's redistribution operators equal published cases and move data to the target."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore_slices import apply

from spmdsim.core import Layout, Mesh
from spmdsim.dialects.mindspore import from_tensor_map
from spmdsim.errors import PlanError
from spmdsim.redistribution import plan

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/redistribution_mindspore.json").read_text())


def cases(kind: str) -> Any:
    vectors = [vector for vector in VECTORS if vector["kind"] == kind]
    assert vectors, kind
    return pytest.mark.parametrize(
        "inputs,expect", [(v["given"], v["expect"]) for v in vectors], ids=[v["id"] for v in vectors]
    )


def mindspore_plan(before: Sequence, after: Sequence, all2all: bool = False, ranks: Any = None) -> Any:
    """Return MindSpore's plan for bytes between two layouts `[device matrix, map, shape]`."""
    (src, shape), (dst, to_shape) = (
        (from_tensor_map(matrix, axes, ranks), tuple(sizes)) for matrix, axes, sizes in (before, after)
    )
    theirs = plan(src, dst, shape, "int8", to_shape=to_shape, style="mindspore")
    return replace(theirs, all2all=all2all)


def plan_of(inputs: dict, all2all: bool = False) -> Any:
    return mindspore_plan(inputs["from_layout"], inputs["to_layout"], all2all, inputs.get("rank_list"))


def to_lists(ops: list) -> list:
    return [op.to_list() for op in ops]


def common_form(before: Sequence, after: Sequence) -> list[list[int]]:
    """Return the common device matrix, shape and maps that a plan prints."""
    line = re.search(
        r"common device matrix (.*), shape (.*): map (.*) -> (.*)", str(mindspore_plan(before, after))
    )
    assert line is not None
    return [[*map(int, re.findall(r"-?\d+", numbers))] for numbers in line.groups()]


@cases("expand_device_matrix")
def test_a_device_matrix_is_refined(inputs: dict, expect: dict) -> None:
    shape = inputs["shape"]
    replicated = [inputs["new_device_matrix"], [-1] * len(shape), shape]
    form = common_form([inputs["device_matrix"], inputs["tensor_map"], shape], replicated)
    assert form[:3] == [inputs["new_device_matrix"], expect["shape"], expect["tensor_map"]]


@cases("expand_tensor_shape")
def test_a_shape_is_refined(inputs: dict, expect: dict) -> None:
    matrix, finer = inputs["device_matrix"], inputs["new_shape"]
    form = common_form([matrix, inputs["tensor_map"], inputs["shape"]], [matrix, [-1] * len(finer), finer])
    assert form[:3] == [expect["device_matrix"], finer, expect["tensor_map"]]


@cases("unify_shape_prefix_products")
def test_matrices_are_unified_by_prefix_products(inputs: dict, expect: dict) -> None:
    assert common_form([inputs["a"], [-1], [8]], [inputs["b"], [-1], [8]])[0] == expect["out"]


@cases("expand_shape_suffix_products")
def test_shapes_are_expanded_by_suffix_products(inputs: dict, expect: dict) -> None:
    """A leading dim gives both shapes equally many elements."""
    shape, other = inputs["shape"], inputs["expand"]
    leading = math.prod(shape) // math.prod(other)
    other = [leading, *other] if leading > 1 else other
    form = common_form([[2], [-1] * len(shape), shape], [[2], [-1] * len(other), other])
    assert form[1] == expect["out"]


@cases("unify_layouts")
def test_two_layouts_are_unified(inputs: dict, expect: dict) -> None:
    names = ("device_matrix", "shape", "from_tensor_map", "to_tensor_map")
    assert common_form(inputs["from_layout"], inputs["to_layout"]) == [expect[name] for name in names]


def concrete(ops: list, matrix: Sequence[int], shape: Sequence[int], rank: int) -> Iterator[list]:
    """Yield the operators of a rank for inferred ones; `shape` is the shape of a slice before them."""
    sizes, coords = list(shape), np.unravel_index(rank, matrix)
    for name, *numbers, axis, count in ops:
        at = len(matrix) - 1 - axis
        group = [
            int(np.ravel_multi_index((*coords[:at], k, *coords[at + 1 :]), matrix)) for k in range(count)
        ]
        dim = numbers[0]
        if name == "Concat":
            sizes[dim] *= count
            yield ["AllConcat", [*group, dim]]
            continue
        sizes[dim] //= count
        if name == "AllToAll":
            sizes[numbers[1]] *= count
            names = {"group": group, "split_dim": dim, "concat_dim": numbers[1], "count": count}
            yield ["AllToAll", names]
            continue
        begin = [int(coords[at]) * size if d == dim else 0 for d, size in enumerate(sizes)]
        end = [start + size for start, size in zip(begin, sizes)]
        yield ["StridedSlice", [*begin, *end, *[1] * len(sizes)]]


@cases("redistribution_abstract_ops")
def test_inferred_operators_equal_the_vectors(inputs: dict, expect: dict) -> None:
    matrix, shape = inputs["device_matrix"], [8 * (dim + 2) for dim in range(len(inputs["from_map"]))]
    ends = [[matrix, inputs[name], shape] for name in ("from_map", "to_map")]
    theirs = mindspore_plan(*ends, inputs["all2all"])
    local_shape = theirs.ours.src.local_shape(shape, 0)
    for rank in range(8):
        expected = [*concrete(expect["ops"], matrix, local_shape, rank)]
        assert to_lists(theirs.operators(rank)) == expected, rank


@cases("redistribution_ops")
def test_operators_of_a_rank_equal_the_vectors(inputs: dict, expect: dict) -> None:
    rank = inputs["rank"]
    theirs, other = plan_of(inputs), plan_of(inputs, all2all=True)
    assert to_lists(theirs.operators(rank)) == expect["ops"]
    moved = expect.get("received_elements_concat", expect.get("received_elements_per_rank_rank0_concat"))
    assert theirs.nbytes(rank) == moved
    moved = expect.get("received_elements_all2all", expect.get("received_elements_per_rank_rank0_all2all"))
    assert other.nbytes(rank) == moved
    if "ops_all2all" in expect:
        assert to_lists(other.operators(rank)) == expect["ops_all2all"]


@cases("redistribution_op_names")
def test_names_of_operators_equal_the_vectors(inputs: dict, expect: dict) -> None:
    theirs = plan_of(inputs)
    assert theirs.operator_names(inputs["rank"]) == expect["op_names"]
    assert to_lists(theirs.operators(inputs["rank"])) == expect["ops_rank0"]


@cases("reshape_redistribution")
def test_operators_of_reshapes_equal_the_vectors(inputs: dict, expect: dict) -> None:
    theirs = plan_of(inputs)
    assert to_lists(theirs.operators(inputs["rank"])) == expect["ops"]
    assert theirs.to_dict()["expandable"] == (expect["mode"] == "unified")


@cases("apply_transform")
def test_applied_operators_reach_the_target(inputs: dict, expect: dict) -> None:
    theirs = plan_of(inputs)
    assert to_lists(theirs.operators(inputs["rank"])) == expect["ops_rank0"]
    check_data(theirs)


#: Per operator, the maps before and after and a shape, on 4 ranks with 100 elements each before.
MOVES = {
    "Concat": ([0], [-1], [400]),
    "AllToAll": ([0, -1], [-1, 0], [20, 20]),
    "Split": ([-1], [0], [100]),
}


@cases("redistribution_cost")
def test_operator_costs_equal_the_vectors(inputs: dict, expect: dict) -> None:
    before, after, shape = MOVES[inputs["op"]]
    assert (inputs["slice_elems"], inputs.get("n", 4), inputs["dtype_bytes"]) == (100, 4, 1)
    theirs = mindspore_plan([[4], before, shape], [[4], after, shape], all2all=True)
    assert len(theirs.operators()) == 1
    cost = theirs.to_dict()["cost"]
    names = {"forward_comm": "forward", "backward_comm": "backward", "total_comm": "communication"}
    for name, expected in expect.items():
        assert cost[names.get(name, name)] == expected, name


@cases("dtensor_redistribute")
def test_redistributions_of_placements_equal_the_vectors(inputs: dict, expect: dict) -> None:
    meshes = [inputs[name if name in inputs else "mesh_shape"] for name in ("src_mesh", "dst_mesh")]
    layouts = []
    for sizes, placements in zip(meshes, (inputs["src"], inputs["dst"])):
        mesh = Mesh(tuple(sizes), tuple("abc"[: len(sizes)]))
        dims: list[list[str]] = [[], []]
        for axis, text in zip(mesh.axes, placements):
            if text.startswith("Shard"):
                dims[int(text[6:-1])].append(axis)
        layouts.append(Layout(mesh, dims))
    src, dst = layouts
    shape = [size * parts for size, parts in zip(inputs["local_shape"], src.cuts)]
    assert plan(src, dst, shape).max_nbytes <= 4 * math.prod(shape)
    assert list(dst.local_shape(shape, 0)) == expect["local_shape"]


# -- data that operators move -------------------------------------------------------------------------------


def check_data(theirs: Any) -> None:
    """Apply the operators of all ranks to their slices; check that each rank gets its target slice."""
    ours = theirs.ours
    full_array = np.arange(math.prod(ours.shape)).reshape(ours.shape)
    target, ranks = full_array.reshape(ours.shape_after), ours.src.mesh.rank_list
    ops = {rank: theirs.operators(rank) for rank in ranks}
    slices = apply(ops, {rank: full_array[ours.src.slices(ours.shape, rank)] for rank in ranks})
    for rank in ranks:
        wanted = target[ours.dst.slices(ours.shape_after, rank)]
        assert slices[rank].shape == wanted.shape, (ours.src, ours.dst, ops[rank])
        assert np.array_equal(slices[rank], wanted), (ours.src, ours.dst, ops[rank])


def maps(axes: int, ndim: int) -> list[tuple[int, ...]]:
    return [
        dims
        for dims in itertools.product(range(-1, axes), repeat=ndim)
        if all(dims.count(axis) <= 1 for axis in range(axes))
    ]


@pytest.mark.parametrize("all2all", [False, True])
def test_every_pair_of_maps_reaches_its_target(all2all: bool) -> None:
    choices = maps(3, 3)
    assert len(choices) == 34
    pairs = list(itertools.permutations(choices, 2))[all2all::2]  # each half with one of the two algorithms
    for one, other in pairs:
        ends = [((2, 2, 2), axes, (2, 4, 4)) for axes in (one, other)]
        check_data(mindspore_plan(*ends, all2all))


def test_maps_of_any_device_matrix_reach_their_target() -> None:
    layouts = [(m, dims, (16, 8)) for m in ((8,), (2, 4), (2, 2, 2), (8, 1)) for dims in maps(len(m), 2)]
    for one, other in itertools.product(layouts, layouts):
        check_data(mindspore_plan(one, other))


def test_reshapes_reach_their_target_expandable_or_not() -> None:
    shapes = [(8, 12), (96,), (2, 4, 12), (12, 8)]
    gathered = 0
    for sizes, others in itertools.permutations(shapes, 2):
        for one in maps(2, len(sizes)):
            for other in maps(2, len(others)):
                src, dst = from_tensor_map((2, 2), one), from_tensor_map((4, 1), other)
                if not (src.is_even(sizes) and dst.is_even(others)):
                    continue
                theirs = mindspore_plan(((2, 2), one, sizes), ((4, 1), other, others))
                gathered += not theirs.to_dict()["expandable"]
                check_data(theirs)
    assert gathered > 10


def test_a_mindspore_plan_prints_the_best_plan_too() -> None:
    a, b = Mesh((4, 2), ("a", "b")), Mesh((8,), ("x",))
    theirs = plan(a("a", "b"), a("b", "a"), (64, 64), style="mindspore")
    assert theirs.nbytes(0) > theirs.ours.max_nbytes
    text = str(theirs)
    assert "AllConcat [0, 2, 4, 6, 0]" in text and "this package receives" in text
    assert json.loads(json.dumps(theirs.to_dict()))["style"] == "mindspore"
    other = plan(a("a", "b"), b("x", None), (4, 6), to_shape=(8, 3), style="mindspore")
    assert other.operators(0)[-1].name == "Reshape" or not other.to_dict()["expandable"]


@pytest.mark.parametrize("all2all", [False, True])
def test_plans_turn_source_shards_into_target_shards(all2all: bool) -> None:
    """Operators turn real source shards into target shards, even with several axes on a dim."""
    mesh, other = Mesh((2, 2, 2), ("a", "b", "c")), Mesh((4, 2), ("x", "y"))
    sources = [mesh(("a", "c"), "b"), mesh(("c", "a"), None), mesh(None, ("b", "a", "c")), mesh("a", "b")]
    targets = [*sources, other("y", None), other(("y", "x"), None), mesh(None, None)]
    full_array = np.arange(8 * 16).reshape(8, 16)
    for src, dst in itertools.product(sources, targets):
        theirs = replace(plan(src, dst, full_array.shape, style="mindspore"), all2all=all2all)
        ops = {rank: theirs.operators(rank) for rank in range(8)}
        result = apply(ops, {rank: full_array[src.slices(full_array.shape, rank)] for rank in range(8)})
        for rank in range(8):
            np.testing.assert_array_equal(result[rank], full_array[dst.slices(full_array.shape, rank)])
            names = [op.name for op in ops[rank]]
            assert ("Reshape", "Reshape") not in itertools.pairwise(names)
        assert (
            ops[0]
            or src.canonical == dst.canonical
            or src.local_shape((8, 16), 0) == dst.local_shape((8, 16), 0)
        )


def test_unsupported_redistributions_are_refused() -> None:
    mesh = Mesh((2, 2), ("a", "b"))
    with pytest.raises(PlanError, match="evenly only"):
        plan(mesh("a", None), mesh(None, "a"), (5, 4), style="mindspore")
    with pytest.raises(PlanError, match="pending"):
        plan(mesh(None, partial="a"), mesh(None), (4,), style="mindspore")
    with pytest.raises(PlanError, match="no plan is made in the style"):
        plan(mesh("a"), mesh("b"), (4,), style="megatron")
    with pytest.raises(PlanError, match="one rank list only"):
        mindspore_plan(([4], [0], [8]), ([8], [0], [8]))
    theirs = mindspore_plan(([2, 3], [1, 0], [6, 6]), ([3, 2], [1, 0], [6, 6]))
    assert not theirs.to_dict()["expandable"] and "no common form" in str(theirs)
