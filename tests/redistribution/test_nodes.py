"""Plans on nodes: which axes are gathered and reduced first, by the bytes that share a node's port."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, Tensor, plan
from spmdsim.auto_parallel.costs.move_prices import MovePrices
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.core import Layout, Partial, Replicate, Shard
from spmdsim.cost import Link, Machine, NodeMap

#: A node of two ranks has 100 Mbit/s, and memory is 40 times faster.
NETWORK = Machine("two levels", 1e-5, 8e-8, ranks_per_node=2, intra=Link(1e-6, 2e-9))
MESH = Mesh((2, 2), ("dp", "tp"))
BLOCKED, ROUND_ROBIN = NodeMap.of("a:2,b:2", 4), NodeMap.of("a,b,a,b", 4)


def steps_of(src: Layout, dst: Layout, nodes: NodeMap, shape: tuple[int, ...] = (1 << 20,)) -> list[str]:
    route = plan(src, dst, shape, "float32", NETWORK.placed(nodes))
    return [f"{step.collective} {','.join(step.axes)}" for step in route.steps if step.axes]


def test_a_gather_leaves_the_node_first() -> None:
    """Across first, 2 MiB enter each port; inside first, or by one ring over all ranks, 4 and 3 MiB do."""
    ends = MESH(("dp", "tp")), MESH(None)
    assert steps_of(*ends, BLOCKED) == ["all_gather dp", "all_gather tp"]
    assert steps_of(*ends, ROUND_ROBIN) == ["all_gather tp", "all_gather dp"]
    machine = NETWORK.placed(BLOCKED)
    seconds = plan(*ends, (1 << 20,), "float32", machine).seconds
    assert seconds == pytest.approx(1e-5 + 2 * 2**20 * 8e-8 + 1e-6 + 2 * 2**20 * 2e-9)


def test_a_sum_is_reduced_inside_and_combined_across() -> None:
    ends = MESH(None, partial=("dp", "tp")), MESH(None)
    assert steps_of(*ends, BLOCKED) == ["reduce_scatter tp", "all_reduce dp", "all_gather tp"]
    assert steps_of(*ends, ROUND_ROBIN) == ["reduce_scatter dp", "all_reduce tp", "all_gather dp"]


def test_a_sum_is_scattered_inside_first() -> None:
    ends = MESH(None, partial=("dp", "tp")), MESH(("dp", "tp"))
    assert steps_of(*ends, BLOCKED) == ["reduce_scatter tp", "reduce_scatter dp"]
    assert steps_of(*ends, ROUND_ROBIN) == ["reduce_scatter dp", "reduce_scatter tp"]


def test_replicas_inside_a_node_share_a_reduction_across() -> None:
    """A rank takes half of the bytes through the port, and the ranks of the node gather the halves."""
    steps = steps_of(MESH(None, partial="dp"), MESH(None), BLOCKED)
    assert steps == ["reduce_scatter dp", "all_gather dp", "all_gather tp"]


LINE = Mesh((4,), ("x",))


@pytest.mark.parametrize("nodes", [BLOCKED, ROUND_ROBIN])
def test_an_axis_over_nodes_is_cut_where_nodes_end(nodes: NodeMap) -> None:
    """One ring lets 3 MiB enter each port, and twice as much for a sum; two levels 2 MiB."""
    pending = LINE(None, partial="x")
    assert steps_of(LINE("x"), LINE(None), nodes) == ["all_gather across", "all_gather inside"]
    reduced = ["reduce_scatter inside", "all_reduce across", "all_gather inside"]
    assert steps_of(pending, LINE(None), nodes) == reduced
    assert steps_of(pending, LINE("x"), nodes) == ["reduce_scatter inside", "reduce_scatter across"]
    assert plan(LINE("x"), LINE(None), (1 << 20,), "float32", NETWORK.placed(nodes)).node_nbytes == 2 << 20


@pytest.mark.parametrize("nodes", ["a:3,b:1", "a,b,b,a"])
def test_an_axis_is_one_where_nodes_do_not_cut_it_evenly(nodes: str) -> None:
    assert steps_of(LINE("x"), LINE(None), NodeMap.of(nodes, 4)) == ["all_gather x"]


def test_short_messages_cross_the_network_once() -> None:
    """Crossing once and gathering inside costs fewer latencies than crossing twice."""
    assert steps_of(MESH(("dp", "tp")), MESH(None), BLOCKED, (4,)) == ["all_gather dp", "all_gather tp"]
    steps = steps_of(MESH(None, partial=("dp", "tp")), MESH(None), BLOCKED, (4,))
    assert steps == ["reduce_scatter tp", "all_reduce dp", "all_gather tp"]


def test_a_dimension_that_ranks_do_not_divide_is_gathered_as_it_is_split() -> None:
    assert steps_of(MESH(("dp", "tp")), MESH(None), BLOCKED, (1_000_001,)) == ["all_gather dp,tp"]


def test_on_one_node_nothing_is_taken_apart() -> None:
    one_node = NodeMap.of(4, 4)
    assert steps_of(MESH(("dp", "tp")), MESH(None), one_node) == ["all_gather dp,tp"]


def list_layouts() -> tuple[list[Layout], list[Layout]]:
    """Return all layouts of a matrix on 2 x 2 x 2 ranks, and those of them that are not partial."""
    mesh, choices = Mesh((2, 2, 2), ("a", "b", "c")), [Replicate(), Shard(0), Shard(1), Partial()]
    layouts = [Layout.from_placements(mesh, p, 2) for p in itertools.product(choices, repeat=3)]
    return layouts, [layout for layout in layouts if not layout.partial]


@pytest.mark.parametrize("nodes", ["a:2,b:2,c:2,d:2", "a,b,a,b,a,b,a,b", "a:3,b:2,c:3", "a,b,c,d,a,b,c,d"])
def test_values_arrive_on_any_placement(nodes: str) -> None:
    sources, targets, chance = *list_layouts(), random.Random(nodes)
    machine = NETWORK.placed(NodeMap.of(nodes, 8))
    world = LockStep(8)
    world.machine = machine
    with world:
        for _ in range(60):
            src, dst = chance.choice(sources), chance.choice(targets)
            shape = chance.choice([(8, 16), (24, 8), (16, 5), (7, 8)])
            values = np.arange(float(np.prod(shape))).reshape(shape)
            moved = Tensor.from_global(values, src).to(dst)
            assert moved.layout == dst
            for rank in range(8):
                expected = values[tuple(slice(*bounds) for bounds in dst.bounds(shape, rank))]
                np.testing.assert_array_equal(moved.local(rank), expected)


@pytest.mark.parametrize("nodes", ["a:4,b:4", "a,b,a,b,a,b,a,b", "a:3,b:5", "a:8"])
def test_a_search_prices_moves_as_the_planner_does(nodes: str) -> None:
    sources, targets, chance = *list_layouts(), random.Random(nodes)
    machine = NETWORK.placed(NodeMap.of(nodes, 8))
    prices = MovePrices(Settings(machine=machine))
    for _ in range(80):
        src, dst = chance.choice(sources), chance.choice(targets)
        planned = plan(src, dst, (64, 32), "float32", machine)
        assert prices.seconds(src, dst, (64, 32), 4) == pytest.approx(planned.seconds, rel=1e-9)


def test_many_ranks_are_planned_without_a_list_of_pairs() -> None:
    mesh = Mesh((512, 128), ("dp", "tp"))
    machine = Machine("large", 1e-6, 1e-10, nodes=NodeMap.consecutive(65_536, 128), intra=Link(1e-7, 1e-11))
    route = plan(mesh(("dp", "tp")), mesh(None), (1 << 24,), "float32", machine)
    assert [step.axes for step in route.steps if step.axes] == [("dp", "tp")]  # one ring moves no more


# ---------------------------------------------------------------------------------- the lower bound of a node


def test_a_plan_states_what_enters_the_busiest_port() -> None:
    route = plan(MESH(("dp", "tp")), MESH(None), (1 << 20,), "float32", NETWORK)
    assert (route.node_nbytes, route.node_lower_bound) == (2 * 2**20, 2 * 2**20)
    assert "busiest node: 2 MiB enter its port by the model, lower bound 2 MiB" in str(route)
    assert route.to_dict()["node_lower_bound"] == 2 * 2**20
    summed = plan(MESH(None, partial=("dp", "tp")), MESH(None), (1 << 20,), "float32", NETWORK)
    assert (summed.node_nbytes, summed.node_lower_bound) == (4 * 2**20, 4 * 2**20)
    alone = plan(MESH(("dp", "tp")), MESH(None), (1 << 20,), "float32", NETWORK.placed(NodeMap.of(4, 4)))
    assert alone.node_nbytes is None and alone.node_lower_bound is None and "port" not in str(alone)


@pytest.mark.parametrize("labels", ["a:2,b:2", "a,b,a,b", "a:3,b", "a,b,c,d"])
@pytest.mark.parametrize("shape", [(4, 6), (5, 3)])
def test_what_enters_a_node_is_what_none_of_its_ranks_owns(labels: str, shape: tuple[int, int]) -> None:
    layouts = [
        Layout.from_placements(MESH, p, 2)
        for p in itertools.product([Replicate(), Shard(0), Shard(1)], repeat=2)
    ]
    nodes = NodeMap.of(labels, 4)

    def elements(layout: Layout, node: int) -> set[tuple[int, ...]]:
        boxes = [layout.bounds(shape, rank) for rank in nodes.ranks_of(node)]
        return {index for box in boxes for index in itertools.product(*(range(*ends) for ends in box))}

    for src, dst in itertools.product(layouts, repeat=2):
        missing = [len(elements(dst, node) - elements(src, node)) for node in range(nodes.count)]
        assert plan(src, dst, shape, "f4", NETWORK.placed(nodes)).node_lower_bound == 4 * max(missing)


@pytest.mark.parametrize(("count", "expected"), [(2, 8), (4, 12)])
def test_sums_over_nodes_on_paper(count: int, expected: int) -> None:
    """Element by element, ``2 (n - 1)`` copies enter nodes, equally shared by the ``n`` nodes."""
    mesh = Mesh((count, 2), ("dp", "tp"))
    route = plan(mesh(None, partial=("dp", "tp")), mesh(None), (8,), "int8", NETWORK)
    assert route.node_lower_bound == expected
    inside = plan(mesh("dp", partial="tp"), mesh("dp"), (8,), "int8", NETWORK)
    assert inside.node_lower_bound == 0
