"""Plans move the bytes and return the numbers of OneFlow's published SBP transitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from layout_cases import cases

from spmdsim.core import Layout, Mesh, Partial, Placement, Replicate, Shard
from spmdsim.dialects.oneflow.placements import can_merge
from spmdsim.layout.common_mesh import same_cuts
from spmdsim.redistribution import plan
from spmdsim.worlds import LockStep

V = "redistribution_oneflow"


def placement(text: str) -> Placement:
    return {"B": Replicate(), "P": Partial()}.get(text) or Shard(int(text[1:]))


@pytest.mark.parametrize("case", cases(V, "nd_traffic_exact"))
def test_total_bytes_equal_published_traffic(case: dict) -> None:
    mesh = Mesh(tuple(case["mesh"]), [f"axis{k}" for k in range(len(case["mesh"]))])
    src, dst = (
        Layout.from_placements(mesh, [*map(placement, case[end])], len(case["shape"]))
        for end in ("src", "dst")
    )
    assert plan(src, dst, case["shape"], f"V{case['itemsize']}").total_nbytes == case["total_bytes"]


@pytest.mark.parametrize("case", cases(V, "boxing_1d_same_placement"))
def test_total_bytes_on_one_axis_equal_published_bytes(case: dict) -> None:
    side = math.isqrt(case["logical_bytes"] // 2)
    mesh = Mesh((case["p"],), ("x",))
    src, dst = (Layout.from_placements(mesh, [placement(case[end])], 2) for end in ("src", "dst"))
    route = plan(src, dst, (side, case["logical_bytes"] // side), "int8")
    assert route.total_nbytes == case["ideal_total_bytes_received"]


def test_the_rule_of_merged_splits_is_exact() -> None:
    for a, b in itertools.product(range(2, 7), repeat=2):
        for size in range(6 * a * b):
            assert can_merge(size, a * b) == same_cuts(size, (a * b,), (a, b))


@pytest.mark.parametrize("case", cases(V, "boxing_numeric"))
def test_shards_equal_published_numbers(case: dict) -> None:
    world = LockStep(4)
    links = [
        (Mesh((len(link["ranks"]),), ("x",), link["ranks"]), placement(link["sbp"])) for link in case["chain"]
    ]
    mesh, first = links[0]
    inputs = {int(rank): np.array(values) for rank, values in case["inputs_per_rank"].items()}
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
        for step in plan(src, dst, shape, np.int64).steps:
            shards = world.run(step, shards)
    wanted = {int(rank): np.array(values) for rank, values in case["expected_per_rank"].items()}
    if layouts[-1].partial:  # the sum is defined, but not the contribution of each rank
        total = sum(shards[rank] for rank in layouts[-1].mesh.rank_list)
        assert np.array_equal(total, sum(wanted.values()))
    else:
        for rank, values in wanted.items():
            assert np.array_equal(shards[rank], values)
