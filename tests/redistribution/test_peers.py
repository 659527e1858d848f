"""Plans support the published transitions of DTensor and Shardy at the bound."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from spmdsim import record
from spmdsim.arrays import Tensor
from spmdsim.core import Layout, Mesh, Partial, Replicate, Shard
from spmdsim.errors import PlanError
from spmdsim.redistribution import plan
from spmdsim.worlds import LockStep

PEERS = json.loads((Path(__file__).parents[1] / "vectors/redistribution_peers.json").read_text())
SHARDY = PEERS["shardy_reshard_to_collectives"]["vectors"]
DTENSOR = PEERS["dtensor_redistribute_asserted"]["vectors"]
MOVING = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "exchange")


def placement(text):
    match = re.fullmatch(r"P\((\w+)\)", text)
    return (
        Partial(match[1]) if match else {"R": Replicate(), "P": Partial()}.get(text) or Shard(int(text[1:]))
    )


def layouts_of(vector, src, dst, ndim):
    mesh = Mesh(vector["mesh"], [f"d{k}" for k in range(len(vector["mesh"]))])
    return tuple(Layout.from_placements(mesh, [placement(t) for t in side], ndim) for side in (src, dst))


def moving(route):
    return [step.collective for step in route.steps if step.collective in MOVING]


# -- Shardy ---------------------------------------------------------------------------------------------------


def refined_layouts(vector):
    """Return source and target layouts on a mesh whose axes are cut at all sub-axes.

    A sub-axis is written `x:(before)size`.
    """
    cuts = {axis: {1, size} for axis, size in vector["mesh"].items()}
    entries = [[_sub(a, vector["mesh"]) for a in dim] for side in ("src", "dst") for dim in vector[side]]
    for axis, before, size in itertools.chain(*entries):
        cuts[axis] |= {before, before * size}
    parts = {axis: list(itertools.pairwise(sorted(points))) for axis, points in cuts.items()}
    mesh = Mesh(
        [after // before for pairs in parts.values() for before, after in pairs],
        [f"{axis}{before}" for axis, pairs in parts.items() for before, _ in pairs],
        vector["device_ids"],
    )

    def layout(side):
        """Return the layout of a side on the refined mesh."""
        dims = [
            [
                f"{axis}{start}"
                for axis, before, size in (_sub(a, vector["mesh"]) for a in dim)
                for start, stop in parts[axis]
                if before <= start and stop <= before * size
            ]
            for dim in vector[side]
        ]
        return Layout(mesh, dims)

    return layout("src"), layout("dst")


def _sub(text, mesh):
    match = re.fullmatch(r"(\w+):\((\d+)\)(\d+)", text)
    return (match[1], int(match[2]), int(match[3])) if match else (text, 1, mesh[text])


@pytest.mark.parametrize("vector", [v for v in SHARDY if not v["dst_mesh"]], ids=lambda v: v["name"])
def test_shardy_transitions_on_one_mesh_are_at_the_bound(vector):
    """Plans are at the bound and move nothing exactly where Shardy only slices."""
    src, dst = refined_layouts(vector)
    route = plan(src, dst, vector["shape"], "int8")
    assert route.max_nbytes == route.max_lower_bound
    theirs = [step["op"] for step in vector["steps"]]
    assert (route.max_nbytes == 0) == (set(theirs) <= {"all_slice"})
    if route.max_nbytes:
        assert len(moving(route)) <= sum(op != "all_slice" for op in theirs)


ORDERS = {
    "mesh2d_2x3": ({"x": 2, "y": 3}, None),
    "mesh2d": ({"x": 2, "y": 2}, None),
    "single_dev_0": ({}, [0]),
}


@pytest.mark.parametrize("vector", [v for v in SHARDY if v["dst_mesh"]], ids=lambda v: v["name"])
@pytest.mark.parametrize("order", [[3, 2, 1, 0], [0, 2, 1, 3], [2, 3, 0, 1]], ids=str)
def test_shardy_transitions_between_meshes_are_at_the_bound(vector, order):
    """Meshes may have other device orders, other axes or single devices."""
    sizes, ranks = ORDERS.get(vector["dst_mesh"], (vector["mesh"], order))
    before = Mesh(list(vector["mesh"].values()), list(vector["mesh"]), vector["device_ids"])
    after = Mesh(list(sizes.values()), list(sizes), ranks)
    shape = vector["shape"]
    src = Layout(before, vector["src"] or [[]] * len(shape))
    dst = Layout(after, vector["dst"] or [[]] * len(shape))
    route = plan(src, dst, shape, "int8")
    assert route.max_nbytes == route.max_lower_bound
    world = LockStep(max(*before.rank_list, *after.rank_list) + 1)
    data = np.arange(int(np.prod(shape))).reshape(shape)
    np.testing.assert_array_equal(Tensor.from_global(data, src, world).to(dst).full(), data)


# -- DTensor --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "vector", [v for v in DTENSOR if "n_comm" in v], ids=lambda v: f"{v['src']}-{v['dst']}"
)
def test_plans_have_no_more_collectives_than_dtensor(vector):
    choices = [[t.split("|") for t in vector[side]] for side in ("src", "dst")]
    for src, dst in itertools.product(*(itertools.product(*side) for side in choices)):
        ndim = 1 + max(int(t[1:]) for t in (*src, *dst) if t[0] == "S" and t[1:].isdigit())
        route = plan(*layouts_of(vector, src, dst, ndim), (16,) * ndim, "int8")
        assert len(moving(route)) <= vector["n_comm"]
        assert bool(route.max_nbytes) is (vector["n_comm"] > 0)


@pytest.mark.parametrize(
    "vector", [v for v in DTENSOR if "allowed" in v], ids=lambda v: f"{v['src']}-{v['dst']}"
)
def test_dtensor_refuses_pending_targets_of_reduced_sources(vector):
    layouts = layouts_of(vector, vector["src"], vector["dst"], 2)
    if vector["allowed"]:
        assert plan(*layouts, (16, 16)).max_nbytes > 0
        return
    with pytest.raises(PlanError):
        plan(*layouts, (16, 16), style="dtensor")


@pytest.mark.parametrize(
    "vector", [v for v in DTENSOR if "backward_comms" in v], ids=lambda v: f"{v['src']}-{v['dst']}"
)
def test_gradients_of_a_transition_have_the_published_collectives(vector):
    for shape in vector["shapes"]:
        src, dst = layouts_of(vector, vector["src"], vector["dst"], len(shape))
        world = LockStep(src.mesh.size)
        x = Tensor.from_local(lambda r: np.ones(src.local_shape(shape, r)), src, world, shape=tuple(shape))
        x.requires_grad = True
        y = x.to(dst)
        gradient = np.arange(float(np.prod(shape))).reshape(shape)
        with record() as trace:
            y.backward(Tensor.from_global(gradient, y.layout.dual(), world))
        assert trace.counts() == vector["backward_comms"]
        np.testing.assert_array_equal(x.grad.full(), gradient)
