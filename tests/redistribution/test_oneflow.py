"""OneFlow's boxing: published numbers, traffic and rules, and our plans for the same transitions."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oneflow_reshapes import reshape_signatures

from spmdsim.core import Layout, Mesh, Partial, Placement, Replicate, Shard
from spmdsim.dialects.imitations.oneflow import boxing_rules as oneflow
from spmdsim.dialects.imitations.oneflow.boxing_rules import mesh_of, subgroup
from spmdsim.dialects.oneflow.placements import can_merge
from spmdsim.errors import PlanError
from spmdsim.layout.common_mesh import same_cuts
from spmdsim.redistribution import plan
from spmdsim.worlds.lockstep_world import LockStep

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/redistribution_oneflow.json").read_text())


def cases(kind: str) -> Any:
    vectors = [vector for vector in VECTORS if vector["kind"] == kind]
    assert vectors, kind
    return pytest.mark.parametrize("v", vectors, ids=[v["id"] for v in vectors])


def placement(text: str) -> Placement:
    return {"B": Replicate(), "P": Partial()}.get(text) or Shard(int(text[1:]))


def sbp(texts: list[str]) -> tuple[Placement, ...]:
    return tuple(placement(text) for text in texts)


@cases("zero_comm")
def test_transitions_without_communication(v: dict) -> None:
    assert oneflow.zero_comm(sbp(v["src"]), sbp(v["dst"])) == v["zero_comm"]


@pytest.mark.parametrize("shape", [(2, 2), (2, 4), (2, 2, 2)])
def test_the_rule_of_free_transitions_is_exact(shape: tuple[int, ...]) -> None:
    mesh = mesh_of(shape)
    choices = [*map(Shard, range(2)), Replicate()]
    for src, dst in itertools.product(itertools.product(choices, repeat=len(shape)), repeat=2):
        moved = oneflow.total_traffic(mesh, src, dst, (16, 16), 1)
        assert oneflow.zero_comm(src, dst) == (moved == 0), (src, dst)


@cases("nd_traffic_exact")
def test_exact_traffic(v: dict) -> None:
    mesh = mesh_of(v["mesh"])
    src, dst = sbp(v["src"]), sbp(v["dst"])
    total = oneflow.total_traffic(mesh, src, dst, v["shape"], v["itemsize"])
    assert total == v["total_bytes"]
    layouts = [Layout.from_placements(mesh, one, len(v["shape"])) for one in (src, dst)]
    assert plan(*layouts, v["shape"], f"V{v['itemsize']}").total_nbytes == total


@cases("boxing_1d_same_placement")
def test_one_axis(v: dict) -> None:
    src, dst, parts = placement(v["src"]), placement(v["dst"]), v["p"]
    assert oneflow.boxing_cost(src, dst, parts, v["logical_bytes"]) == v["oneflow_cost"]
    assert " -> ".join(oneflow.boxing_route(src, dst)) == v["oneflow_interpreter"]
    side = math.isqrt(v["logical_bytes"] // 2)
    shape = (side, v["logical_bytes"] // side)
    mesh = Mesh((parts,), ("x",))
    layouts = [Layout.from_placements(mesh, [one], 2) for one in (src, dst)]
    route = plan(*layouts, shape, "int8", partial_target=True)
    assert route.total_nbytes == v["ideal_total_bytes_received"]


@cases("boxing_1d_different_placement")
def test_two_placements(v: dict) -> None:
    src, dst = placement(v["src"]), placement(v["dst"])
    cost = oneflow.cross_placement_cost(src, dst, v["p_src"], v["p_dst"], v["logical_bytes"])
    assert cost == v["oneflow_cost"]


@cases("nd_boxing_axis_order")
def test_order_of_axes(v: dict) -> None:
    assert oneflow.axis_sequence(sbp(v["src"]), sbp(v["dst"])) == v["axis_sequence"]


@cases("nd_boxing_acyclic")
def test_circles(v: dict) -> None:
    assert (oneflow.axis_sequence(sbp(v["src"]), sbp(v["dst"])) is not None) == v["acyclic"]
    if not v["acyclic"]:
        with pytest.raises(PlanError, match="circle"):
            oneflow.decompose(sbp(v["src"]), sbp(v["dst"]))


@cases("nd_boxing_generic_steps")
def test_the_last_resort(v: dict) -> None:
    steps = oneflow.generic_steps(sbp(v["src"]), sbp(v["dst"]))
    assert steps == [sbp(step) for step in v["steps"]]


@cases("nd_boxing_decompose")
def test_one_axis_after_the_other(v: dict) -> None:
    mesh = mesh_of(v["mesh"])
    steps = oneflow.decompose(sbp(v["src"]), sbp(v["dst"]))
    written = [
        {
            "axis": step.axis,
            "group_of_rank0": [*mesh.group(0, mesh.axes[step.axis])],
            "from": step.before,
            "to": step.after,
        }
        for step in steps
    ]
    assert written == [
        {**step, "from": placement(step["from"]), "to": placement(step["to"])} for step in v["steps"]
    ]


@cases("nd_boxing_shape_expand")
def test_double_splits_made_explicit(v: dict) -> None:
    args = (v["shape"], v["mesh"], sbp(v["src"]), sbp(v["dst"]))
    if v.get("error"):
        with pytest.raises(PlanError, match="divide"):
            oneflow.expand_shape(*args)
    else:
        shape, src, dst = oneflow.expand_shape(*args)
        assert [*shape] == v["result_shape"]
        assert src == sbp(v["result_src"]) and dst == sbp(v["result_dst"])


def shard_numbers(shape: tuple[int, ...], mesh: tuple[int, ...], sbp: tuple[Any, ...]) -> list[list[int]]:
    """The elements of every rank by their number: one axis after the other cuts what those before it left."""
    shards = []
    for place in np.ndindex(mesh):
        array = np.arange(math.prod(shape)).reshape(shape)
        for parts, entry, index in zip(mesh, sbp, place):
            if isinstance(entry, Shard):
                array = np.array_split(array, parts, entry.dim)[index]
        shards.append(array.reshape(-1).tolist())
    return shards


@pytest.mark.parametrize("mesh", [(2, 4), (4, 2), (2, 2), (2, 2, 2)])
def test_expanded_tuples_say_the_same_shards(mesh: tuple[int, ...]) -> None:
    tuples = [*itertools.product([Replicate(), Shard(0), Shard(1)], repeat=len(mesh))]
    expanded = 0
    for src, dst in itertools.product(tuples, repeat=2):
        try:
            finer, *after = oneflow.expand_shape((8, 16), mesh, src, dst)
        except PlanError as error:
            assert mesh in ((2, 4), (4, 2)) and "one axis would split two dims" in str(error)
            continue
        expanded += 1
        for before, same in zip((src, dst), after):
            assert shard_numbers((8, 16), mesh, before) == shard_numbers(finer, mesh, same), (src, dst)
    assert expanded >= 0.7 * len(tuples) ** 2


@cases("mesh_subgroup")
def test_groups_along_chosen_axes(v: dict) -> None:
    assert [*subgroup(mesh_of(v["mesh"]), v["rank"], v["axis_selected"])] == v["group"]


@cases("can_merge_split")
def test_merged_splits(v: dict) -> None:
    assert can_merge(v["size"], v["merged"]) == v["can_merge"]


def test_the_rule_of_merged_splits_is_exact() -> None:
    for a, b in itertools.product(range(2, 7), repeat=2):
        for size in range(6 * a * b):
            assert can_merge(size, a * b) == same_cuts(size, (a * b,), (a, b))


@cases("sbp_dim_reduce")
def test_fewer_axes(v: dict) -> None:
    mesh, sbps = oneflow.reduce_dims(v["mesh"], [sbp(one) for one in v["sbps"]], v["shape"])
    assert [*mesh] == v["reduced_mesh"] and [*sbps] == [sbp(one) for one in v["reduced_sbps"]]


@cases("reshape_sbp")
def test_sbp_of_a_reshape(v: dict) -> None:
    output = oneflow.reshape_sbp(v["in_shape"], v["out_shape"], v["mesh"], sbp(v["in_sbp"]))
    if "out_sbp" in v:
        assert output == sbp(v["out_sbp"])
    else:
        assert output != sbp(v["out_sbp_must_not_be"])


@cases("reshape_sbp_pairs")
def test_pairs_of_a_reshape(v: dict) -> None:
    pairs = oneflow.reshape_pairs(v["in_shape"], v["out_shape"], v["p"])
    assert {*pairs} == {sbp(pair) for pair in v["allowed"]}


def test_a_dim_that_both_shapes_have_may_be_uneven_on_one_axis() -> None:
    assert oneflow.reshape_sbp((5, 4), (5, 2, 2), (2,), (Shard(0),)) == (Shard(0),)
    assert ((Shard(0),), (Shard(0),)) in reshape_signatures((5, 4), (5, 2, 2), (2,))
    assert oneflow.reshape_sbp((5, 4), (20,), (2,), (Shard(0),)) is None
    assert oneflow.reshape_sbp((5, 4), (20,), (2,), (Partial("max"),)) == (Partial("max"),)


def test_reshapes_that_are_none_are_refused() -> None:
    with pytest.raises(PlanError, match="other numbers of elements"):
        oneflow.reshape_pairs((5, 4), (21,), 2)
    with pytest.raises(PlanError, match="a mesh of 2 axes takes as many placements"):
        oneflow.reshape_sbp((4, 4), (16,), (2, 2), (Shard(0),))


@cases("reshape_nd_sbp")
def test_signatures_of_a_reshape(v: dict) -> None:
    signatures = reshape_signatures(v["in_shape"], v["out_shape"], v["mesh"])
    assert {*signatures} == {(sbp(one), sbp(other)) for one, other in v["signatures_in_out"]}
    mesh = mesh_of(v["mesh"])
    for one, other in signatures:
        if Partial() not in one:
            src = Layout.from_placements(mesh, one, len(v["in_shape"]))
            dst = Layout.from_placements(mesh, other, len(v["out_shape"]))
            assert plan(src, dst, v["in_shape"], to_shape=v["out_shape"]).max_nbytes == 0


@cases("boxing_numeric")
def test_published_numbers(v: dict) -> None:
    world = LockStep(4)
    links = [
        (Mesh((len(link["ranks"]),), ("x",), link["ranks"]), placement(link["sbp"])) for link in v["chain"]
    ]
    mesh, first = links[0]
    inputs = {int(rank): np.array(values) for rank, values in v["inputs_per_rank"].items()}
    root = inputs[mesh.rank_list[0]]
    shards = [
        (root if isinstance(first, Replicate) else inputs[rank]) if rank in mesh else np.zeros((0, 0), int)
        for rank in range(4)
    ]
    shape = list(root.shape)
    if isinstance(first, Shard):
        shape[first.dim] = sum(inputs[rank].shape[first.dim] for rank in mesh.rank_list)
    layouts = [Layout.from_placements(mesh, [one], 2) for mesh, one in links]
    for src, dst in itertools.pairwise(layouts):
        for step in plan(src, dst, shape, np.int64, partial_target=True).steps:
            shards = world.run(step, shards)
    wanted = {int(rank): np.array(values) for rank, values in v["expected_per_rank"].items()}
    if layouts[-1].partial:  # which rank contributes what is free, the sum is not
        total = sum(shards[rank] for rank in layouts[-1].mesh.rank_list)
        assert np.array_equal(total, sum(wanted.values()))
    else:
        for rank, values in wanted.items():
            assert np.array_equal(shards[rank], values)
