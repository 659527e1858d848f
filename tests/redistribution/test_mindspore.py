"""MindSpore's redistribution operators equal published cases and move data to the target."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore_offline import (
    merged_concat,
    needed_ranks,
    operator_map,
    optimise,
    pipeline_map,
    reshard_map,
    stack,
)
from mindspore_optimizer_shards import optimizer_shard_layout
from mindspore_slices import apply

from spmdsim.core import Layout, Mesh
from spmdsim.dialects.imitations.mindspore.map_layouts import (
    MapLayout,
    NotExpandable,
    drop_ones,
    expand_matrix,
    expand_shape,
    expand_tensor,
    expand_tuples,
    infer_operators,
    unify,
    unify_matrix,
)
from spmdsim.dialects.imitations.mindspore.map_operators import (
    is_expandable,
    operator_cost,
    operators,
    received_elements,
    run_names,
)
from spmdsim.errors import PlanError
from spmdsim.redistribution import plan

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/redistribution_mindspore.json").read_text())


def cases(kind: str) -> Any:
    vectors = [vector for vector in VECTORS if vector["kind"] == kind]
    assert vectors, kind
    return pytest.mark.parametrize(
        "inputs,expect", [(v["given"], v["expect"]) for v in vectors], ids=[v["id"] for v in vectors]
    )


def layout(written: list) -> MapLayout:
    matrix, axes, shape = written[:3]
    return MapLayout(tuple(matrix), tuple(axes), tuple(shape))


def pair(inputs: dict) -> tuple[MapLayout, MapLayout]:
    return layout(inputs["from_layout"]), layout(inputs["to_layout"])


def to_lists(ops: list) -> list:
    return [op.to_list() for op in ops]


@cases("expand_multi_axis")
def test_tuples_of_axes_become_dims(inputs: dict, expect: dict) -> None:
    result = expand_tuples(inputs["device_matrix"], inputs["tensor_map"], tuple(inputs["global_shape"]))
    assert [*result.map] == expect["tensor_map"] and [*result.shape] == expect["expanded_shape"]


@cases("drop_size1_device_axes")
def test_axes_of_one_are_dropped(inputs: dict, expect: dict) -> None:
    result = drop_ones(layout([inputs["device_matrix"], inputs["tensor_map"], inputs["shape"]]))
    assert [*result.matrix] == expect["device_matrix"] and [*result.map] == expect["tensor_map"]


@cases("expand_device_matrix")
def test_a_device_matrix_is_refined(inputs: dict, expect: dict) -> None:
    start = layout([inputs["device_matrix"], inputs["tensor_map"], inputs["shape"]])
    result = expand_matrix(start, tuple(inputs["new_device_matrix"]))
    assert [*result.map] == expect["tensor_map"] and [*result.shape] == expect["shape"]


@cases("expand_tensor_shape")
def test_a_shape_is_refined(inputs: dict, expect: dict) -> None:
    start = layout([inputs["device_matrix"], inputs["tensor_map"], inputs["shape"]])
    result = expand_tensor(start, tuple(inputs["new_shape"]))
    assert [*result.matrix] == expect["device_matrix"] and [*result.map] == expect["tensor_map"]


def test_a_shape_with_dims_of_one_is_refined():
    for shape, finer, axes in (
        ((4, 1), (4, 1), (0, -1)),
        ((4, 6), (1, 4, 1, 2, 3, 1), (-1, 0, -1, -1, -1, -1)),
        ((4,), (4, 1), (0, -1)),
    ):
        start = MapLayout((4,), (0, *(-1,) * (len(shape) - 1)), shape)
        assert expand_tensor(start, finer) == MapLayout((4,), axes, finer)


@pytest.mark.parametrize("shape", [(2,), (2, 2, 2), (4, 3), ()])
def test_a_shape_that_does_not_refine_is_refused(shape):
    with pytest.raises(NotExpandable, match="does not refine"):
        expand_tensor(MapLayout((1,), (-1,), (4,)), shape)


@cases("unify_shape_prefix_products")
def test_matrices_are_unified_by_prefix_products(inputs: dict, expect: dict) -> None:
    assert [*unify_matrix(inputs["a"], inputs["b"])] == expect["out"]


@cases("expand_shape_suffix_products")
def test_shapes_are_expanded_by_suffix_products(inputs: dict, expect: dict) -> None:
    assert [*expand_shape(inputs["shape"], inputs["expand"])] == expect["out"]


@cases("unify_layouts")
def test_two_layouts_are_unified(inputs: dict, expect: dict) -> None:
    one, other = unify(*pair(inputs))
    assert [*one.matrix] == expect["device_matrix"] and [*one.shape] == expect["shape"]
    assert [*one.map] == expect["from_tensor_map"] and [*other.map] == expect["to_tensor_map"]


@cases("redistribution_abstract_ops")
def test_inferred_operators_equal_the_vectors(inputs: dict, expect: dict) -> None:
    ops = infer_operators(inputs["device_matrix"], inputs["from_map"], inputs["to_map"], inputs["all2all"])
    assert [[op.name, *op.arguments()] for op in ops] == expect["ops"]


@cases("redistribution_ops")
def test_operators_of_a_rank_equal_the_vectors(inputs: dict, expect: dict) -> None:
    before, after = pair(inputs)
    rank = inputs["rank"]
    ops = operators(before, after, rank, inputs.get("rank_list"))
    assert to_lists(ops) == expect["ops"]
    moved = expect.get("received_elements_concat", expect.get("received_elements_per_rank_rank0_concat"))
    assert received_elements(ops, before.slice_shape) == moved
    other = operators(before, after, rank, inputs.get("rank_list"), all2all=True)
    moved = expect.get("received_elements_all2all", expect.get("received_elements_per_rank_rank0_all2all"))
    assert received_elements(other, before.slice_shape) == moved
    if "ops_all2all" in expect:
        assert to_lists(other) == expect["ops_all2all"]


@cases("redistribution_op_names")
def test_names_of_operators_equal_the_vectors(inputs: dict, expect: dict) -> None:
    ops = operators(*pair(inputs), inputs["rank"])
    assert run_names(ops) == expect["op_names"] and to_lists(ops) == expect["ops_rank0"]


@cases("reshape_redistribution")
def test_operators_of_reshapes_equal_the_vectors(inputs: dict, expect: dict) -> None:
    before, after = pair(inputs)
    assert to_lists(operators(before, after, inputs["rank"])) == expect["ops"]
    assert is_expandable(before, after) == (expect["mode"] == "unified")


@cases("needed_ranks")
def test_needed_ranks_equal_the_vectors(inputs: dict, expect: dict) -> None:
    assert needed_ranks(*pair(inputs), inputs["rank"]) == expect["ranks"]


@cases("transform_stack")
def test_stacks_equal_the_vectors(inputs: dict, expect: dict) -> None:
    entries = stack(operator_map(*pair(inputs)), inputs["rank"])
    assert [[rank, level, op.to_list()] for rank, level, op in entries] == expect["stack"]


@cases("transform_stack_length")
def test_lengths_of_stacks_equal_the_vectors(inputs: dict, expect: dict) -> None:
    assert len(stack(operator_map(*pair(inputs)), inputs["rank"])) == expect["length"]


@cases("apply_transform")
def test_applied_operators_reach_the_target(inputs: dict, expect: dict) -> None:
    before, after = pair(inputs)
    ops = operator_map(before, after)
    assert to_lists(ops[inputs["rank"]]) == expect["ops_rank0"]
    check_data(before, after, all2all=False)


@cases("reshard_operator_map")
def test_reshard_maps_equal_the_vectors(inputs: dict, expect: dict) -> None:
    op_map = reshard_map(inputs["from_layout"], inputs["to_layout"], inputs["rank"], inputs["rank_list"])
    assert {str(rank): to_lists(ops) for rank, ops in op_map.items()} == expect["op_map"]


@cases("pipeline_operator_map")
def test_pipeline_maps_equal_the_vectors(inputs: dict, expect: dict) -> None:
    op_map = pipeline_map(inputs["from_layout"][3], inputs["to_layout"][3], inputs["rank"])
    assert {str(rank): to_lists(ops) for rank, ops in op_map.items()} == expect["op_map"]


@cases("optimizer_shard_layout")
def test_optimizer_layouts_equal_the_vectors(inputs: dict, expect: dict) -> None:
    result = optimizer_shard_layout(
        inputs["device_matrix"],
        inputs["tensor_map"],
        inputs["opt_shard_step"],
        inputs["opt_shard_size"],
        inputs["shape"],
    )
    assert [*result.matrix] == expect["device_matrix"] and [*result.map] == expect["tensor_map"]
    assert [*result.shape] == expect["shape"]


@cases("merge_all_concat")
def test_concats_are_merged(inputs: dict, expect: dict) -> None:
    assert merged_concat(inputs["first"], inputs["second"]) == expect["merged"]
    assert merged_concat(inputs["second"], inputs["first"]) is None


@cases("redistribution_cost")
def test_operator_costs_equal_the_vectors(inputs: dict, expect: dict) -> None:
    cost = operator_cost(
        inputs["op"], inputs["slice_elems"], inputs.get("n", 1), inputs.get("dim", 0), inputs["dtype_bytes"]
    )
    assert cost.forward == expect["forward_comm"]
    assert cost.backward == expect.get("backward_comm", cost.backward)
    assert cost.communication == expect.get("total_comm", cost.communication)
    assert cost.computation == expect.get("computation", cost.computation)
    assert cost.memory == expect.get("memory", cost.memory)


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


def box(layout: MapLayout, rank: int) -> tuple[slice, ...]:
    """Return the block of a tensor that a rank owns."""
    matrix = layout.matrix
    coords = np.unravel_index(rank, matrix)
    local = layout.slice_shape
    at = [coords[len(matrix) - 1 - axis] if axis >= 0 else 0 for axis in layout.map]
    return tuple(slice(int(i) * n, (int(i) + 1) * n) for i, n in zip(at, local))


def check_data(before: MapLayout, after: MapLayout, all2all: bool, reordered: bool = False) -> None:
    """Apply the operators of all ranks to their slices; check that each rank gets its target slice."""
    ranks = range(math.prod(before.matrix))
    full_array = np.arange(math.prod(before.shape)).reshape(before.shape)
    ops = {rank: operators(before, after, rank, ranks, all2all) for rank in ranks}
    if reordered:
        ops = {rank: optimise(rank_operators, before.slice_shape) for rank, rank_operators in ops.items()}
    slices = apply(ops, {rank: full_array[box(before, rank)] for rank in ranks})
    for rank in ranks:
        wanted = full_array.reshape(after.shape)[box(after, rank)]
        assert slices[rank].shape == wanted.shape, (before, after, ops[rank])
        assert np.array_equal(slices[rank], wanted), (before, after, ops[rank])


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
        check_data(MapLayout((2, 2, 2), one, (2, 4, 4)), MapLayout((2, 2, 2), other, (2, 4, 4)), all2all)


def test_reordered_operators_reach_the_target() -> None:
    matrices = [(8,), (2, 4), (2, 2, 2), (8, 1)]
    layouts = [MapLayout(m, dims, (16, 8)) for m in matrices for dims in maps(len(m), 2)]
    changed = 0
    for one, other in itertools.product(layouts, layouts):
        check_data(one, other, all2all=False, reordered=True)
        ops = operators(one, other, 3)
        changed += optimise(ops, one.slice_shape) != ops
    assert changed > 100


def test_reshapes_reach_their_target_expandable_or_not() -> None:
    shapes = [(8, 12), (96,), (2, 4, 12), (12, 8)]
    gathered = 0
    for sizes, others in itertools.permutations(shapes, 2):
        for one in maps(2, len(sizes)):
            for other in maps(2, len(others)):
                before, after = MapLayout((2, 2), one, sizes), MapLayout((4, 1), other, others)
                if any(n % before.axis_size(a) for n, a in zip(sizes, one)):
                    continue
                if any(n % after.axis_size(a) for n, a in zip(others, other)):
                    continue
                gathered += not is_expandable(before, after)
                check_data(before, after, all2all=False)
    assert gathered > 10


def test_a_mindspore_plan_prints_the_best_plan_too() -> None:
    a, b = Mesh((4, 2), ("a", "b")), Mesh((8,), ("x",))
    theirs = plan(a("a", "b"), a("b", "a"), (64, 64), style="mindspore")
    assert theirs.nbytes(0) > theirs.ours.max_nbytes
    text = str(theirs)
    assert "AllConcat [0, 2, 4, 6, 0]" in text and "this package receives" in text
    assert json.loads(json.dumps(theirs.to_dict()))["style"] == "mindspore"
    other = plan(a("a", "b"), b("x", None), (4, 6), to_shape=(8, 3), style="mindspore")
    assert other.operators(0)[-1].name == "Reshape" or not is_expandable(other.before, other.after)


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
    with pytest.raises(NotExpandable):
        unify(MapLayout((2, 3), (1, 0), (6, 6)), MapLayout((3, 2), (1, 0), (6, 6)))
